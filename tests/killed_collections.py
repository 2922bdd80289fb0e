"""Collections in the making, killed at every moment: `python -m tests.killed_collections WHAT FOLDER [STRIDE]`.

One process imports everything once; children of it are killed (SIGKILL) where they write, rename, remove or read."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from disttrain.collection import growing, making
from disttrain.collection.collated import collate
from disttrain.collection.files import content_digest, open_collection, read_manifest
from disttrain.collection.verify import verify_collection
from disttrain.config import Experiment, ExperimentError
from disttrain.train import alone, collection_making
from disttrain.train.collection_making import extend_collection, make_collection
from disttrain.train.extending import addition_of

COUNT, MORE = 20, 9
ASKED: list[int] = []
"""Which graphs the functions below have been asked for."""
EVENTS = {"seen": 0, "last": -1}
"""What a process has done so far; with which it is killed."""


def event() -> None:
    EVENTS["seen"] += 1
    if EVENTS["seen"] == EVENTS["last"]:
        os.kill(os.getpid(), signal.SIGKILL)


def one(number: int) -> Data:
    n = number % 5  # some have no nodes
    index = torch.arange(n).repeat(2, 1) if number % 3 else torch.empty(2, 0, dtype=torch.int64)
    # Numbers of two types from the middle on, and arrays that are equal until then.
    size, late = n + (number > 13), 1.5 if number > 11 else 1
    return Data(x=torch.full((n, 2), float(number)), edge_index=index, z=torch.ones(size), y=number % 2, late=late)


def graphs(start: int = 0, count: int = COUNT) -> Iterator[Data]:
    for number in range(start, count):
        event()
        ASKED.append(number)
        yield one(number)


def iterator() -> Iterator[Data]:
    return graphs()


def listed() -> list[Data]:
    return list(graphs())


def more() -> Iterator[Data]:
    for number in range(COUNT, COUNT + MORE):
        event()
        yield one(number)


def experiment(folder: Path, function: str) -> Experiment:
    data = {
        "source": "python", "function": f"tests.killed_collections:{function}", "store": str(folder),
        "split": {"by": "ratio", "train": 1, "val": 0, "test": 0},
    }  # fmt: skip
    task = {"kind": "graph_classification"}
    return Experiment.model_validate({"data": data, "task": task, "model": {"kind": "gin"}})


def extend(folder: Path) -> None:
    made = experiment(folder, "graphs")
    extend_collection(made, addition_of(made, "tests.killed_collections:more", "{}"), again=False)


def watched() -> None:
    """An event before and after each step that changes a file, and in the middle of writing."""

    def around(owner: Any, name: str) -> None:
        there = getattr(owner, name)

        def between(*args: Any, **kwargs: Any) -> Any:
            event()
            result = there(*args, **kwargs)
            event()
            return result

        setattr(owner, name, between)

    for owner, name in (
        (growing.GrowingFiles, "append"), (growing.GrowingFiles, "create"), (growing.GrowingFiles, "saved"),
        (growing.GrowingFiles, "write_headers"), (growing.GrowingFiles, "remove_but"), (making, "write_manifest"),
        (making, "remove_draft"), (os, "replace"), (shutil, "rmtree"),
    ):  # fmt: skip
        around(owner, name)
    append = growing.GrowingFiles.append

    def torn(self: Any, name: str, rows: Any) -> None:
        if EVENTS["seen"] + 1 == EVENTS["last"] and len(rows):
            with (self.directory / name).open("ab") as file:
                file.write(b"\xff" * 5)
        append(self, name, rows)

    growing.GrowingFiles.append = torn
    os.fsync = lambda file: None  # a killed process leaves what it wrote to the operating system
    making.GRAPHS, making._SECONDS_BETWEEN_DRAFTS = 3, -1.0


def child(work: Callable[[], None], last: int = -1) -> int:
    """Run in a process of its own, killed at an event; the exit status of `os.waitpid`."""
    if (process := os.fork()) == 0:
        try:
            EVENTS.update(seen=0, last=last)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitpid(process, 0)[1]


def whole(directory: Path, count: int) -> None:
    assert verify_collection(directory) == [], verify_collection(directory)
    manifest = read_manifest(directory)
    assert manifest["num_graphs"] == count, (manifest["num_graphs"], count)
    found = open_collection(directory, manifest, mapped=True)
    assert content_digest(found) == content_digest(collate(map(one, range(count)), "here"))


def making_killed(folder: Path, function: str, stride: int) -> None:
    last, asked = 0, []
    while True:
        last += stride
        place = folder / f"{function}-{last}"
        status = child(lambda place=place: make_collection(experiment(place, function)) and None, last)
        there = [path for path in place.glob("[!.]*") if (path / "manifest.json").exists()]
        for path in there:
            whole(path, COUNT)
        ASKED.clear()
        directory = Path(make_collection(experiment(place, function)).directory)
        asked.append(len(ASKED))
        whole(directory, COUNT)
        assert len(list(place.glob("[!.]*"))) == 1 and not list(place.glob(".making-*")), list(place.iterdir())
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        shutil.rmtree(place)
    print(f"{function}: killed at {len(asked) - 1} of {last} moments; graphs asked for again: {asked}")
    assert function != "graphs" or min(asked) < 6, "the last batch is looked at again, not all"


def extending_killed(folder: Path, stride: int) -> None:
    base = Path(make_collection(experiment(folder / "base", "graphs")).directory)
    running = open_collection(base, read_manifest(base), mapped=True)
    before, last = content_digest(running), 0
    while True:
        last += stride
        place = folder / f"extended-{last}"
        shutil.copytree(folder / "base", place)
        status = child(lambda place=place: extend(place), last)
        (directory,) = place.glob("[!.]*")
        manifest = read_manifest(directory)
        whole(directory, manifest["num_graphs"])
        assert manifest["num_graphs"] in (COUNT, COUNT + MORE)
        extend(place)
        whole(directory, COUNT + MORE)
        earlier = open_collection(directory, read_manifest(directory, f"before-{COUNT}.json"), mapped=True)
        assert content_digest(earlier) == before, "as it was"
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        shutil.rmtree(place)
    extend(folder / "base")
    assert content_digest(running) == before, "a run that has it open does not notice"
    print(f"extending: killed at {last // stride - 1} of {last} moments")


def disk_full(folder: Path, stride: int) -> None:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
        try:
            make_collection(experiment(folder / "full", "graphs"))
        except ExperimentError as error:
            (folder / "said.txt").write_text(str(error)[:1400])

    assert child(limited) == 0
    said = (folder / "said.txt").read_text()
    assert "cannot be written to (File too large)" in said, said
    directory = Path(make_collection(experiment(folder / "full", "graphs")).directory)
    whole(directory, COUNT)

    def extending() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((directory / "manifest.json").stat().st_size + 100, -1))
        growing.GrowingFiles.append = failing
        try:
            extend(folder / "full")
        except ExperimentError as error:
            (folder / "said.txt").write_text(str(error))

    append, calls = growing.GrowingFiles.append, []

    def failing(self: Any, name: str, rows: Any) -> None:
        calls.append(name)
        if len(calls) == 12:
            with (self.directory / name).open("ab") as file:
                file.write(bytes(1 << 20))
        append(self, name, rows)

    assert child(extending) == 0
    assert "cannot be written to (File too large)" in (folder / "said.txt").read_text()
    whole(directory, COUNT)
    extend(folder / "full")
    whole(directory, COUNT + MORE)


def at_once(folder: Path, stride: int) -> None:
    children = []
    for _ in range(3):
        if (process := os.fork()) == 0:
            status = 1
            try:
                extend(folder / "both")
                status = 0
            finally:
                os._exit(status)
        children.append(process)
    assert [os.waitpid(process, 0)[1] for process in children] == [0, 0, 0]
    (directory,) = (folder / "both").glob("[!.]*")
    whole(directory, COUNT + MORE)


if __name__ == "__main__":
    # Functions that experiments name are looked up in the module, not in the program.
    import tests.killed_collections as this

    torch.set_num_threads(1)
    what, where = sys.argv[1], Path(sys.argv[2])
    for module in (collection_making, alone):
        module.say = lambda text: None  # type: ignore[attr-defined]
    stride = int((sys.argv[3:] or ["1"])[0])
    this.watched()
    for name in what.split(","):
        if name.startswith("making-"):
            this.making_killed(where, name.removeprefix("making-"), stride)
        else:
            getattr(this, name)(where, stride)
