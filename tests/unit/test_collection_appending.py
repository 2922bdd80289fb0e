"""A collection that grows by batches is what it would be if it had been put together at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from disttrain.collection.appending import Appending
from disttrain.collection.collated import Collated, Gatherer, collate
from disttrain.collection.files import content_digest, manifest_of, open_collection, read_manifest
from disttrain.collection.growing import wrong_file
from disttrain.collection.summary import read_summary
from disttrain.config import ExperimentError
from disttrain.graph.columns import summarise
from disttrain.graph.files import write_manifest
from tests.unit.test_collection_collated import expected, heterogeneous, homogeneous, molecules, same_batch

pytestmark = pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'", "ignore:Sparse")


def in_batches(graphs: list[Any], sizes: list[int], anew: bool = False) -> list[Collated]:
    """Args:
    anew: each batch is gathered by itself, as after a restart.
    """
    gatherer, made, numbers = Gatherer("here"), [], iter(range(len(graphs)))
    for size in sizes:
        for _, number in zip(range(size), numbers):
            gatherer.add(graphs[number], number)
        made.append(gatherer.finished())
        gatherer = Gatherer("here") if anew else gatherer
    return made


def grown(directory: Path, batches: list[Collated], whole: bool = False) -> Collated:
    """Each batch is written by a writer of its own, after one that did not come to its end."""
    manifest = None
    directory.mkdir()
    for number, batch in enumerate(batches):
        if manifest is not None:
            Appending(directory, manifest, whole).append(batch, number)
        writing = Appending(directory, manifest, whole)
        writing.append(batch, number)
        write_manifest(directory, manifest_of(writing, "f", batches[0].left_out, {}))
        manifest = read_manifest(directory)
        assert [wrong_file(directory, name, entry) for name, entry in manifest["files"].items()] == [None] * len(
            manifest["files"]
        )
    writing.files.write_headers()
    assert manifest is not None
    for name, entry in manifest["files"].items():
        assert np.load(directory / name).shape == tuple(entry["shape"]), "as any reader of .npy sees it"
    return open_collection(directory, manifest, mapped=True)


@settings(max_examples=40)
@given(st.data())
def test_batches_grow_into_what_is_put_together_at_once(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    graphs = data.draw(st.one_of(homogeneous().map(lambda drawn: drawn[0]), heterogeneous()))
    first = data.draw(st.integers(1, len(graphs)))
    sizes = [first] + [1] * (len(graphs) - first)
    ids = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=6))
    found = grown(tmp_path_factory.mktemp("grown") / "it", in_batches(graphs, sizes, anew=data.draw(st.booleans())))
    same_batch(found.batch(np.array(ids)), expected(graphs, ids))
    assert content_digest(found) == content_digest(collate(graphs, "here"))


def test_arrays_are_shared_until_they_differ(tmp_path: Path) -> None:
    def graph(n: int, m: int) -> Data:
        return Data(x=torch.zeros(n, 1), z=torch.zeros(m), pos=torch.zeros(n, 3))

    graphs = [graph(2, 2), graph(3, 3), graph(1, 2), graph(4, 4)]
    columns: Any = grown(tmp_path / "it", in_batches(graphs, [2, 1, 1])).stores[None].columns
    assert columns["x"].slices is columns["pos"].slices and columns["z"].slices is not columns["x"].slices
    assert columns["x"].slices.tolist() == [0, 2, 5, 6, 10] and columns["z"].slices.tolist() == [0, 2, 5, 7, 11]


def test_summaries_grow_too(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for n in (3, 0, 5, 1):
        x = 100 + torch.randn(n, 4, generator=generator)
        x[x < 99.5] = torch.nan
        x[:, 3] = torch.nan
        graphs.append(Data(x=x, y=n))
    grown(tmp_path / "it", in_batches(graphs, [1, 1, 1, 1]))
    entries = read_manifest(tmp_path / "it")["stores"][0]["columns"]
    found, direct = (
        read_summary(entries["x"]),
        summarise(torch.cat([graph.x for graph in graphs]).numpy(), feature=True),
    )
    assert (found.low, found.high, found.missing) == (direct.low, direct.high, direct.missing)
    assert found.mean is not None and direct.mean is not None and found.std is not None and direct.std is not None
    np.testing.assert_allclose(found.mean, direct.mean, rtol=1e-12)
    np.testing.assert_allclose(found.std, direct.std, rtol=1e-10)
    assert read_summary(entries["y"]).high == 5


def broken(**change: Any) -> Data:
    graph = molecules(1)[0]
    for name, value in change.items():
        graph[name] = value
    return graph


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (broken(x=torch.zeros(4, 2).double()), "graph 7: `x` is float64 along axis 0, and float32 along axis 0 in the"),
        (broken(x=torch.zeros(3, 5)), "graph 7: `x` has [..., 5]; it has to be [..., 2], as in the collection"),
        (broken(y=1), "graph 7: `y` is a number, and int64 along axis 0 in the collection"),
        (broken(name=1), "graph 7: `name` is a number, and an object in the collection"),
        (broken(x=None), "graph 7 has no `x` that goes with those of the collection"),
        (HeteroData(), "graph 7 is a HeteroData, and the collection is of Data"),
    ],
)
def test_graphs_that_do_not_go_with_those_there_are_refused(tmp_path: Path, graph: Any, message: str) -> None:
    batches = in_batches(molecules(3), [3])
    grown(tmp_path / "it", batches)
    before = {path: path.read_bytes() for path in (tmp_path / "it").iterdir()}
    manifest = read_manifest(tmp_path / "it")
    with pytest.raises(ExperimentError) as caught:
        Appending(tmp_path / "it", manifest, whole=True).append(in_batches([graph], [1])[0], 7)
    assert message in str(caught.value)
    Appending(tmp_path / "it", manifest, whole=True)
    assert {path: path.read_bytes() for path in (tmp_path / "it").iterdir()} == before
