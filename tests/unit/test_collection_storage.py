"""All storages of a collection give the same batches; databases are made whole, or gone on with."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disttrain.collection import storage
from disttrain.collection.collated import Collated, collate
from disttrain.collection.files import read_manifest, write_collection
from disttrain.collection.ondisk import OnDisk, convert
from disttrain.collection.storage import choose, opened
from disttrain.config import ExperimentError
from disttrain.graph.schema import GRAPH, Wants
from tests import collections_of_graphs
from tests.unit.test_collection_collated import heterogeneous, homogeneous, same_batch
from tests.unit.test_collection_loader import opened as prepared

EDGES = ("node", "edge", "node")
WANTS = Wants(nodes={GRAPH: ("y",), "node": ("x",)}, edges={EDGES: ("edge_attr",)})

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")


def stored(collated: Collated, directory: Path) -> tuple[Path, dict[str, Any]]:
    write_collection(collated, directory, "its fingerprint", "data.store")
    return directory, read_manifest(directory)


def on_disk(directory: Path, collated: Collated, cache: int = 0) -> OnDisk:
    where = directory.with_name("database")
    convert(collated, where, "its fingerprint", "sqlite")
    return OnDisk(where, collated, "its fingerprint", "sqlite", cache)


@settings(max_examples=20)
@given(data=st.data())
def test_batches_are_the_same_from_each(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    graphs = data.draw(st.one_of(homogeneous().map(lambda drawn: drawn[0]), heterogeneous()))
    ids = np.array(data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=6)))
    collated = collate(graphs, "here")
    directory, manifest = stored(collated, tmp_path_factory.mktemp("collection") / "it")
    expected = collated.batch(ids)
    names = sorted({name for store in collated.stores.values() for name in store.columns})
    some = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    mapped = opened(directory, manifest)
    for found in (mapped, opened(directory, manifest, None), opened(directory, manifest, some)):
        same_batch(found.batch(ids), expected)
        same_batch(pickle.loads(pickle.dumps(found)).batch(ids), expected)
    for access in (on_disk(directory, mapped), on_disk(directory, mapped, cache=1 << 20)):
        for _ in range(2):
            picked, places = access.pick(ids)
            same_batch(picked.batch(places), expected)


def test_what_is_in_memory_and_what_is_mapped(tmp_path: Path) -> None:
    directory, manifest = stored(collate(collections_of_graphs.rings(), "here"), tmp_path / "it")

    def is_mapped(found: Collated, name: str) -> bool:
        column: Any = found.stores[None].columns[name]
        return isinstance(column.values.base, np.memmap)

    for names, expected in (((), "x edge_index y"), (None, ""), (["x"], "edge_index y"), (["edge_index"], "x y")):
        found = opened(directory, manifest, names)
        assert [name for name in ("x", "edge_index", "y") if is_mapped(found, name)] == expected.split()
        again = pickle.loads(pickle.dumps(found))
        assert all(is_mapped(again, name) for name in ("x", "edge_index", "y")), "a worker process maps the files"
    assert len(pickle.dumps(opened(directory, manifest, None))) < 6000
    with pytest.raises(
        ExperimentError, match='no attribute "xx"; did you mean "x".*they have edge_attr, edge_index, x, y'
    ):
        opened(directory, manifest, ["xx"])


def test_auto_goes_by_size(tmp_path: Path) -> None:
    _, manifest = stored(collate(collections_of_graphs.rings(200), "here"), tmp_path / "it")
    size = sum(entry["bytes"] for entry in manifest["files"].values())

    def chosen(limit: int | None, ranks: int = 1, processes: bool = False) -> tuple[str, str]:
        return choose(manifest, ["x"], limit=limit, ranks=ranks, processes=processes)

    kind, why = chosen(2 * size, ranks=2)
    assert kind == "memory" and "KiB in each of 2 ranks are within" in why and "data.memory_limit" in why
    assert chosen(2 * size - 1, ranks=2)[0] == "hybrid" and chosen(100)[0] == "mmap"
    assert chosen(None)[0] == "memory" and "a quarter of the free memory" in chosen(None)[1]
    assert chosen(None, processes=True) == ("mmap", f"worker processes share the mapped files ({size / 1024:.1f} KiB)")
    assert storage._bytes(3 << 30) == "3.0 GiB"


def test_of_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = np.array([4, 2, 2])
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("mmap", {}), ("memory", {}), ("hybrid", {}), ("hybrid", {"in_memory": "edge_index"}), ("auto", {}),
        ("auto", {"memory_limit": "1 kB"}), ("ondisk", {}), ("ondisk", {"cache": "1 MiB"}),
        ("ondisk", {"transforms": ["Constant"]}), ("mmap", {"transforms": ["Constant"]}),
    ]  # fmt: skip
    batches = [prepared(tmp_path, storage=kind, **more).batch(ids, WANTS) for kind, more in kinds]
    for batch in batches[:-2]:
        assert str(batch) == str(batches[0])
        assert torch.equal(batch["node"].x, batches[0]["node"].x) and batch[GRAPH].y.tolist() == [0, 0, 0]
        assert torch.equal(batch[EDGES].edge_index, batches[0][EDGES].edge_index)
    assert torch.equal(batches[-1]["node"].x, batches[-2]["node"].x) and batches[-1]["node"].x.shape[1] == 3
    said = capsys.readouterr().out
    assert "storage: memory, since" in said and "storage: mmap, since" in said
    (database,) = (tmp_path / "store").glob("rings-*-sqlite")
    assert json.loads((database / "manifest.json").read_text())["num_graphs"] == 30
