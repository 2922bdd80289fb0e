"""Collections that are made batch by batch: what a source may be, what is noticed, and how they are extended."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, OnDiskDataset

from disttrain.collection import making
from disttrain.collection.database import Sqlite
from disttrain.collection.files import open_collection, read_manifest
from disttrain.collection.graphs import Graphs
from disttrain.collection.verify import verify_collection
from disttrain.config import Experiment, ExperimentError
from disttrain.graph.schema import Wants
from disttrain.train.collection_making import extend_collection, make_collection
from disttrain.train.collections import prepare_collection
from disttrain.train.extending import addition_of
from disttrain.train.job import run
from disttrain.world import World
from tests.agents import REPOSITORY

CALLS: list[int] = []
CHANGED: dict[int, float] = {}
BROKEN: list[int] = []


def one(number: int) -> Data:
    if number in BROKEN:
        raise OSError("the cable is out")
    n = 1 + number % 4
    x = torch.full((n, 1), CHANGED.get(number, float(number)))
    return Data(x=x, edge_index=torch.arange(n).repeat(2, 1), y=number % 2)


def starting(count: int = 25, start: int = 0) -> Iterator[Data]:
    CALLS.append(start)
    return (one(number) for number in range(start, count))


def going_through(count: int = 25) -> Iterator[Data]:
    CALLS.append(0)
    return (one(number) for number in range(count))


def new(first: int = 25, count: int = 10) -> list[Data]:
    return [one(number) for number in range(first, first + count)]


def of_other_widths() -> list[Data]:
    return [Data(x=torch.zeros(2, 3), edge_index=torch.zeros(2, 1, dtype=torch.int64), y=0)]


class Own(Data):
    pass


def of_another_class() -> list[Data]:
    return [Own(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 1, dtype=torch.int64), y=0)]


def odd(graph: Data, remainder: int = 1) -> bool:
    return int(graph.x[0, 0]) % 2 == remainder  # pyright: ignore[reportOptionalSubscript]


class OnDisk(OnDiskDataset):
    """25 graphs in a data base of PyG."""

    def process(self) -> None:
        for number in range(25):
            self.append(one(number))


def as_it_is(graph: Data) -> Data:
    return graph


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "GRAPHS", 4)
    monkeypatch.setattr(making, "_SECONDS_BETWEEN_DRAFTS", -1.0)
    for told in (CALLS, CHANGED, BROKEN):
        told.clear()


def experiment(store: Path, function: str = "starting", **data: Any) -> Experiment:
    source = {
        "source": "python", "function": f"tests.unit.test_train_extending:{function}", "store": str(store),
        "split": {"by": "ratio", "train": 0.6, "val": 0.2, "test": 0.2}, **data,
    }  # fmt: skip
    task = {"kind": "graph_classification"}
    return Experiment.model_validate({"data": source, "task": task, "model": {"kind": "gin"}})


def made(made: Experiment) -> tuple[Path, list[float]]:
    """Where it is, and the feature of the first node of each graph."""
    directory = Path(make_collection(made).directory)
    assert verify_collection(directory) == []
    found = open_collection(directory, read_manifest(directory), mapped=True)
    column: Any = found.stores[None].columns["x"]
    return directory, column.values[column.slices[:-1], 0].tolist()


def opened(made: Experiment) -> Graphs:
    with World.start(device="cpu", timeout=30) as world:
        return prepare_collection(made, world)


def extend(base: Experiment, function: str = "new", args: str = "{}", again: bool = False) -> str:
    return extend_collection(base, addition_of(base, f"tests.unit.test_train_extending:{function}", args), again)


NUMBERS = [float(number) for number in range(25)]


@pytest.mark.parametrize("function", ["starting", "going_through"])
def test_a_source_that_fails_in_the_middle_goes_on_where_it_was(tmp_path: Path, function: str) -> None:
    BROKEN.append(18)
    with pytest.raises(RuntimeError, match="when it was asked for graph 18: OSError: the cable is out"):
        make_collection(experiment(tmp_path, function))
    BROKEN.clear()
    assert made(experiment(tmp_path, function))[1] == NUMBERS
    assert ([0, 12] if function == "starting" else [0, 0]) == CALLS
    assert not list(tmp_path.glob(".making-*"))


@pytest.mark.parametrize(("function", "changed"), [("starting", 13), ("going_through", 2)])
def test_a_source_that_gives_other_graphs_meanwhile_is_read_anew(
    tmp_path: Path, function: str, changed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    BROKEN.append(18)
    with pytest.raises(RuntimeError):
        make_collection(experiment(tmp_path, function))
    BROKEN.clear()
    CHANGED[changed] = 0.5
    assert made(experiment(tmp_path, function))[1] == [CHANGED.get(number, n) for number, n in enumerate(NUMBERS)]
    assert "the source gives other graphs than those written; beginning anew" in capsys.readouterr().out


def test_a_function_is_called_again_unless_it_says_what_it_reads(tmp_path: Path) -> None:
    first, _ = made(experiment(tmp_path / "a"))
    assert made(experiment(tmp_path / "a"))[0] == first and len(CALLS) == 2
    CHANGED[24] = 0.5
    assert made(experiment(tmp_path / "a"))[0] != first
    read = tmp_path / "numbers.txt"
    read.write_text("1")
    CALLS.clear()
    reads = experiment(tmp_path / "b", reads=str(tmp_path / "*.txt"))
    first, _ = made(reads)
    assert made(reads)[0] == first and len(CALLS) == 1
    read.write_text("2")
    assert made(reads)[0] != first and len(CALLS) == 2
    with pytest.raises(ExperimentError, match="data.reads: there is no file or folder"):
        make_collection(experiment(tmp_path / "b", reads=[str(tmp_path / "nothing")]))


def test_a_data_set_on_the_disk_is_read_graph_by_graph(tmp_path: Path) -> None:
    args = {"root": str(tmp_path / "set")}
    filtered = {"pre_filter": "tests.unit.test_train_extending:odd", "pre_transforms": ["AddSelfLoops"]}
    assert made(experiment(tmp_path / "a", "OnDisk", args=args))[1] == NUMBERS
    assert made(experiment(tmp_path / "b", "OnDisk", args=args, **filtered))[1] == NUMBERS[1::2]


def test_a_broken_graph_is_named_by_its_number_in_the_source(tmp_path: Path) -> None:
    function = "tests.unit.test_train_extending:broken_odd"
    settings: dict[str, Any] = {"pre_filter": "tests.unit.test_train_extending:odd", "pre_transforms": [function]}
    with pytest.raises(RuntimeError, match=r"graph 7: data.pre_transforms\[0\] .*broken_odd failed on this graph"):
        make_collection(experiment(tmp_path, **settings))


def broken_odd(graph: Data) -> Data:
    assert float(graph.x[0, 0]) != 7  # pyright: ignore[reportOptionalSubscript]
    return graph


def test_extended_graphs_come_after_those_there_and_leave_the_splits(tmp_path: Path) -> None:
    base = experiment(tmp_path)
    before = opened(base)
    assert extend(base).startswith("10 graphs more in")
    directory, numbers = made(base)
    assert numbers == [float(number) for number in range(35)]
    assert "nothing is added" in extend(base) and extend(base, args="{first: 40}", again=True)
    after, first = opened(base), opened(experiment(tmp_path, first=25))
    assert len(after.collated) == 45 and len(first.collated) == 25
    assert len({graphs.fingerprint for graphs in (before, after)}) == 2 and first.fingerprint == before.fingerprint
    for name, mask in before.masks.items():
        assert np.array_equal(after.masks[name][:25], mask) and np.array_equal(first.masks[name], mask)
        assert after.masks[name][25:35].sum() == {"train_mask": 6}.get(name, 2)
    assert before.schema == first.schema
    with pytest.raises(ExperimentError, match="never had so many graphs; it had 25, 35, 45"):
        opened(experiment(tmp_path, first=30))
    assert verify_collection(directory) == []


@pytest.mark.parametrize("transforms", [[], ["tests.unit.test_train_extending:as_it_is"]], ids=["", "own"])
def test_a_run_from_before_is_told_how_it_goes_on(tmp_path: Path, transforms: list[str]) -> None:
    """Also where its fingerprint is not that of the collection alone."""
    base = experiment(tmp_path / "store", transforms=transforms)

    def trained(epochs: int, **data: Any) -> dict[str, Any]:
        changed = {
            "run_dir": str(tmp_path / "run"), "data": base.data.model_copy(update=data),
            "train": base.train.model_copy(update={"epochs": epochs, "device": "cpu", "threads": 1}),
        }  # fmt: skip
        with World.start(device="cpu", timeout=30) as world:
            return run(base.model_copy(update=changed), world)

    trained(1)
    extend(base)
    extend(base, args="{first: 40}")
    with pytest.raises(ExperimentError) as caught:
        trained(2)
    (advice,) = (line for line in str(caught.value).splitlines() if line.startswith("Put these back"))
    assert advice.startswith(
        "Put these back as they were (with data.first=25 the collection is what it was: it was extended), or choose"
    )
    assert trained(2, first=25)["epochs"] == 2
    with pytest.raises(ExperimentError, match="it had 25, 35, 45. data.first=null takes all that it has"):
        trained(3, first=30)


def test_the_database_of_a_collection_grows_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, firsts = experiment(tmp_path, storage="ondisk"), list[int]()
    write = Sqlite.write

    def told(self: Sqlite, first: int, rows: Any) -> None:
        firsts.append(first)
        write(self, first, rows)

    monkeypatch.setattr(Sqlite, "write", told)

    def content(graphs: Graphs) -> list[float]:
        ids = np.arange(len(graphs.collated))
        batch = graphs.batch(ids, Wants(nodes={"node": ("x",)}))
        return batch["node"].x[batch["node"].ptr[:-1], 0].tolist()

    before = opened(base)
    assert content(before) == NUMBERS
    extend(base)
    after = opened(base)
    assert content(after) == [float(number) for number in range(35)] and firsts == [0, 25], "only what is new"
    assert content(before) == NUMBERS == content(opened(experiment(tmp_path, storage="ondisk", first=25)))
    assert firsts == [0, 25], "what has more is whole for less"
    # What is extended by others after it has been made again is another collection.
    shutil.rmtree(make_collection(base).directory)
    extend(base, args="{first: 60}")
    assert content(opened(base)) == [*NUMBERS, *(float(number) for number in range(60, 70))] and firsts[2:] == [0]


def test_graphs_that_do_not_go_with_those_there_are_refused_and_leave_no_trace(tmp_path: Path) -> None:
    base = experiment(tmp_path)
    directory, _ = made(base)
    files = {path: path.read_bytes() for path in directory.iterdir()}
    with pytest.raises(ExperimentError) as caught:
        extend(base, "of_other_widths")
    assert "graph 0: `x` has [..., 3]; it has to be [..., 1], as in the collection" in str(caught.value)
    with pytest.raises(ExperimentError, match="no argument"):
        extend(base, args="{nothing: 1}")
    assert {path: path.read_bytes() for path in directory.iterdir()} == files
    for function, said in (("nothing", "^--function: .*has no 'nothing'"), ("CALLS", "^--function: .* is a list, not")):
        with pytest.raises(ExperimentError, match=said):
            extend(base, function)
    with pytest.raises(ExperimentError, match="^--args.*no argument"):
        extend(base, args="{nothing: 1}")
    with pytest.raises(
        ExperimentError, match="graph 0 is of tests.unit.test_train_extending:Own, and the collection is"
    ):
        extend(base, "of_another_class")
    with pytest.raises(ExperimentError, match="--args: expected a mapping"):
        addition_of(base, "a:b", "[1]")


def test_damage_is_found(tmp_path: Path) -> None:
    directory, _ = made(experiment(tmp_path))
    (file, *others) = sorted(directory.glob("*.npy"))
    content = file.read_bytes()
    for number, change in enumerate((content[:-1] + b"\x77", b"\x94" + content[1:], content[:-4])):
        file.write_bytes(change)
        (problem,) = verify_collection(directory)
        assert ("checksum differs", "header is not that", "bytes, expected")[number] in problem
    file.unlink()
    assert "cannot be read" in verify_collection(directory)[0]
    file.write_bytes(content + b"from an extend that was killed")
    assert verify_collection(directory) == []
    (directory / "other.npy").touch()
    assert verify_collection(directory) == ["other.npy is not in the manifest; remove it"]
    assert others


def test_memory_is_bounded_by_a_batch(tmp_path: Path) -> None:
    """Four times the graphs take no more of it."""
    code = (
        "import resource, sys; from pathlib import Path; from tests.unit.test_train_extending import *\n"
        "making.GRAPHS = 256\n"
        "def peak(count):\n"
        "    make_collection(experiment(Path(sys.argv[1]), 'wide', args={'count': count}))\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "few = peak(1024); print(peak(4096) - few)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    written = 4096 * 20_000
    assert int(done.stdout.splitlines()[-1]) < written / 8, "of all that was written"


def wide(count: int) -> Iterator[Data]:
    for number in range(count):
        yield Data(
            x=torch.full((5, 1000), float(number)), edge_index=torch.zeros(2, 1, dtype=torch.int64), y=number % 2
        )
