"""Whole runs with a cache, all edges on every machine, fp16: what these settings change, which is little or nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config.file import read_experiment
from disttrain.graph.schema import Wants
from disttrain.predict.job import predict
from disttrain.predict.request import Request
from disttrain.sampling import NodeLoader, split_seeds
from disttrain.sampling.columns import Columns
from disttrain.train import job
from disttrain.train.trainer import Trainer
from disttrain.world import World
from tests.graphs import zoo
from tests.ranks import exit_codes, run_ranks
from tests.training import events

EXPERIMENT = """\
name: traffic
run_dir: PLACE/runs/NAME
data: {source: python, function: "tests.distributed.test_traffic_settings:rough_zoo", split: {by: masks}}
partition: {parts: 2, method: random, dir: PLACE/parts}
task: {kind: node_classification, node_type: paper}
model: {kind: hetero_conv, hidden: 8, inputs: {standardize: true}}
sampling: {fanout: [4, 3], batch_size: 12, locality: false, cache_bytes: SIZE}
train: {epochs: 2, lr: 0.01, log_every: 1, threads: 1, device: cpu, checkpoint: {every_steps: 2}}
"""
LAYERWISE = ("evaluate.method=layerwise", "evaluate.batch_edges=80")
EVERY_SETTING = ("partition.topology=replicated", "sampling.cache_bytes=4 KiB")


def rough_zoo() -> HeteroData:
    """The zoo with features that fp16 does not hold exactly."""
    data = zoo()
    data["paper"].x += torch.randn(211, 3, generator=torch.Generator().manual_seed(0))
    return data


def _experiment(place: str, name: str, size: str = "0", *overrides: str) -> Any:
    """Through a file, as users have it."""
    file = Path(place) / f"{name}-{os.getpid()}.yaml"
    file.write_text(EXPERIMENT.replace("PLACE", place).replace("NAME", name).replace("SIZE", size))
    return read_experiment(file, overrides)


def _train(world: World, place: str, name: str, size: str = "0", *overrides: str) -> dict[str, Any]:
    return job.run(_experiment(place, name, size, *overrides), world)


def _predict(world: World, place: str, name: str, *overrides: str) -> dict[str, Any]:
    run_directory = f"{place}/runs/{name}"
    asked = Request.make(
        run_directory, output=f"{place}/out/{name}", split=None, ids=None, checkpoint="last", embeddings=True,
        logits=True, overwrite=False,
    )  # fmt: skip
    return predict(read_experiment(Path(run_directory) / "experiment.yaml", overrides), asked, world)


def _recount(world: World, place: str) -> dict[str, Any]:
    """What a cache with room for all that the first epoch and the validation ask for keeps, and what it spares.

    Counted from batches that are made without one, by the machine's own rank.
    """
    experiment = _experiment(place, "recount")
    graph = job.prepare_graph(experiment, world)
    task, model = job.build(experiment, graph, world)
    wants: Wants = model.wants | task.wants  # pyright: ignore[reportOperatorIssue, reportUnknownVariableType]
    columns = Columns.of(graph, wants)
    loaders = {
        split: NodeLoader(
            world, graph, "paper", split_seeds(world, graph, "paper", f"{split}_mask"), sampling=experiment.sampling,
            run_seed=experiment.seed, wants=wants, training=split == "train", columns=columns,
        )
        for split in ("train", "val", "test")
    }  # fmt: skip
    drawn = {(split, epoch): list(loaders[split].batches(epoch)) for split, epoch in
             (("train", 0), ("train", 1), ("val", 0), ("test", 0))}  # fmt: skip
    found = {}
    for table in columns.tables:
        assert isinstance(table.key, str)
        place_of = np.argsort(np.asarray(graph.original_ids(table.key)))
        low, high = table.book.range_of(world.machine)

        def remote(which: tuple[str, int], key: str = table.key, of: Any = place_of, own: Any = (low, high)) -> Any:
            ids = np.concatenate([of[batch[key].n_id.numpy()] for batch in drawn[which]])
            return ids[(ids < own[0]) | (ids >= own[1])]

        kept = np.union1d(remote(("train", 0)), remote(("val", 0)))
        asked = np.concatenate([remote(which) for which in drawn] + [remote(("val", 0))])  # validated twice
        index = 16 * -(-graph.num_nodes(table.key) // 64) if len(kept) else 0
        found[table.key] = {
            "rows": len(kept),
            "bytes": len(kept) * table.row_bytes + index,
            "hits": int(np.isin(asked, kept).sum()),
            "asked": len(asked),
            "row_bytes": table.row_bytes,
        }
    return found


def _killed(world: World, place: str) -> None:
    """Both ranks are killed at the beginning of step 5; there is a checkpoint of step 4."""
    step = Trainer._train_step

    def mortal(self: Trainer, batch: Any) -> None:
        if self.position.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, batch)

    Trainer._train_step = mortal
    _train(world, place, "killed", "3 KiB")


def _all(world: World, place: str) -> dict[str, Any]:
    # Starting ranks costs seconds: these go through all runs.
    found = {
        "plain": _train(world, place, "plain"),
        "small": _train(world, place, "small", "3 KiB"),
        "large": _train(world, place, "large", "0.5 GiB"),
        "killed": _train(world, place, "killed", "1 MiB"),
        "every": _train(world, place, "every", "0", *LAYERWISE, *EVERY_SETTING),
        "fp16": _train(world, place, "fp16", "0", *LAYERWISE, *EVERY_SETTING, "sampling.feature_precision=fp16"),
        "recount": world.gather(_recount(world, place), "comparing"),
    }
    for name in ("plain", "every", "fp16"):
        found[name]["predicted"] = _predict(world, place, name, *LAYERWISE)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all runs and predictions, and `found.json`: their summaries."""
    place = tmp_path_factory.mktemp("traffic")
    assert exit_codes(_killed, 2, str(place), timeout=60.0) == [-signal.SIGKILL] * 2
    found, _ = run_ranks(_all, 2, str(place), timeout=120)
    (place / "found.json").write_text(json.dumps(found))
    return place


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, Any]:
    return json.loads((place / "found.json").read_text())


def _losses(place: Path, name: str) -> list[tuple[int, float]]:
    return [(e["step"], e["loss"]) for e in events(place / "runs" / name) if e["event"] == "train"]


@pytest.mark.parametrize("name", ["small", "large"])
def test_loss_curves_are_the_same_bit_for_bit_with_a_cache(place: Path, found: dict[str, Any], name: str) -> None:
    straight = _losses(place, "plain")
    assert [step for step, _ in straight] == list(range(1, 11)) and len({loss for _, loss in straight}) == 10
    assert _losses(place, name) == straight
    for split in ("val", "test"):
        assert found[name][split] == found["plain"][split]
    assert found["plain"]["cache"] is found["plain"]["cache_hit_rate"] is None
    assert found["large"]["bytes_exchanged"] < found["plain"]["bytes_exchanged"]
    assert found["large"]["exchanges_per_batch"] == found["plain"]["exchanges_per_batch"] == 6


def test_a_run_with_a_cache_that_is_killed_goes_on_exactly(place: Path, found: dict[str, Any]) -> None:
    """With a cache of another size, and steps after the last checkpoint done once more."""
    told = [e["event"] for e in events(place / "runs" / "killed")]
    assert told.count("resume") == 1
    assert dict(_losses(place, "killed")) == dict(_losses(place, "plain"))
    assert found["killed"]["test"] == found["plain"]["test"]
    assert found["killed"]["cache"]["bytes"] > 3 * 1024


def test_the_summary_of_the_cache_is_what_batches_come_to(found: dict[str, Any]) -> None:
    machines, cache = found["recount"], found["large"]["cache"]
    names = list(machines[0])
    assert cache["rows"] == {name: sum(m[name]["rows"] for m in machines) for name in names}
    assert cache["bytes"] == sum(m[name]["bytes"] for m in machines for name in names)
    hits, asked = ({name: sum(m[name][what] for m in machines) for name in names} for what in ("hits", "asked"))
    assert 0 < sum(hits.values()) < sum(asked.values())
    assert cache["hit_rate"] == found["large"]["cache_hit_rate"] == sum(hits.values()) / sum(asked.values())
    assert cache["hit_rate_by_type"] == {n: hits[n] / asked[n] if asked[n] else None for n in names}
    # Each kept row is asked for once, by its number, and sent once.
    rows = sum(m[name]["rows"] * m[name]["row_bytes"] for m in machines for name in names)
    assert cache["bytes_to_fill"] > rows
    small = found["small"]["cache"]
    assert 0 < small["bytes"] <= 2 * 3 * 1024 and 0 < small["hit_rate"] < cache["hit_rate"]
    assert all(small["rows"][name] <= cache["rows"][name] for name in names)


def _rows(place: Path, name: str) -> dict[str, np.ndarray]:
    table = pq.read_table(place / "out" / name).sort_by("id")
    assert table.column("id").to_pylist() == list(range(211))
    return {column: np.array(table.column(column).to_pylist()) for column in ("prediction", "logits", "embedding")}


def test_with_all_edges_on_every_machine_and_a_cache_layers_say_the_same(place: Path, found: dict[str, Any]) -> None:
    assert _losses(place, "every") == _losses(place, "plain")
    assert found["every"]["cache"]["bytes"] > 0
    for split in ("val", "test"):
        exact = pytest.approx(found["plain"]["predicted"]["metrics"][split], rel=1e-6)
        assert found["every"][split] == exact
        assert found["every"]["predicted"]["metrics"][split] == exact
    ours, theirs = _rows(place, "every"), _rows(place, "plain")
    assert (ours["prediction"] == theirs["prediction"]).all()
    for column in ("logits", "embedding"):
        np.testing.assert_allclose(ours[column], theirs[column], rtol=0, atol=1e-6)


def test_with_fp16_losses_and_predictions_are_near(place: Path, found: dict[str, Any]) -> None:
    ours, theirs = _losses(place, "fp16"), _losses(place, "plain")
    assert ours != theirs
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-2)
    ours, theirs = _rows(place, "fp16"), _rows(place, "plain")
    assert not np.array_equal(ours["logits"], theirs["logits"])
    np.testing.assert_allclose(ours["logits"], theirs["logits"], atol=2e-2)
    half, whole = found["fp16"]["cache"], found["every"]["cache"]
    assert half["rows"] == whole["rows"]
    assert whole["bytes"] - half["bytes"] == 3 * 2 * whole["rows"]["paper"], "x of papers, two bytes a number less"
