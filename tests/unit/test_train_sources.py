"""Whole runs from sources as they lie on the disk: OGB's raw files, HGB's, and MovieLens by its experiment."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from disttrain.config.file import parse_experiment, read_experiment
from disttrain.predict.job import predict
from disttrain.predict.request import Request
from disttrain.train import job
from disttrain.world import World

from ..training import events
from .test_data_ogb import mag

REPOSITORY = Path(__file__).parents[2]
QUICK = ("train.threads=1", "train.device=cpu", "train.log_every=1", "sampling.workers=0")


def train(text: str, place: Path, *overrides: str) -> tuple[dict[str, Any], list[float]]:
    """The summary, and the loss of each step."""
    places = [f"run_dir={place}/run", f"partition.dir={place}/parts", *QUICK, *overrides]
    with World.start(device="cpu", threads=1) as world:
        summary = job.run(parse_experiment(text, places), world)
    return summary, [event["loss"] for event in events(place / "run") if event["event"] == "train"]


OGB = """\
name: mag
data: {source: ogb, dataset: ogbn-mag, root: ROOT}
partition: {parts: 2, method: random}
task: {kind: node_classification}
model: {kind: rgcn, hidden: 8}
sampling: {fanout: [4, 3], batch_size: 4}
train: {epochs: 2}
"""


@pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="ogb is not installed; pip install ogb")
def test_a_set_of_ogb(tmp_path: Path) -> None:
    mag(tmp_path / "ogb")
    summary, losses = train(OGB.replace("ROOT", str(tmp_path / "ogb")), tmp_path)
    assert (summary["epochs"], summary["steps"], len(losses)) == (2, 6, 6)  # 10 of the 40 papers are to train on
    assert np.isfinite(losses).all() and len(set(losses)) == 6
    assert summary["num_evaluated"] == {"val": 10, "test": 10}
    assert summary["partition"]["parts"] == 2


HGB = """\
name: imdb
data: {source: pyg, dataset: HGBDataset, root: ROOT, args: {name: imdb}, split: {by: masks, val_from_train: 0.2}}
partition: {parts: 2, method: random}
task: {kind: node_classification, class_weights: balanced, metrics: [micro_f1, macro_f1, accuracy]}
model:
  kind: hetero_conv
  hidden: 8
  relations: {"movie,>actorh,actor": {conv: gat}}
sampling: {fanout: {default: [4, 3], "movie,>actorh,actor": [2, 2]}, batch_size: 10}
train: {epochs: 2}
"""
LINKS = {"movie->director": (0, 1), "director->movie": (1, 0), "movie->actorh": (0, 2), "actor->movie": (2, 0)}
COUNTS = {"movie": 40, "director": 9, "actor": 21}


def write_hgb_imdb(raw: Path) -> dict[int, list[int]]:
    """Files laid out as HGB's IMDB: several genres a film, and a link whose name is `>actorh`. Returns the genres."""
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    types = list(COUNTS)
    first = dict(zip(types, np.cumsum([0, *COUNTS.values()]).tolist()))
    named = list(enumerate(LINKS.items()))
    info = {
        "node.dat": {"node type": {str(number): name for number, name in enumerate(types)}},
        "link.dat": {"link type": {str(n): {"start": a, "end": b, "meaning": name} for n, (name, (a, b)) in named}},
        "label.dat": {"node type": {"0": {str(number): f"genre {number}" for number in range(5)}}},
    }  # fmt: skip
    (raw / "info.dat").write_text(json.dumps(info))
    nodes = [
        f"{first[name] + node}\t{name} {node}\t{number}\t{','.join(map(str, rng.integers(0, 2, 4 + number)))}"
        for number, name in enumerate(types)
        for node in range(COUNTS[name])
    ]
    (raw / "node.dat").write_text("\n".join(nodes) + "\n")
    links = [
        f"{first[types[src]] + a}\t{first[types[dst]] + b}\t{number}\t1.0"
        for number, (src, dst) in enumerate(LINKS.values())
        for a, b in zip(rng.integers(0, COUNTS[types[src]], 60), rng.integers(0, COUNTS[types[dst]], 60))
    ]
    (raw / "link.dat").write_text("\n".join(links) + "\n")
    genres = {film: sorted(rng.permutation(5)[: 1 + film % 3].tolist()) for film in range(36)}  # the rest have none
    lines = [f"{film}\tmovie {film}\t0\t{','.join(map(str, of))}\n" for film, of in genres.items()]
    (raw / "label.dat").write_text("".join(lines[:20]))
    (raw / "label.dat.test").write_text("".join(lines[20:]))
    return genres


def test_several_labels_and_odd_relations_of_hgb(tmp_path: Path) -> None:
    genres = write_hgb_imdb(tmp_path / "hgb" / "imdb" / "raw" / "IMDB")
    summary, losses = train(HGB.replace("ROOT", str(tmp_path / "hgb")), tmp_path)
    assert len(losses) == 4 and np.isfinite(losses).all()  # 16 films to train on
    assert summary["num_evaluated"] == {"val": 4, "test": 16}
    assert set(summary["test"]) >= {"micro_f1", "macro_f1", "accuracy"} and len(summary["labels"]["class_weights"]) == 5
    asked = Request.make(
        str(tmp_path / "run"), output=str(tmp_path / "out"), split="test", ids=None, checkpoint="last", embeddings=None,
        logits=False, overwrite=False,
    )  # fmt: skip
    with World.start(device="cpu", threads=1) as world:
        predict(read_experiment(tmp_path / "run" / "experiment.yaml"), asked, world)
    rows = pq.read_table(tmp_path / "out").sort_by("id").to_pylist()
    assert {row["id"]: row["label"] for row in rows} == {film: genres[film] for film in range(20, 36)}
    assert all(len(row["probabilities"]) == 5 for row in rows)


def test_movielens(tmp_path: Path, real_data: Any) -> None:
    text = (REPOSITORY / "configs" / "movielens.yaml").read_text(encoding="utf-8")
    given = [f"data.root={real_data('ml-100k')}", "train.epochs=3", "partition.parts=2", "model.hidden=16"]
    summary, losses = train(text, tmp_path, *given, "sampling.fanout=[10, 3]")
    assert np.isfinite(losses).all() and summary["steps"] == 3 * 8  # 1,009 films in batches of 128
    assert summary["num_evaluated"]["val"] + summary["num_evaluated"]["test"] == 1682 - 1009
    assert summary["test"]["auroc"] > 0.6, "who rated a film, and how, says something about it"
