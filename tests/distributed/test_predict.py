"""Predictions of a run, on any ranks: each node once, under the user's keys, and the very numbers of the evaluation."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from torchmetrics import classification as tm

from disttrain import cli
from disttrain.config import ExperimentError
from disttrain.config.file import read_experiment
from disttrain.predict.job import predict
from disttrain.predict.output import PartFile
from disttrain.predict.request import Request
from disttrain.stop import Stopped, StopRequest
from disttrain.train.checkpoint import CheckpointDirectory
from disttrain.train.job import run
from disttrain.world import World

from ..ranks import RankFailed, run_ranks

NUM_USERS, NUM_ITEMS = 90, 25
Answer = tuple[dict[str, Any], list[dict[str, Any]]]
"""The summary, and the rows by key."""

KINDS = ("ann", "b,c", "d'e\"f", "ü g", " ", "2")
"""Odd beginnings of text keys."""

EXPERIMENT = """\
name: shop
data:
  source: tables
  root: tables
  nodes:
    user: {file: users.csv, key: user name, label: group, features: {numeric: [age]}}
    item: {file: items.csv, key: number, features: {numeric: [price]}}
  edges:
    "user,buys,item": {file: buys.csv, src: who, dst: what}
    "user,knows,user": {file: knows.csv, src: who, dst: whom}
  split: {by: column, column: part}
task: {kind: node_classification, metrics: [accuracy, macro_f1, auroc]}
model: {kind: hetero_conv, hidden: 8}
sampling: {fanout: [3, 2], batch_size: 8}
train: {epochs: 3, threads: 1, device: cpu}
"""


def name_of(user: int) -> str:
    return f"{KINDS[user % len(KINDS)]}{user}"


def write_csv(file: Path, **columns: Any) -> None:
    pyarrow.csv.write_csv(pa.table(columns), file)


def write_tables(folder: Path, older: float = 0.0) -> None:
    """Users of three groups (every seventh has none) in four parts, who buy and know at random."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    users = [name_of(user) for user in range(NUM_USERS)]
    group = rng.integers(0, 3, NUM_USERS)
    write_csv(
        folder / "users.csv",
        **{
            "user name": users,
            "age": group + rng.normal(size=NUM_USERS) + older,
            "group": [None if user % 7 == 0 else ("low", "middle", "top")[group[user]] for user in range(NUM_USERS)],
            "part": [("train", "train", "val", "test", "none")[user % 5] for user in range(NUM_USERS)],
        },
    )
    write_csv(folder / "items.csv", number=np.arange(NUM_ITEMS) * 3, price=rng.normal(size=NUM_ITEMS))
    who = [users[user] for user in rng.integers(0, NUM_USERS, 300)]
    write_csv(folder / "buys.csv", who=who, what=rng.integers(0, NUM_ITEMS, 300) * 3)
    write_csv(folder / "knows.csv", who=who, whom=[users[user] for user in rng.integers(0, NUM_USERS, 300)])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables and a finished run."""
    place = tmp_path_factory.mktemp("shop")
    write_tables(place / "tables")
    (place / "shop.yaml").write_text(EXPERIMENT)
    with World.start(device="cpu", threads=1) as world:
        places = [f"data.root={place}/tables", f"run_dir={place}/runs/shop", f"partition.dir={place}/cut"]
        experiment = read_experiment(place / "shop.yaml", [*places, "partition.parts=3"])
        run(experiment, world)
    return place


def request(place: Path, output: str, run_name: str = "shop", **given: Any) -> Request:
    words: dict[str, Any] = {
        "split": None, "ids": None, "checkpoint": "best", "embeddings": None, "logits": True, "overwrite": False,
    }  # fmt: skip
    return Request.make(str(place / "runs" / run_name), output=str(place / output), **{**words, **given})


def answer(world: World, asked: Request, *overrides: str) -> dict[str, Any]:
    return predict(read_experiment(asked.run_directory / "experiment.yaml", overrides), asked, world)


def answers(asked: Request, *overrides: str, size: int, machines: int | None = None) -> list[dict[str, Any]]:
    if size > 1:
        return run_ranks(answer, size, asked, *overrides, machines=machines)
    with World.start(device="cpu", threads=1) as world:
        return [answer(world, asked, *overrides)]


def ask(place: Path, output: str, *overrides: str, size: int = 1, machines: int | None = None, **given: Any) -> Answer:
    """Predict on so many ranks; the summary, which is the file's, and all rows, sorted by key."""
    (summary, *_) = answers(request(place, output, **given), *overrides, size=size, machines=machines)
    assert summary == json.loads((place / output / "_predictions.json").read_text())
    rows = pq.read_table(place / output).sort_by([(name, "ascending") for name in summary["keys"]]).to_pylist()
    assert sum(pq.read_metadata(place / output / file["name"]).num_rows for file in summary["files"]) == len(rows)
    assert sorted(os.listdir(place / output)) == sorted(
        [".lock", "_predictions.json", *(file["name"] for file in summary["files"])]
    )
    return summary, rows


@pytest.fixture(scope="module")
def one(shop: Path) -> Answer:
    return ask(shop, "one")


def test_all_nodes_come_once_under_their_keys_with_names(one: Answer) -> None:
    summary, rows = one
    assert [row["user name"] for row in rows] == sorted(name_of(user) for user in range(NUM_USERS))
    users = {name_of(user): user for user in range(NUM_USERS)}
    for row in rows:
        user = users[row["user name"]]
        part = ("train", "train", "val", "test", "none")[user % 5]
        labelled = user % 7 != 0
        assert row["split"] == (part if part != "none" and labelled else None)
        assert (row["label"] is None) == (row["label_name"] is None) == (not labelled)
        assert row["prediction_name"] == ("low", "middle", "top")[row["prediction"]]
        assert row["prediction"] == np.argmax(row["probabilities"]) == np.argmax(row["logits"])
        assert np.sum(row["probabilities"]) == pytest.approx(1, abs=1e-6)
        if labelled:
            assert row["label_name"] == ("low", "middle", "top")[row["label"]]
    assert summary["rows"] == NUM_USERS
    assert summary["keys"] == ["user name"]
    assert summary["classes"] == ["low", "middle", "top"]
    assert summary["columns"]["embedding"].endswith("[8]")


def test_metrics_are_those_of_the_run_and_of_the_rows(shop: Path, one: Answer) -> None:
    summary, rows = one
    trained = json.loads((shop / "runs" / "shop" / "summary.json").read_text())
    assert summary["metrics"]["test"] == trained["test"]
    assert summary["metrics"]["val"] == trained["val"]
    test = [row for row in rows if row["split"] == "test"]
    assert len(test) == trained["num_evaluated"]["test"]
    target = torch.tensor([row["label"] for row in test])
    predicted = torch.tensor([row["prediction"] for row in test])
    assert tm.MulticlassAccuracy(3, average="micro")(predicted, target).item() == trained["test"]["accuracy"]
    assert tm.MulticlassF1Score(3, average="macro")(predicted, target).item() == trained["test"]["macro_f1"]
    scores = torch.tensor([row["logits"] for row in test]).double().softmax(dim=1)
    assert tm.MulticlassAUROC(3, average="macro", thresholds=None)(scores, target).item() == trained["test"]["auroc"]


@pytest.mark.parametrize(("size", "machines", "parts"), [(2, 1, 1), (2, 2, 5), (3, 3, 3)])
def test_the_numbers_do_not_depend_on_ranks_or_partitions(
    shop: Path, one: Answer, size: int, machines: int, parts: int
) -> None:
    overrides = [f"partition.parts={parts}", "partition.method=random", f"partition.dir={shop}/cut-{parts}"]
    summary, rows = ask(shop, f"out-{size}-{machines}", *overrides, size=size, machines=machines)
    assert len(summary["files"]) == size
    expected, straight = one
    assert rows == straight
    for key in ("rows", "splits", "checksum", "keys", "columns", "classes"):
        assert summary[key] == expected[key]
    for split, values in summary["metrics"].items():
        assert values == pytest.approx(expected["metrics"][split], rel=1e-12)


def test_splits_and_nodes_without_a_label(shop: Path, one: Answer) -> None:
    summary, rows = ask(shop, "some", split="test,unlabelled", embeddings=False, logits=False)
    straight = one[1]
    asked = [row["user name"] for row in straight if row["split"] == "test" or row["label"] is None]
    assert [row["user name"] for row in rows] == asked
    assert "embedding" not in rows[0] and "logits" not in rows[0]
    assert summary["asked_for"] == {"test": len(asked) - 13, "unlabelled": 13}
    assert summary["metrics"].keys() == {"test"}
    assert summary["metrics"]["test"] == one[0]["metrics"]["test"]


def test_a_list_of_keys(shop: Path) -> None:
    wanted = [name_of(user) for user in (3, 88, 1, 5, 41)]
    (shop / "ids.txt").write_text("\n".join(wanted) + "\n\n", encoding="utf-8")
    _, rows = ask(shop, "ids-text", ids=str(shop / "ids.txt"), size=2)
    assert [row["user name"] for row in rows] == sorted(wanted)
    write_csv(shop / "ids.csv", **{"x": [1] * 5, "user name": wanted})
    _, again = ask(shop, "ids-csv", ids=str(shop / "ids.csv"))
    assert rows == again


def refusal(asked: Request, *overrides: str) -> str:
    with pytest.raises(ExperimentError) as caught:
        answers(asked, *overrides, size=1)
    return str(caught.value)


def test_what_is_refused_leaves_nothing(shop: Path, one: Answer) -> None:
    before = sorted(os.listdir(shop / "one"))
    assert "one holds predictions already (_predictions.json, part-" in refusal(request(shop, "one"))
    assert sorted(os.listdir(shop / "one")) == before

    ids = shop / "ids.txt"
    ids.write_text("ann0\nnobody\nann0\n", encoding="utf-8")
    with pytest.raises(RankFailed) as caught:
        run_ranks(answer, 2, request(shop, "no", ids=str(ids)))
    assert caught.value.kind == "ExperimentError"
    assert "1 id without a node of type \"user\", whose key is user name (VARCHAR): 'nobody'" in caught.value.text
    text = refusal(request(shop, "no", checkpoint="step-99"))
    assert "the checkpoint step-99 of" in text and "is not there or not whole; there are step-" in text
    text = refusal(request(shop, "no"), "model.hidden=16")
    assert "inputs.types.user.linear.weight: [8, 1] in the checkpoint, [16, 1] for this data and experiment" in text
    assert os.listdir(shop / "no") == [".lock"]


def test_overwriting_and_what_a_killed_process_left(shop: Path) -> None:
    ask(shop, "again", split="test")
    (shop / "again" / ".part-00000-of-00001.parquet.host.1").write_text("torn")
    (shop / "again" / "part-00001-of-00002.parquet").write_text("of more ranks")
    summary, rows = ask(shop, "again", split="val", overwrite=True)
    assert [file["name"] for file in summary["files"]] == ["part-00000-of-00001.parquet"]
    assert {row["split"] for row in rows} == {"val"}


def test_a_signal_ends_it_and_leaves_nothing(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, before = PartFile.add, set(os.listdir(shop))

    def signalled(part: PartFile, table: pa.Table) -> None:
        add(part, table)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(PartFile, "add", signalled)
    with (
        World.start(device="cpu", threads=1) as world,
        pytest.raises(Stopped, match="stopped by SIGTERM in ") as raised,
        StopRequest(True, 143),
    ):
        answer(world, request(shop, "stopped"))
    assert raised.value.code == 143  # what the shell says of any program that was ended so
    assert set(os.listdir(shop)) - before == {"stopped"}
    assert set(os.listdir(shop / "stopped")) <= {".lock"}


def test_a_stopped_run_predicts_from_its_newest_whole_checkpoint(shop: Path) -> None:
    stopped = shop / "runs" / "stopped"
    shutil.copytree(shop / "runs" / "shop", stopped)
    for name in ("DONE", "summary.json", ".lock"):
        (stopped / name).unlink()
    names = CheckpointDirectory(stopped / "checkpoints").names()
    newest = next((stopped / "checkpoints" / names[0]).glob("*.distcp"))
    newest.write_bytes(newest.read_bytes()[:-1])
    summary, _ = ask(shop, "stopped", run_name="stopped", checkpoint="last", split="test")
    assert summary["checkpoint"]["name"] == names[1]
    for name in names[1:]:
        shutil.rmtree(stopped / "checkpoints" / name)
    assert "none of the checkpoints in" in refusal(request(shop, "no-checkpoint", "stopped"))
    shutil.rmtree(stopped / "checkpoints" / names[0])
    assert "holds no checkpoint that can be read" in refusal(request(shop, "no-checkpoint", "stopped"))


def test_other_data_that_mean_the_same(shop: Path, one: Answer) -> None:
    """New users without a label: what features mean is decided by the training rows, which stay the same."""
    write_tables(shop / "others", older=1.0)
    other = (f"data.root={shop}/others", f"partition.dir={shop}/cut-others")
    assert "the features of user are not scaled and coded as in training" in refusal(request(shop, "no-2"), *other)

    shutil.copytree(shop / "tables", shop / "more")
    other = (f"data.root={shop}/more", f"partition.dir={shop}/cut-more")
    with open(shop / "more" / "users.csv", "a", encoding="utf-8") as users:
        users.write('"new",1.5,,"train"\n"newer",-3,,\n')
    (shop / "new.txt").write_text("newer\nnew\n")
    summary, rows = ask(shop, "other-data", *other, ids=str(shop / "new.txt"))
    assert summary["data"]["as_in_training"] is False
    assert [row["user name"] for row in rows] == ["new", "newer"]
    _, known = ask(shop, "other-data-test", *other, split="test")
    assert known == [row for row in one[1] if row["split"] == "test"]


def test_layerwise_is_sampled_with_all_neighbours_in_training_and_after(shop: Path) -> None:
    with World.start(device="cpu", threads=1) as world:
        places = [f"data.root={shop}/tables", f"run_dir={shop}/runs/exact", f"partition.dir={shop}/cut"]
        settings = ["partition.parts=3", "evaluate.method=layerwise", "evaluate.batch_edges=50", "train.epochs=1"]
        trained = run(read_experiment(shop / "shop.yaml", [*places, *settings]), world)
    assert trained["num_evaluated"]["test"] > 0
    summary, rows = ask(shop, "exact-1", run_name="exact")
    assert summary["method"] == "layerwise"
    assert summary["metrics"]["test"] == pytest.approx(trained["test"], rel=1e-6)
    _, sampled = ask(shop, "exact-2", "evaluate.method=sampled", "sampling.eval_fanout=[-1,-1]", run_name="exact")
    _, spread = ask(shop, "exact-3", run_name="exact", size=4, machines=2)
    for others in (sampled, spread):
        for name in ("logits", "probabilities", "embedding"):
            np.testing.assert_allclose(
                np.array([row[name] for row in rows]), np.array([row[name] for row in others]), rtol=1e-5, atol=1e-5
            )
        assert [row["user name"] for row in rows] == [row["user name"] for row in others]


ROOMS = """\
name: rooms
run_dir: PLACE/runs/rooms
data:
  source: tables
  root: PLACE
  nodes: {room: {file: rooms.csv, key: [house, label], label: warm, features: {numeric: [heat]}}}
  split: {by: ratio, train: 0.5, val: 0.2, test: 0.2}
partition: {dir: PLACE/cut}
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 4}
train: {epochs: 1, threads: 1, device: cpu}
"""


def test_keys_of_several_columns(tmp_path: Path) -> None:
    """Of different types, and one of them is called as a column of ours is."""
    rooms = [(house, floor) for house in ("north", "south") for floor in range(20)]
    floors = [floor for _, floor in rooms]
    write_csv(
        tmp_path / "rooms.csv",
        house=[house for house, _ in rooms],
        label=floors,
        heat=[float(floor) for floor in floors],
        warm=[floor > 9 for floor in floors],
    )
    (tmp_path / "rooms.yaml").write_text(ROOMS.replace("PLACE", str(tmp_path)))
    with World.start(device="cpu", threads=1) as world:
        run(read_experiment(tmp_path / "rooms.yaml"), world)
    summary, rows = ask(tmp_path, "all", run_name="rooms")
    assert summary["keys"] == ["house", "label"]
    assert [(row["house"], row["label"]) for row in rows] == rooms
    assert [row["label_name"] for row in rows] == ["true" if floor > 9 else "false" for floor in floors]
    assert [row["label_"] for row in rows] == [int(floor > 9) for floor in floors]

    wanted = rooms[5:30:4]
    ids = tmp_path / "ids.parquet"
    pq.write_table(pa.table({"label": [float(f) for _, f in wanted], "house": [house for house, _ in wanted]}), ids)
    _, some = ask(tmp_path, "some", run_name="rooms", ids=str(ids))
    assert [(row["house"], row["label"]) for row in some] == wanted
    pq.write_table(pa.table({"label": [1.5, 3.0, 3.0], "house": ["north"] * 3}), ids)
    text = refusal(request(tmp_path, "no", "rooms", ids=str(ids)))
    assert '1 id without a node of type "room", whose key is house' in text and "('north', '1.5')" in text
    (tmp_path / "ids.txt").write_text("north")
    text = refusal(request(tmp_path, "no", "rooms", ids=str(tmp_path / "ids.txt")))
    assert "a node is known by house, label together" in text


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"nowhere holds no experiment.yaml on any machine: expected"):
        cli.run(["predict", str(tmp_path / "nowhere")])
