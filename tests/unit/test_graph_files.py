"""Damage to a partition directory is found, whatever and wherever it is."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from disttrain.config import ExperimentError, Partition
from disttrain.graph import partitioner
from disttrain.graph.files import digest_file, read_manifest, write_manifest
from disttrain.graph.fingerprint import check_matches, fingerprint, partition_directory
from disttrain.graph.verify import verify
from tests.graphs import write_parts, zoo

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_parts(zoo(), tmp_path_factory.mktemp("pristine") / "p", 3)


@pytest.fixture
def directory(pristine: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(pristine, tmp_path / "p"))


def change(path: Path, **values: object) -> None:
    """Rewrite an array with changed entries, and its checksum, so that only the invariants can tell."""
    array = np.load(path)
    for place, value in values.items():
        array[int(place[1:])] = value
    np.save(path, array)
    root = next(parent for parent in path.parents if (parent / "manifest.json").exists())
    manifest = read_manifest(root)
    manifest["files"][str(path.relative_to(root))] = digest_file(path)
    write_manifest(root, manifest)


def test_a_sound_directory(directory: Path):
    assert verify(directory) == []


def test_a_truncated_file_is_found_when_reading(directory: Path):
    path = directory / "edges/0/row.npy"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    with pytest.raises(ExperimentError, match=rf"edges/0/row\.npy has {size - 1} bytes, expected {size}; remove"):
        read_manifest(directory)
    assert verify(directory) == [f"edges/0/row.npy has {size - 1} bytes, expected {size}"]


def test_a_missing_file_is_found_when_reading(directory: Path):
    (directory / "nodes/0/x.npy").unlink()
    with pytest.raises(ExperimentError, match=r"nodes/0/x\.npy cannot be read \(No such file"):
        read_manifest(directory)


def with_keys(target: Path) -> Path:
    """A directory with a file of every kind."""
    keys = {"venue": pyarrow.array(["a", "b", None, "d", "é"])}
    settings = Partition(parts=3, method="ldg")
    partitioner.partition(zoo(), keys, {}, settings, 3, target, "f" * 32, lambda line: None)
    return target


def test_any_flipped_byte_is_found_and_named_by_verify(tmp_path: Path):
    directory = with_keys(tmp_path / "p")
    rng = random.Random(0)
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "manifest.json")
    assert len(files) > 50
    assert "0.parquet" in [path.name.replace("2", "0") for path in files]
    for path in files:
        content = path.read_bytes()
        # The first byte, the last one, and some in between.
        for place in {0, len(content) - 1, rng.randrange(len(content))}:
            damaged = bytearray(content)
            damaged[place] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            name = path.relative_to(directory).as_posix()
            assert verify(directory) == [
                f"{name}: its checksum differs from the manifest's, the file was changed or damaged"
            ]
        path.write_bytes(content)
    assert verify(directory) == []


def test_any_flipped_byte_of_the_manifest_is_found(tmp_path: Path):
    path = with_keys(tmp_path / "p") / "manifest.json"
    content = path.read_bytes()
    rng = random.Random(0)
    places = {*range(80), *range(len(content) - 80, len(content)), *rng.sample(range(len(content)), 300)}
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        for read in (verify, read_manifest):
            with pytest.raises(ExperimentError, match=r"manifest\.json is (damaged|of format)"):
                read(path.parent)
    for torn in range(0, len(content), 501):
        path.write_bytes(content[:torn])
        with pytest.raises(ExperimentError, match="is damaged"):
            verify(path.parent)
    path.write_bytes(content + b"\n")
    with pytest.raises(ExperimentError, match="its checksum differs"):
        verify(path.parent)


def test_every_problem_has_its_line(directory: Path):
    (directory / "nodes/0/x.npy").unlink()
    with (directory / "edges/0/row.npy").open("ab") as file:
        file.write(b"0")
    content = bytearray((directory / "nodes/0/y.npy").read_bytes())
    content[-3] ^= 4
    (directory / "nodes/0/y.npy").write_bytes(content)
    (directory / "nodes/0/notes.txt").write_text("mine")
    (directory / "nodes/9").mkdir()
    os.symlink("row.npy", directory / "edges/0/col.npy")
    os.symlink("../edges", directory / "nodes/linked")
    size = (directory / "edges/0/row.npy").stat().st_size
    assert sorted(verify(directory)) == [
        "edges/0/col.npy is not in the manifest; remove it",
        f"edges/0/row.npy has {size} bytes, expected {size - 1}",
        "nodes/0/notes.txt is not in the manifest; remove it",
        "nodes/0/x.npy cannot be read (No such file or directory)",
        "nodes/0/y.npy: its checksum differs from the manifest's, the file was changed or damaged",
        "nodes/9 is not in the manifest; remove it",
        "nodes/linked is not in the manifest; remove it",
    ]


def test_what_is_left_of_the_making_is_no_problem_and_removed(directory: Path):
    """As when the process was killed between landing and the removal of its journal."""
    (directory / ".work").mkdir()
    (directory / ".work" / "journal.jsonl").touch()
    (directory / ".lock").touch()
    assert verify(directory) == []
    before = read_manifest(directory)
    settings = Partition(parts=3, method="random")
    assert partitioner.partition(zoo(), {}, {}, settings, 3, directory, "test-3-random", lambda line: None) == before
    assert [path.name for path in directory.glob(".*")] == []


def test_directories_of_the_first_format_are_refused_with_what_to_do(directory: Path):
    path = directory / "manifest.json"
    manifest = read_manifest(directory) | {"format": 1}
    path.write_text(json.dumps(manifest, indent=1))
    for read in (verify, read_manifest):
        with pytest.raises(ExperimentError, match=r"is of format 1, this version reads format 2; remove the directory"):
            read(directory)


@pytest.mark.parametrize(
    ("file", "values", "problem"),
    [
        ("nodes/0/original_id.npy", {"_0": 5, "_1": 5}, "node type paper: original_id is no permutation"),
        ("edges/0/colptr.npy", {"_1": 1400, "_2": 3}, "edge type paper,cites,paper: colptr descends"),
        ("edges/0/colptr.npy", {"_211": 1499}, "colptr does not fit"),
        ("edges/0/row.npy", {"_9": 211}, "a source is not among the 211 nodes of type paper"),
        ("edges/0/row.npy", {"_9": -1}, "a source is not among"),
        ("edges/0/edge_id.npy", {"_9": 1500}, "edge_id is no permutation"),
        ("edges/0/src_degree.npy", {"_0": 77}, "src_degree does not count the sources"),
        ("nodes/0/x.npy", {"_7": -1e6}, "node type paper, attribute x: range or number of missing values are not"),
        ("nodes/0/x.npy", {"_7": float("nan")}, "node type paper, attribute x: range or number of missing values"),
        ("nodes/0/x.mean.npy", {"_1": 3.0}, "node type paper, attribute x: mean or standard deviation are not"),
        ("nodes/0/x.std.npy", {"_1": 3.0}, "node type paper, attribute x: mean or standard deviation are not"),
        ("nodes/0/train_mask.npy", {"_0": True, "_1": True, "_2": True, "_3": True}, "the balance is not that"),
        ("edges/0/edge_attr.npy", {"_0": -7.0}, "edge type paper,cites,paper, attribute edge_attr: range or number"),
    ],
)
def test_broken_invariants(directory: Path, file: str, values: dict[str, int], problem: str):
    change(directory / file, **values)
    assert any(problem in line for line in verify(directory))


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("nodes/0/original_id.npy", "node type paper: original_id does not ascend within a part"),
        ("edges/0/edge_id.npy", "edge type paper,cites,paper: the edges of a destination are not in the order of"),
    ],
)
def test_orders_are_checked(directory: Path, file: str, problem: str):
    path = directory / file
    values = np.load(path)
    (place,) = (int(i) for i in np.flatnonzero(np.diff(values) > 0)[5:6])
    if "edge_id" in file:
        colptr = np.load(directory / "edges/0/colptr.npy")
        place = int(colptr[np.argmax(np.diff(colptr))])
    change(path, **{f"_{place}": int(values[place + 1]), f"_{place + 1}": int(values[place])})
    assert any(problem in line for line in verify(directory))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("edge_cut", lambda cut: {**cut, "total": cut["total"] / 2}, "the edge cut is not that of the files"),
        ("balance", lambda of: {**of, "train_seeds": [0, 0, 100]}, "the balance is not that of the files"),
        ("keys", lambda keys: {"paper": "nodes/0/x.npy"}, "nodes/0/x.npy is no readable Parquet file"),
    ],
)
def test_figures_of_the_manifest_are_checked(directory: Path, key: str, value: Any, problem: str):
    manifest = read_manifest(directory)
    write_manifest(directory, {**manifest, key: value(manifest[key])})
    assert any(problem in line for line in verify(directory))


def test_keys_are_counted(tmp_path: Path):
    directory = with_keys(tmp_path / "p")
    manifest = read_manifest(directory)
    (name,) = manifest["keys"].values()
    pyarrow.parquet.write_table(pyarrow.table({"key": ["a", "b"]}), directory / name)
    manifest["files"][name] = digest_file(directory / name)
    write_manifest(directory, manifest)
    (problem,) = verify(directory)
    assert problem == (f"{name}: expected a column `key` of 5 rows, for the nodes of type venue, got ['key'] of 2")


def test_bounds_and_attributes_are_checked(directory: Path):
    manifest = read_manifest(directory)
    manifest["node_types"][1]["bounds"][-1] += 1
    manifest["node_types"][0]["attributes"]["y"]["dtype"] = "int32"
    write_manifest(directory, manifest)
    assert verify(directory) == [
        "node type paper, attribute y: expected int32 [211], the file holds int64 [211]",
        "node type author: its bounds do not divide 0 to 97 into the parts",
    ]


def test_manifests_that_cannot_be_read(directory: Path, tmp_path: Path):
    with pytest.raises(ExperimentError, match="does not exist; make it with `disttrain partition`"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(ExperimentError, match=r"has no manifest\.json, so it is no complete partition"):
        read_manifest(tmp_path)
    path = directory / "manifest.json"
    text = path.read_text()
    for torn in (text[: len(text) // 2], "", "[]", "{}", "\0" * 100):
        path.write_text(torn)
        with pytest.raises(ExperimentError, match="is damaged"):
            read_manifest(directory)
        with pytest.raises(ExperimentError, match="is damaged"):
            verify(directory)
    path.write_text(json.dumps({**json.loads(text), "format": 99}))
    with pytest.raises(ExperimentError, match="is of format 99, this version reads format 2"):
        read_manifest(directory)


def test_what_an_experiment_asks_for(directory: Path):
    manifest = read_manifest(directory)
    data = manifest["fingerprint"]
    check_matches(manifest, data, Partition(parts=3, method="random"), directory)
    # Any number of parts does for `auto`.
    check_matches(manifest, data, Partition(method="random"), directory)
    with pytest.raises(ExperimentError, match="the data differ") as error:
        check_matches(manifest, "0" * 32, Partition(parts=4, seed=1), directory)
    for text in (
        "parts is 4, it was made with 3",
        "'metis', it was made with 'random'",
        "seed is 1, it was made with 0",
    ):
        assert text in str(error.value)
    assert str(directory) in str(error.value)


def test_names_of_directories():
    one = fingerprint("abc", Partition(), 2)
    assert one == fingerprint("abc", Partition(parts=2, dir="x"), 2)
    others = [
        fingerprint("abd", Partition(), 2),
        fingerprint("abc", Partition(), 3),
        fingerprint("abc", Partition(seed=1), 2),
    ]
    assert len({one, *others}) == 4
    assert partition_directory("data/partitions", "ogbn-mag", one) == f"data/partitions/ogbn-mag-{one[:12]}"
    assert partition_directory("p", "../a b/c", one) == f"p/a-b-c-{one[:12]}"
