"""Collections in a database: how it lies, how it grows, what is wrong with it, and who reads it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import SQLiteDatabase

from disttrain.collection import ondisk
from disttrain.collection.cache import Cache
from disttrain.collection.collated import Collated, collate
from disttrain.collection.database import Rocks, Sqlite
from disttrain.collection.leaves import leaves
from disttrain.collection.ondisk import OnDisk, convert
from disttrain.collection.storage import opened
from disttrain.config import ExperimentError
from tests import collections_of_graphs
from tests.unit.test_collection_collated import same_batch
from tests.unit.test_collection_storage import on_disk, stored

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")


def test_a_database_lies_as_pyg_lays_it_out(tmp_path: Path) -> None:
    graphs: list[Any] = [*collections_of_graphs.rings(5)]
    directory, manifest = stored(collate(graphs, "here"), tmp_path / "it")
    collated = opened(directory, manifest)
    on_disk(directory, collated)
    types = {"x": (torch.float32, (-1, 2)), "edge_index": (torch.int64, (2, -1)), "edge_attr": (torch.float32, (-1, 1))}
    schema = {n: {"dtype": types[path[1:]][0], "size": types[path[1:]][1]} for n, path in enumerate(leaves(collated))}
    theirs = SQLiteDatabase(str(tmp_path / "database" / "sqlite.db"), "graphs", schema)
    assert len(theirs) == 5
    for graph, row in zip(graphs, theirs.multi_get(range(5))):
        for n, path in enumerate(leaves(collated)):
            assert torch.equal(row[n], graph[path[1:]])
    theirs.close()


def many(directory: Path, count: int = 2000) -> Collated:
    return opened(*stored(collate(collections_of_graphs.rings(count), "here"), directory))


def test_a_killed_conversion_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collated = many(tmp_path / "it")
    where = tmp_path / "database"
    code = (
        "import sys, time; from pathlib import Path; from disttrain.collection import ondisk\n"
        "from disttrain.collection.files import read_manifest; from disttrain.collection.storage import opened\n"
        "ondisk._MOST_AT_ONCE = 100; it, where = map(Path, sys.argv[1:])\n"
        "say = lambda text: (print(text, flush=True), time.sleep(0.05))\n"
        "ondisk.convert(opened(it, read_manifest(it)), where, 'its fingerprint', 'sqlite', say)"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "it"), str(where)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("500 of"):
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert not (where / "manifest.json").exists()
    with pytest.raises(ExperimentError, match="holds no whole database of this collection"):
        OnDisk(where, collated, "its fingerprint", "sqlite")
    said: list[str] = []
    monkeypatch.setattr(ondisk, "_MOST_AT_ONCE", 100)
    convert(collated, where, "its fingerprint", "sqlite", said.append)
    assert len(said) <= 15 and said[-1] == "2,000 of 2,000 graphs", "it went on after those that were in"
    ids = np.random.default_rng(0).permutation(2000)
    picked, places = OnDisk(where, collated, "its fingerprint", "sqlite").pick(ids)
    same_batch(picked.batch(places), collated.batch(ids))
    convert(collated, where, "another", "sqlite", said.append)
    assert len(said) > 30, "of another collection, it is begun anew"


HALF_WRITTEN = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
columns = len(connection.execute("SELECT * FROM graphs LIMIT 1").fetchone())
connection.execute("PRAGMA cache_size = 4")  # so that pages go to the disk before the end
connection.execute("BEGIN")
for number in range(1000, 1200):
    marks = ",".join("?" * columns)
    connection.execute(f"INSERT INTO graphs VALUES ({marks})", [number] + [b"x" * 4000] * (columns - 1))
os._exit(9)
"""


def test_an_append_that_is_killed_in_the_middle_is_undone_by_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's journal lies there then, by which a connection that only reads may not undo what was half written."""
    collated = many(tmp_path / "it", 30)
    access = on_disk(tmp_path / "it", collated)
    (path,) = access.directory.glob("*.db")
    before, size = access.pick(np.arange(30))[0], path.stat().st_size
    for again in (lambda: access, lambda: OnDisk(access.directory, collated, "its fingerprint", "sqlite")):
        killed = subprocess.run([sys.executable, "-c", HALF_WRITTEN, str(path)], timeout=300, check=False)
        assert killed.returncode == 9 and path.stat().st_size > size
        assert path.with_name(f"{path.name}-journal").stat().st_size
        same_batch(again().pick(np.arange(30))[0].batch(np.arange(30)), before.batch(np.arange(30)))
        assert path.stat().st_size == size and not path.with_name(f"{path.name}-journal").exists()
    subprocess.run([sys.executable, "-c", HALF_WRITTEN, str(path)], timeout=300, check=False)
    monkeypatch.setattr(Sqlite, "_address", lambda self, mode: f"file:{self.path}?mode=ro")
    with pytest.raises(ExperimentError, match=r"cannot be opened: .*db-journal is of a write that was killed"):
        OnDisk(access.directory, collated, "its fingerprint", "sqlite")


def test_graphs_that_were_added_are_added(tmp_path: Path) -> None:
    first, both = many(tmp_path / "first", 10), many(tmp_path / "both", 30)
    where, said = tmp_path / "database", []
    convert(first, where, "its fingerprint", "sqlite")
    old = OnDisk(where, first, "its fingerprint", "sqlite")
    convert(both, where, "its fingerprint", "sqlite", said.append)
    assert said == ["30 of 30 graphs"]
    convert(first, where, "its fingerprint", "sqlite", said.append)
    assert len(said) == 1, "what has more is whole for less"
    for access, collated in ((old, first), (OnDisk(where, both, "its fingerprint", "sqlite"), both)):
        ids = np.arange(len(collated))
        same_batch(access.pick(ids)[0].batch(ids), collated.batch(ids))


def test_only_what_is_wanted_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collated = many(tmp_path / "it", 30)
    access = on_disk(tmp_path / "it", collated)
    asked: list[Any] = []
    read = Sqlite.read

    def counting(self: Sqlite, ids: Any, columns: Any) -> Any:
        asked.append((list(ids), list(columns)))
        return read(self, ids, columns)

    monkeypatch.setattr(Sqlite, "read", counting)
    picked, _ = access.pick(np.array([7, 3, 7]), names={None: ["x", "y"]})
    assert asked == [([3, 7], [0])] and list(picked.stores[None].columns) == ["x", "y"]
    access.pick(np.arange(30))
    assert len(asked) == 2, "a mini-batch is one question"
    access.pick(np.arange(3), names={None: ["y"]})
    assert len(asked) == 2, "what is small is not in the database"


def damaged(tmp_path: Path, damage: Any, ids: Any = (0, 29)) -> str:
    collated = many(tmp_path / "it", 30)
    access = on_disk(tmp_path / "it", collated)
    damage(access.directory / "sqlite.db")
    with pytest.raises(ExperimentError) as caught:
        OnDisk(access.directory, collated, "its fingerprint", "sqlite").pick(np.array(ids))
    assert "next run makes it again" in str(caught.value)
    return str(caught.value)


def scribble(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + os.urandom(path.stat().st_size))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def change(query: str) -> Any:
    def changed(path: Path) -> None:
        connection = sqlite3.connect(path)
        with connection:
            connection.execute(query)
        connection.close()

    return changed


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "sqlite.db is damaged: it has"),
        (scribble, "cannot be opened: "),
        (os.unlink, "cannot be opened: .*No such file"),
        (change("DROP TABLE graphs"), "cannot be opened: no such table: graphs"),
        (change("DELETE FROM graphs WHERE id = 29"), "has no graph 29"),
        (change("UPDATE graphs SET COL_0 = x'00' WHERE id = 29"), "/x of graph 29 has 1 bytes, expected 64"),
    ],
)
def test_a_damaged_database_is_said_to_be(tmp_path: Path, damage: Any, message: str) -> None:
    import re

    assert re.search(message, damaged(tmp_path, damage))


def test_a_database_that_goes_while_a_run_reads_it(tmp_path: Path) -> None:
    collated = many(tmp_path / "it", 30)
    access = on_disk(tmp_path / "it", collated)
    (access.directory / "sqlite.db").unlink()
    assert len(access.pick(np.arange(30))[0]) == 30, "who has it open goes on"
    with pytest.raises(ExperimentError, match="cannot be read: unable to open database file; remove"):
        pickle.loads(pickle.dumps(access)).pick(np.arange(30))
    (access.directory / "manifest.json").write_text("{")
    with pytest.raises(ExperimentError, match="manifest.json is damaged"):
        OnDisk(access.directory, collated, "its fingerprint", "sqlite")


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collated = many(tmp_path / "it", 30)
    (tmp_path / "file").touch()
    with pytest.raises(ExperimentError, match="cannot be written: .*name a folder that may be written to, data.store"):
        convert(collated, tmp_path / "file" / "database", "its fingerprint", "sqlite")

    def full(self: Any, first: int, rows: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Sqlite, "write", full)
    with pytest.raises(
        ExperimentError, match="cannot be written: database or disk is full; make room, or name a folder"
    ):
        convert(collated, tmp_path / "database", "its fingerprint", "sqlite")


def test_threads_and_processes_have_connections_of_their_own(tmp_path: Path) -> None:
    collated = many(tmp_path / "it", 30)
    access = on_disk(tmp_path / "it", collated, cache=1 << 20)
    found: list[Any] = []
    ids = np.arange(30)
    threads = [threading.Thread(target=lambda: found.append(access.pick(ids)[0].batch(ids))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for batch in found:
        same_batch(batch, collated.batch(ids))
    assert len(found) == 4 and len(pickle.dumps(access)) < 6000
    for method in ("fork", "spawn"):
        context: Any = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.apply(total, (access,)) == float(collated.batch(ids).x.sum())


def test_the_threads_of_an_epoch_take_over_the_connections_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collated = many(tmp_path / "it", 30)
    on_disk(tmp_path / "it", collated)
    made: list[str] = []
    connect: Any = sqlite3.connect

    def counted(address: str, **how: Any) -> Any:
        made.append(address)
        return connect(address, **how)

    monkeypatch.setattr(sqlite3, "connect", counted)
    access, both = on_disk(tmp_path / "it", collated), threading.Barrier(2)

    def read() -> None:
        both.wait(60)
        for _ in range(20):
            access.pick(np.arange(30))

    for _ in range(5):
        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 1 <= len(made) <= 2


def total(access: OnDisk) -> float:
    ids = np.arange(30)
    return float(access.pick(ids)[0].batch(ids).x.sum())


def test_the_cache_is_bounded_and_keeps_what_was_used_last() -> None:
    cache = Cache(1000)
    cache.keep({number: (b"x" * 100,) for number in range(5)})
    assert len(cache) == 3 and cache.held_bytes <= 1000
    assert list(cache.found([0, 2, 3])) == [2, 3] and (cache.hits, cache.misses) == (2, 1)
    cache.keep({9: (b"y" * 100,)})
    assert list(cache.found([2, 3, 4, 9])) == [2, 3, 9], "the one that was used least recently went"
    cache.keep({10: (b"z" * 2000,)})
    assert len(cache) == 3, "what has no room is not kept"
    assert len(pickle.loads(pickle.dumps(cache))) == 0


def epochs(access: OnDisk, count: int, num_graphs: int) -> int:
    """Resident bytes after so many epochs."""
    for epoch in range(count):
        for ids in np.random.default_rng(epoch).permutation(num_graphs).reshape(-1, 50):
            picked, places = access.pick(ids)
            picked.batch(places)
    status = Path("/proc/self/statm").read_text().split()
    return int(status[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_is_flat_over_many_epochs(tmp_path: Path) -> None:
    collated = many(tmp_path / "it", 2000)
    access = on_disk(tmp_path / "it", collated, cache=200_000)
    after_two = epochs(access, 2, 2000)
    after_twenty = epochs(access, 18, 2000)
    assert after_twenty <= 1.02 * after_two
    assert access.cache is not None and access.cache.held_bytes <= 200_000 and access.cache.hits > 0


def test_rocksdb_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(ExperimentError, match="needs the package rocksdict"):
        convert(many(tmp_path / "it", 30), tmp_path / "database", "its fingerprint", "rocksdb")


def test_rocksdb_gives_the_same_batches(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict", reason="rocksdict is not installed")
    collated, ids = many(tmp_path / "it", 300), np.random.default_rng(0).permutation(300)
    convert(collated, tmp_path / "database", "its fingerprint", "rocksdb")
    access = OnDisk(tmp_path / "database", collated, "its fingerprint", "rocksdb")
    same_batch(pickle.loads(pickle.dumps(access)).pick(ids)[0].batch(np.arange(300)), collated.batch(ids))
    rocks = Rocks(tmp_path / "other", 1)
    rocks.write(0, [(b"a",), (b"bc",)])
    assert rocks.count() == 2 and rocks.read([1, 5], [0]) == {1: (b"bc",)}
    rocks.close()
