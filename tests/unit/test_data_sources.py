"""Graphs from PyG, files and functions; and a homogeneous one as a heterogeneous one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch_geometric.data import Data, HeteroData

from disttrain.config import DataSource, ExperimentError, NodeClassification, Task
from disttrain.config.counted import counted
from disttrain.data import fingerprint, left_out_lines, load, target_node_type
from disttrain.data.homogeneous import to_heterogeneous
from disttrain.data.loaded import conform
from disttrain.data.pyg import is_there

TASK = NodeClassification(kind="node_classification")
ADAPTER = TypeAdapter(DataSource)
HALF = {"by": "ratio", "train": 0.5, "val": 0.25, "test": 0.25}


def source(**values: Any) -> Any:
    return ADAPTER.validate_python(values)


def partly_labelled(number: bool = False) -> HeteroData:
    data = hetero()
    data["user"].y = torch.tensor([0.5, float("nan"), -1.0, 2.0]) if number else torch.tensor([0, -1, -1, 1])
    return data


@pytest.mark.parametrize(("kind", "absent"), [("node_classification", 2), ("node_regression", 1)])
def test_nodes_without_a_label_are_counted(tmp_path: Path, kind: str, absent: int) -> None:
    task, number = TypeAdapter(Task).validate_python({"kind": kind}), kind == "node_regression"
    path = tmp_path / "graph.pt"
    torch.save(partly_labelled(number), path)
    split = {"by": "ratio", "train": 1, "val": 0, "test": 0}
    function = {"source": "python", "function": f"{__name__}:partly_labelled", "args": {"number": number}}
    for given in (function, {"source": "file", "path": str(path)}):
        info = load(source(**given, split=split), task).info
        assert info["without_label"] == {"user": absent}
        assert f'"user": {counted(absent, "node")} without a label, in no split' in left_out_lines(info)
    whole = load(source(**{**function, "function": f"{__name__}:hetero", "args": {}}, split=split), task).info
    assert "without_label" not in whole


def hetero() -> HeteroData:
    data = HeteroData()
    data["user"].x = torch.arange(12.0).reshape(4, 3)
    data["user"].y = torch.tensor([0, 1, 0, 1])
    data["item"].num_nodes = 3
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 1, 3], [2, 0, 1]])
    data["user", "buys", "item"].edge_attr = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float16)
    return data


def test_file(tmp_path: Path):
    torch.save(hetero(), tmp_path / "graph.pt")
    loaded = load(source(source="file", path=str(tmp_path / "graph.pt"), split=HALF), TASK)
    assert torch.equal(loaded.data["user"].x, hetero()["user"].x)
    assert loaded.data["item"].num_nodes == 3
    assert loaded.data["user", "buys", "item"].edge_attr.dtype == torch.float16
    assert int(loaded.data["user"].train_mask.sum()) == 2


def test_file_fingerprint_follows_its_bytes(tmp_path: Path):
    path = tmp_path / "graph.pt"
    section = source(source="file", path=str(path), split=HALF)
    torch.save(hetero(), path)
    first = fingerprint(section, TASK)
    assert first == fingerprint(section, TASK)
    data = hetero()
    data["user"].x[0, 0] = 99
    torch.save(data, path)
    assert fingerprint(section, TASK) != first


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    with pytest.raises(ExperimentError, match=r"data: .* cannot be read: Is a directory; mend"):
        fingerprint(source(source="file", path=str(tmp_path)), TASK)


def test_file_of_unknown_objects_needs_trust(tmp_path: Path):
    path = tmp_path / "graph.pt"
    data = hetero()
    data.note = SimpleNamespace(text="not a tensor")
    torch.save(data, path)
    with pytest.raises(ExperimentError, match=r"data.trust: true"):
        load(source(source="file", path=str(path), split=HALF), TASK)
    loaded = load(source(source="file", path=str(path), split=HALF, trust=True), TASK)
    assert loaded.info["left_out"] == ["note"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ([1, 2], "got list"),
        (b"no", "not a file"),
        *((junk, "not a file") for junk in (b"junk", b"", b"\x80\x02", b"PK\x03\x04")),
    ],
)
def test_file_that_is_no_graph(tmp_path: Path, content: Any, said: str):
    path = tmp_path / "graph.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    with pytest.raises(ExperimentError, match=said):
        load(source(source="file", path=str(path)), TASK)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_project_graphs.py").write_text(
        "import torch\nfrom torch_geometric.data import Data\n"
        "def make(size, *, classes=2):\n"
        "    ids = torch.arange(size)\n"
        "    return Data(x=ids.float()[:, None], y=ids % classes, edge_index=torch.stack([ids, (ids + 1) % size]))\n"
        "def wrong():\n    return 3\n"
        "def double(data, times=2):\n    data.x = data.x * times\n    return data\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("my_project_graphs", None)


def test_function_beside_the_working_directory(project: None):
    section = source(
        source="python",
        function="my_project_graphs:make",
        args={"size": 8},
        split=HALF,
        transforms=["ToUndirected", {"my_project_graphs:double": {"times": 3}}],
    )
    loaded = load(section, TASK)
    assert loaded.data["node"].x.flatten().tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    assert loaded.data["node", "edge", "node"].edge_index.size(1) == 16
    assert fingerprint(section, TASK) == fingerprint(section, TASK)
    other = section.model_copy(update={"args": {"size": 9}})
    assert fingerprint(other, TASK) != fingerprint(section, TASK)


def test_what_transforms_of_ones_own_do_is_part_of_the_data(project: None, tmp_path: Path):
    ids = torch.arange(8)
    torch.save(Data(x=ids.float()[:, None], y=ids % 2, edge_index=torch.stack([ids, ids])), tmp_path / "graph.pt")

    def found(*transforms: Any) -> str:
        return fingerprint(source(source="file", path="graph.pt", split=HALF, transforms=list(transforms)), TASK)

    before = found("my_project_graphs:double"), found({"my_project_graphs:double": {"times": 3}}), found("ToUndirected")
    assert len(set(before)) == 3
    with open("my_project_graphs.py", "a") as file:
        file.write("def double(data):\n    data.x = 0 * data.x\n    return data\n")
    sys.modules.pop("my_project_graphs")
    after = found("my_project_graphs:double"), found({"my_project_graphs:double": {"times": 3}}), found("ToUndirected")
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, False, True]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"function": "no_such_module:make"}, "there is no module 'no_such_module'"),
        ({"function": "my_project_graphs:mak"}, 'did you mean "make"?'),
        (
            {"function": "my_project_graphs:make", "args": {"sise": 8}},
            'no argument "sise"; did you mean "size"?; "size"',
        ),
        ({"function": "my_project_graphs:wrong"}, "expected a HeteroData or Data, got int"),
        ({"function": "my_project_graphs:make", "args": {"size": 4}, "transforms": ["ToUndirectd"]}, "ToUndirected"),
        (
            {
                "function": "my_project_graphs:make",
                "args": {"size": 4},
                "transforms": [{"ToUndirected": {"merg": 1}}],
            },
            'no argument "merg"; did you mean "merge"?',
        ),
    ],
)
def test_functions_refused(project: None, section: dict[str, Any], said: str):
    with pytest.raises(ExperimentError) as refused:
        load(source(source="python", split=HALF, **section), TASK)
    assert said in str(refused.value)


def test_homogeneous_keeps_every_attribute():
    data = Data(
        x=torch.randn(5, 2),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 4]]),
        edge_attr=torch.randn(3, 1),
        y=torch.arange(5),
        weight=torch.randn(5).double(),
        edge_time=torch.arange(3),
        name="a graph",
    )
    result = to_heterogeneous(data)
    assert result.node_types == ["node"]
    assert result.edge_types == [("node", "edge", "node")]
    for name in ("x", "y", "weight"):
        assert result["node"][name] is data[name]
    for name in ("edge_index", "edge_attr", "edge_time"):
        assert result["node", "edge", "node"][name] is data[name]
    assert conform(data, "it").info == {"left_out": ["name"]}


def test_homogeneous_without_node_attributes_counts_ends():
    assert to_heterogeneous(Data(edge_index=torch.tensor([[0, 6], [1, 2]])))["node"].num_nodes == 7


def test_sparse_features_and_adjacency_become_dense_and_edges():
    ends, values = torch.tensor([[0, 2], [1, 0]]), torch.tensor([2.0, 3.0])
    adjacency = torch.sparse_coo_tensor(ends, values, (3, 3), check_invariants=True).coalesce()
    data = Data(x=torch.eye(3).to_sparse(), adj_t=adjacency)
    loaded = conform(data, "it").data
    assert torch.equal(loaded["node"].x, torch.eye(3))
    relation = loaded["node", "edge", "node"]
    assert relation.edge_index.tolist() == [[1, 0], [0, 2]]
    assert relation.edge_weight.tolist() == [2, 3]


def test_an_edge_to_no_node_is_refused():
    data = hetero()
    data["user", "buys", "item"].edge_index[1, 0] = 3
    with pytest.raises(ExperimentError, match=r'ids of "item" from 0 to 3, with 3 such nodes'):
        conform(data, "it")


def test_an_attribute_of_another_length_is_refused():
    data = hetero()
    data["item"].x = torch.zeros(4, 2)
    with pytest.raises(
        ExperimentError, match=r"item\.x: expected one row for each of 3, got a tensor of shape \(4, 2\)"
    ):
        conform(data, "it")


def test_target_node_type():
    data = hetero()
    assert target_node_type(data, TASK) == "user"
    data["item"].y = torch.zeros(3)
    with pytest.raises(ExperimentError, match="several types"):
        target_node_type(data, TASK)
    with pytest.raises(ExperimentError, match='did you mean "item"'):
        target_node_type(data, TASK.model_copy(update={"node_type": "itm"}))
    with pytest.raises(ExperimentError, match='no attribute "x"; it is on: user'):
        target_node_type(data, TASK.model_copy(update={"node_type": "item", "label": "x"}))


def pyg(dataset: str, folder: Path, split: dict[str, Any] | None = None, **args: Any) -> Any:
    return source(source="pyg", dataset=dataset, root=str(folder), args=args, split=split or {"by": "masks"})


def test_whether_a_data_set_is_there_is_found_without_touching_anything(tmp_path: Path):
    section = source(source="pyg", dataset="DBLP", root=str(tmp_path))
    assert not is_there(section)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ExperimentError, match='did you mean "DBLP"'):
        is_there(section.model_copy(update={"dataset": "DBLPP"}))


def test_synthetic_pyg_data_set(tmp_path: Path):
    section = source(source="pyg", dataset="FakeHeteroDataset", root=str(tmp_path), args={"num_graphs": 1}, split=HALF)
    torch.manual_seed(0)
    assert len(load(section, TASK).data.node_types) == 3


@pytest.mark.parametrize(
    ("dataset", "args", "said"),
    [
        ("Planetoyd", {}, 'did you mean "Planetoid"?'),
        ("Planetoid", {"nme": "Cora"}, 'no argument "nme"; did you mean "name"?; "name" is missing'),
        ("Planetoid", {"root": "x", "name": "Cora"}, "write it as data.root"),
        ("HGBDataset", {"name": "acn"}, "HGBDataset refuses {'name': 'acn'}"),
        ("FakeDataset", {"num_graphs": 3}, "a collection of 3 graphs"),
    ],
)
def test_pyg_refused(tmp_path: Path, dataset: str, args: dict[str, Any], said: str):
    with pytest.raises(ExperimentError) as refused:
        load(pyg(dataset, tmp_path, **args), TASK)
    assert said in str(refused.value)


def counts(data: HeteroData, node_type: str) -> list[int]:
    return [int(data[node_type][mask].sum()) for mask in ("train_mask", "val_mask", "test_mask")]


def test_cora(tmp_path: Path, real_data: Any):
    shutil.copytree(real_data("planetoid-cora"), tmp_path / "Cora" / "raw")
    section = pyg("Planetoid", tmp_path, name="Cora")
    first = fingerprint(section, TASK)
    data = load(section, TASK).data
    assert counts(data, "node") == [140, 500, 1000]
    assert data["node"].x.shape == (2708, 1433)
    assert data["node", "edge", "node"].edge_index.shape == (2, 10556)
    assert fingerprint(section, TASK) == first  # before it was processed, and after
    raw = tmp_path / "Cora" / "raw" / "ind.cora.test.index"
    raw.chmod(0o644)
    raw.write_bytes(raw.read_bytes() + b"\n")
    assert fingerprint(section, TASK) != first


def test_dblp(tmp_path: Path, real_data: Any):
    shutil.copytree(real_data("pyg-raw-dblp"), tmp_path / "raw")
    data = load(pyg("DBLP", tmp_path), TASK).data
    assert counts(data, "author") == [400, 400, 3257]
    assert {name: data[name].num_nodes for name in data.node_types} == {
        "author": 4057, "paper": 14328, "term": 7723, "conference": 20,
    }  # fmt: skip
    assert data["paper", "to", "term"].edge_index.size(1) == 85810


def test_hgb_holds_validation_out_of_train_only(tmp_path: Path):
    raw = tmp_path / "acm" / "raw" / "ACM"
    raw.mkdir(parents=True)
    kinds = {"node type": {"0": "paper", "1": "author"}}
    links = {"link type": {"0": {"start": 0, "end": 1, "meaning": "paper-author"}}}
    info = {"node.dat": kinds, "link.dat": links, "label.dat": {"node type": {"0": {"0": "a", "1": "b"}}}}
    (raw / "info.dat").write_text(json.dumps(info))
    papers = [f"{i}\tp{i}\t0\t{i}.0,1.0" for i in range(10)]
    (raw / "node.dat").write_text("\n".join([*papers, "10\ta\t1", "11\tb\t1", ""]))
    (raw / "link.dat").write_text("0\t10\t0\t1.0\n9\t11\t0\t1.0\n")
    (raw / "label.dat").write_text("".join(f"{i}\tp{i}\t0\t{i % 2}\n" for i in range(5)))
    (raw / "label.dat.test").write_text("".join(f"{i}\tp{i}\t0\t{i % 2}\n" for i in range(5, 9)))
    with pytest.raises(ExperimentError, match="val_from_train"):
        load(pyg("HGBDataset", tmp_path, name="acm"), TASK)
    split = {"by": "masks", "val_from_train": 0.2}
    data = load(pyg("HGBDataset", tmp_path, split, name="acm"), TASK).data
    assert counts(data, "paper") == [4, 1, 4]
    assert data["paper"].test_mask.nonzero().flatten().tolist() == [5, 6, 7, 8]
    assert data["paper"].y[9] == -1
    assert data["author"].num_nodes == 2
    assert data["paper", "to", "author"].edge_index.tolist() == [[0, 9], [0, 1]]
