"""Collections on the disk: what is read is what was written, mapped or not, and damage is found."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from disttrain.collection.collated import Collated, collate
from disttrain.collection.files import content_digest, open_collection, read_manifest, write_collection
from disttrain.collection.ragged import Ragged
from disttrain.config import ExperimentError
from tests.unit.test_collection_collated import expected, heterogeneous, homogeneous, molecules, same_batch

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")


def written(collated: Collated, directory: Path) -> Path:
    write_collection(collated, directory, content_digest(collated), "data.store")
    return directory


@settings(max_examples=25)
@given(st.data())
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    graphs = data.draw(st.one_of(homogeneous().map(lambda drawn: drawn[0]), heterogeneous()))
    ids = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=6))
    collated = collate(graphs, "here")
    directory = written(collated, tmp_path_factory.mktemp("collection") / "it")
    for mapped in (True, False):
        opened = open_collection(directory, read_manifest(directory), mapped)
        same_batch(opened.batch(np.array(ids)), expected(graphs, ids))
        assert content_digest(opened) == content_digest(collated)
    if isinstance(graphs[0], HeteroData):
        assert opened.heterogeneous


def test_the_digest_is_that_of_the_content() -> None:
    graphs = molecules()
    first = content_digest(collate(graphs, "here"))
    assert first == content_digest(collate(molecules(), "there"))
    graphs[4].y[0] += 1  # pyright: ignore[reportIndexIssue, reportOptionalSubscript]
    assert first != content_digest(collate(graphs, "here"))


def test_mapped_arrays_are_one_copy_for_all(tmp_path: Path) -> None:
    directory = written(collate(molecules(), "here"), tmp_path / "it")
    mapped = open_collection(directory, read_manifest(directory), True)
    column = mapped.stores[None].columns["x"]
    assert isinstance(column, Ragged) and isinstance(column.values.base, np.memmap)
    assert not column.values.flags.writeable
    mapped.batch(np.array([0, 1]))["x"].zero_()
    assert mapped.batch(np.array([0, 1]))["x"].any(), "batches are copies"


def test_damage_is_found(tmp_path: Path) -> None:
    directory = written(collate(molecules(), "here"), tmp_path / "it")
    files = sorted(directory.glob("*.npy"))
    assert {file.name for file in files} == set(read_manifest(directory)["files"])
    content = files[0].read_bytes()
    files[0].write_bytes(content[:-1])
    with pytest.raises(ExperimentError, match=r"is damaged: 0000.npy has \d+ bytes, expected .*remove the directory"):
        read_manifest(directory)
    files[0].unlink()
    with pytest.raises(ExperimentError, match="0000.npy cannot be read"):
        read_manifest(directory)
    files[0].write_bytes(content)
    manifest = directory / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"num_graphs": 5', '"num_graphs": 4'))
    with pytest.raises(ExperimentError, match="the checksum of manifest.json differs"):
        read_manifest(directory)
    manifest.write_text(text[:40])
    with pytest.raises(ExperimentError, match="is damaged"):
        read_manifest(directory)
    manifest.write_text(json.dumps({"format": 2}))
    with pytest.raises(ExperimentError, match="is of the kind partition, format 2; expected a collection"):
        read_manifest(directory)
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_manifest(tmp_path / "nowhere")


def test_the_second_to_write_leaves_the_first(tmp_path: Path) -> None:
    directory = written(collate(molecules(), "here"), tmp_path / "it")
    before = {file: file.stat().st_mtime_ns for file in directory.iterdir()}
    written(collate(molecules(3), "here"), directory)
    assert {file: file.stat().st_mtime_ns for file in directory.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
