"""Saved graphs as people have them: what is read is what was saved, or a message that says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset

from disttrain.config import ExperimentError, FileData, NodeClassification
from disttrain.data import LoadedGraph, left_out_lines, load
from disttrain.data.attributes import plain
from disttrain.data.loaded import conform
from disttrain.data.scratch import Scratch
from tests.saved_graphs import SAVED, Saved, imdb_like, odd_names_and_extras

# what PyTorch says, once a process, where a sparse tensor is made
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

TASK = NodeClassification(kind="node_classification")


def read(graph: Any, folder: Path, target: str | None = None, split: dict[str, Any] | None = None) -> LoadedGraph:
    torch.save(graph, folder / "graph.pt")
    section = FileData.model_validate(
        {"source": "file", "path": str(folder / "graph.pt"), "split": split or {"by": "masks"}}
    )
    return load(section, TASK.model_copy(update={"node_type": target}), folder)


@pytest.mark.parametrize("name", SAVED)
def test_what_is_read_is_what_was_saved(tmp_path: Path, name: str):
    saved = SAVED[name]()
    loaded = read(saved.graph, tmp_path, saved.target)
    assert_equal(loaded.data, saved)
    assert [path.name for path in tmp_path.iterdir()] == ["graph.pt"]


def assert_equal(data: HeteroData, saved: Saved) -> None:
    assert set(data.node_types) == set(saved.nodes)
    for node_type, attributes in saved.nodes.items():
        for name, expected in attributes.items():
            found = data[node_type][name]
            assert found.dtype == expected.dtype and torch.equal(found, expected), (node_type, name)
    assert set(data.edge_types) == set(saved.edges)
    for edge_type, expected in saved.edges.items():
        found = data[edge_type].edge_index
        assert found.is_contiguous()
        if "edge" in edge_type:  # an adjacency is sorted by destination
            found, expected = (ends[:, np.lexsort(ends.numpy())] for ends in (found, expected))
        assert torch.equal(found, expected), edge_type


def test_what_was_left_out_or_converted_is_said(tmp_path: Path):
    saved = odd_names_and_extras()
    lines = left_out_lines(read(saved.graph, tmp_path, saved.target).info)
    person = saved.target
    assert f"{person}.train_mask: zeros and ones became a mask" in lines
    assert f"{person}.test_mask: ids of nodes became a mask" in lines
    assert lines[-1].startswith("attributes without a row per node or edge are left out: ")
    for name in (f"{person}.names", f"{person}.lookup", "title", "made_of", "scale", "table"):
        assert name in lines[-1], name
    lines = left_out_lines(read(imdb_like().graph, tmp_path).info)
    assert lines == [
        '"movie": 1 node without a label, in no split',
        "movie.x: sparse became dense (0.0 MB)",
        "actor.x: sparse became dense (0.0 MB)",
    ]


@pytest.mark.parametrize("mapped", [True, False])
def test_the_old_format_of_files(tmp_path: Path, mapped: bool):
    saved = SAVED["small_and_large_floats"]()
    torch.save(saved.graph, tmp_path / "graph.pt", _use_new_zipfile_serialization=mapped)
    section = FileData(source="file", path=str(tmp_path / "graph.pt"))
    assert_equal(load(section, TASK, tmp_path).data, saved)


class One(InMemoryDataset):
    def __init__(self, data: Data | HeteroData) -> None:
        super().__init__(None)
        self.one = data


@pytest.mark.parametrize("name", ["imdb_like", "only_edges_and_split_idx"])
def test_what_pyg_has_processed(tmp_path: Path, name: str):
    saved = SAVED[name]()
    One.save([saved.graph], str(tmp_path / "data.pt"))
    section = FileData(source="file", path=str(tmp_path / "data.pt"))
    assert_equal(load(section, TASK, tmp_path).data, saved)
    assert_equal(read([saved.graph], tmp_path).data, saved)
    with pytest.raises(ExperimentError, match="got list; a collection of graphs|got list"):
        read([saved.graph, saved.graph], tmp_path)


def hetero(**attributes: Any) -> HeteroData:
    data = HeteroData()
    data["a"].x, data["a"].y = torch.arange(8.0).view(4, 2), torch.arange(4) % 2
    data["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]])
    for name, value in attributes.items():
        if name.startswith("edge_"):
            data["a", "to", "a"][name] = value
        else:
            data["a"][name] = value
    return data


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"x": torch.zeros(4, 2, dtype=torch.complex64)}, "a.x: expected real numbers, integers or booleans, got"),
        ({"edge_index": torch.rand(2, 3)}, "a,to,a: edge_index must hold integers, got torch.float32"),
        ({"edge_index": torch.zeros(3, 2).long()}, "edge_index must be a tensor of shape [2, num_edges], got [3, 2]"),
        ({"edge_index": [[0, 1], [1, 2]]}, "edge_index must be a tensor of shape [2, num_edges], got list"),
        ({"train_mask": torch.tensor([0, 4])}, "a.train_mask: expected ids of nodes, 0 to 3; they are 0 to 4"),
        ({"train_idx": torch.tensor([-1])}, "a.train_idx: expected ids of nodes, 0 to 3; they are -1 to -1"),
        ({"train_mask": torch.ones(3, dtype=torch.bool)}, "a.train_mask: expected a mask with one row for each of 4"),
        ({"val_mask": torch.rand(4)}, "a.val_mask: expected a mask with one row for each of 4 nodes, or the ids"),
        ({"y": ["a", "b", "a", "b"]}, "a.y: expected a tensor with a row for each of 4, got a list of 4; make it"),
        ({"val_mask": [True, False]}, "a.val_mask: expected a tensor with a row for each of 4, got a list of 2; make"),
        ({"edge_attr": torch.zeros(3)}, "a,to,a.edge_attr: expected one row for each of 2, got a tensor of shape (3,)"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, attributes: dict[str, Any], said: str):
    with pytest.raises(ExperimentError) as refused:
        read(hetero(**attributes), tmp_path, split={"by": "ratio", "train": 0.5, "val": 0.25, "test": 0.25})
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", ["a,b", " a", ("a", "x,y", "a"), ("a", "", "a")])
def test_names_that_cannot_stand_in_a_relation_are_refused(kind: Any):
    data = hetero()
    if isinstance(kind, str):
        data[kind].num_nodes = 1
    else:
        data[kind].edge_index = torch.empty(2, 0, dtype=torch.long)
    with pytest.raises(ExperimentError, match='relations are written "src,rel,dst"'):
        conform(data, "it")


def test_indices_of_a_permutation_are_no_mask(tmp_path: Path):
    loaded = read(
        hetero(
            train_mask=torch.tensor([3, 2]),
            val_mask=torch.tensor([0]),
            test_mask=torch.tensor([False, True, False, False]),
        ),
        tmp_path,
    )
    assert [loaded.data["a"][f"{name}_mask"].nonzero().flatten().tolist() for name in ("train", "val", "test")] == [
        [2, 3],
        [0],
        [1],
    ]


def test_isolated_nodes_of_an_adjacency_count(tmp_path: Path):
    data = hetero()
    data["b"].note = "without a row per node"
    data["a", "of", "b"].adj_t = torch.sparse_coo_tensor(
        torch.tensor([[0], [1]]), torch.tensor([2.0]), (7, 4)
    ).coalesce()
    loaded = conform(data, "it").data
    assert loaded["b"].num_nodes == 7
    assert loaded["a", "of", "b"].edge_index.tolist() == [[1], [0]]
    assert loaded["a", "of", "b"].edge_weight.tolist() == [2]


def test_sparse_tensors_of_every_layout_become_the_same(tmp_path: Path):
    dense = torch.tensor([[0, 1.5, 0], [0, 0, 0], [2.5, 0, -3]])
    with Scratch(tmp_path) as scratch:
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int64, torch.bfloat16):
            value = dense.to(dtype)
            kept = torch.float32 if dtype == torch.bfloat16 else dtype
            for sparse in (value.to_sparse(), value.to_sparse_csr(), value.to_sparse_csc()):
                assert torch.equal(plain(sparse, "it", scratch)[0], value.to(kept))
        twice = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 2))
        assert plain(twice, "it", scratch)[0].tolist() == [[0, 3], [0, 0]]


def test_arrays_of_numpy_share_memory(tmp_path: Path):
    with Scratch(tmp_path) as scratch:
        array = np.arange(6.0).reshape(3, 2)
        array.flags.writeable = False
        assert plain(array, "it", scratch)[0].data_ptr() == array.ctypes.data
        assert plain(array[::-1], "it", scratch)[0].tolist() == [[4, 5], [2, 3], [0, 1]]
        assert plain(array.astype(">f4"), "it", scratch)[0].tolist() == array.tolist()
        view = torch.arange(6).view(2, 3).t()
        assert torch.equal(plain(view, "it", scratch)[0], view)


MAPPED = """
import sys, torch
from pathlib import Path
from disttrain.config import FileData, NodeClassification
from disttrain.data import load

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon"))

section = FileData.model_validate({"source": "file", "path": sys.argv[1], "split": {"by": "masks"}})
task = NodeClassification(kind="node_classification")
before = held()
graph = load(section, task).data
print(held() - before, graph["node"].x.nbytes >> 20, float(graph["node"].x[-1, -1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_tensors_of_files_are_mapped(tmp_path: Path):
    rows = 1 << 19
    x = torch.zeros(rows, 64)
    x[-1, -1] = 7
    part = torch.arange(rows) % 3
    data = Data(x=x, y=torch.arange(rows) % 2, edge_index=torch.zeros(2, 1, dtype=torch.long))
    data.train_mask, data.val_mask, data.test_mask = part == 0, part == 1, part == 2
    torch.save(data, tmp_path / "graph.pt")
    del data, x
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", MAPPED, str(tmp_path / "graph.pt")], capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    grown, size, last = map(float, ended.stdout.split())
    assert (size, last) == (128, 7)
    assert grown < 64, grown
