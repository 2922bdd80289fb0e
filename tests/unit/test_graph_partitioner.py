"""The partition directory holds the whole graph: put together again it equals the original bit for bit."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.config import EdgeType, ExperimentError, Partition
from disttrain.graph.files import read_manifest
from disttrain.graph.partitioner import partition
from disttrain.graph.verify import verify
from tests.graphs import ring, zoo

METHODS = ["metis", "ldg", "fennel", "random"]
NODE_DTYPES = [
    torch.float16, torch.float32, torch.float64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip


def nasty() -> HeteroData:
    """The zoo, and what else can be in a HeteroData."""
    data = zoo()
    generator = torch.Generator().manual_seed(0)
    for number, dtype in enumerate(NODE_DTYPES):
        shape = [211, *([3] * (number % 3))]
        bits = torch.randint(-100, 100, shape, generator=generator)
        data["paper"][f"as {dtype}/é*"] = bits.to(dtype)
        data["paper", "cites", "paper"][f"as_{number}"] = torch.randint(0, 100, [1500, *shape[1:]]).to(dtype)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324])
    data["paper"].special = special.repeat(43)[:211].double()
    # Names that meet on a file system that does not tell cases apart, or that are the partitioner's own.
    data["paper"].original_id = torch.arange(211) * 2
    data["paper"].X = torch.arange(211)
    data["author", "writes", "paper"].row = torch.arange(700)
    data["paper"].as_numpy = np.arange(211, dtype=np.uint32)
    data["paper"].strided = torch.arange(2 * 211).view(2, 211).T
    data["paper"].learned = torch.nn.Parameter(torch.ones(211, 2))
    data["paper"].zero_wide = torch.zeros(211, 0)
    # Not contiguous, and int32.
    data["author", "strided", "paper"].edge_index = torch.randint(0, 97, (50, 2), generator=generator).T
    data["author", "short", "paper"].edge_index = torch.randint(0, 97, (2, 60), generator=generator, dtype=torch.int32)
    data["nobody"].num_nodes = 0
    data["nobody"].x = torch.zeros(0, 4)
    data["single"].num_nodes = 1
    data["paper", "of", "single"].edge_index = torch.stack([torch.arange(211), torch.zeros(211, dtype=torch.long)])
    return data


def write(data: HeteroData, directory: Path, parts: int, method: str = "metis", **more: Any) -> dict[str, Any]:
    settings = Partition(parts=parts, method=method)  # type: ignore[arg-type]
    return partition(
        data, more.get("keys", {}), more.get("info", {}), settings, parts, directory, "f" * 32,
        more.get("progress", lambda line: None),
    )  # fmt: skip


def put_together(directory: Path) -> tuple[dict[str, dict[str, np.ndarray]], dict[EdgeType, dict[str, np.ndarray]]]:
    """All attributes and edges in the user's order, from nothing but the files."""
    manifest = read_manifest(directory)
    nodes, edges, original = {}, {}, {}
    for index, entry in enumerate(manifest["node_types"]):
        ids = original[entry["type"]] = np.load(directory / f"nodes/{index}/original_id.npy")
        nodes[entry["type"]] = attributes = {}
        for name, attribute in entry["attributes"].items():
            rows = np.load(directory / attribute["file"])
            attributes[name] = np.empty_like(rows)
            attributes[name][ids] = rows
    for entry in manifest["edge_types"]:
        src, _, dst = edge_type = tuple(entry["type"])
        colptr, row, edge_id = (np.load(directory / entry["files"][name]) for name in ("colptr", "row", "edge_id"))
        edge_index = np.empty((2, len(row)), dtype=np.int64)
        edge_index[0, edge_id] = original[src][row]
        edge_index[1, edge_id] = original[dst][np.repeat(np.arange(len(colptr) - 1), np.diff(colptr))]
        edges[edge_type] = attributes = {"edge_index": edge_index}
        for name, attribute in entry["attributes"].items():
            rows = np.load(directory / attribute["file"])
            attributes[name] = np.empty_like(rows)
            attributes[name][edge_id] = rows
    return nodes, edges


def numpy(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else value.detach().numpy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_put_together_it_equals_the_original(parts: int, method: str, tmp_path: Path):
    data = nasty()
    write(data, tmp_path / "p", parts, method)
    assert verify(tmp_path / "p") == []
    nodes, edges = put_together(tmp_path / "p")
    assert list(nodes) == data.node_types
    assert list(edges) == data.edge_types
    for node_type, attributes in nodes.items():
        store = {name: value for name, value in data[node_type].items() if name != "num_nodes"}
        assert list(attributes) == list(store)
        for name, found in attributes.items():
            expected = numpy(store[name])
            assert found.dtype == expected.dtype, name
            assert found.shape == expected.shape, name
            assert found.tobytes() == np.ascontiguousarray(expected).tobytes(), name
    for edge_type, attributes in edges.items():
        store = dict(data[edge_type].items())
        assert list(attributes) == list(store)
        for name, found in attributes.items():
            expected = numpy(store[name])
            if name == "edge_index":
                assert np.array_equal(found, expected)
            else:
                assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
                assert found.tobytes() == np.ascontiguousarray(expected).tobytes(), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_order_of_nodes_and_edges(parts: int, method: str, tmp_path: Path):
    data = nasty()
    manifest = write(data, tmp_path, parts, method)
    for index, entry in enumerate(manifest["node_types"]):
        ids, bounds = np.load(tmp_path / f"nodes/{index}/original_id.npy"), entry["bounds"]
        assert len(bounds) == parts + 1
        assert (bounds[0], bounds[-1]) == (0, entry["num_nodes"]) == (0, data[entry["type"]].num_nodes)
        for first, end in pairwise(bounds):
            assert (np.diff(ids[first:end]) > 0).all()
    for entry in manifest["edge_types"]:
        colptr, row, edge_id, degree = (
            np.load(tmp_path / entry["files"][name]) for name in ("colptr", "row", "edge_id", "src_degree")
        )
        assert (colptr.dtype, row.dtype, edge_id.dtype, degree.dtype) == (np.int64, np.int32, np.int64, np.int32)
        for first, end in pairwise(colptr):
            assert (np.diff(edge_id[first:end]) > 0).all()
        assert np.array_equal(degree, np.bincount(row, minlength=data[entry["type"][0]].num_nodes))


def test_ring_in_two_parts_by_arithmetic(tmp_path: Path):
    manifest = write(ring(480), tmp_path, 2)
    (entry,) = manifest["node_types"]
    ids = np.load(tmp_path / "nodes/0/original_id.npy")
    colptr, row = np.load(tmp_path / "edges/0/colptr.npy"), np.load(tmp_path / "edges/0/row.npy")
    x = np.load(tmp_path / "nodes/0/x.npy")
    part = np.searchsorted(entry["bounds"], np.arange(480), side="right") - 1
    crossing = 0
    for v in range(480):
        sources = row[colptr[v] : colptr[v + 1]]
        # Edge v-1 -> v has id v-1, edge v-2 -> v has an id from 480 on.
        assert x[sources, 0].tolist() == [(ids[v] - 1) % 480, (ids[v] - 2) % 480]
        crossing += np.count_nonzero(part[sources] != part[v])
    assert manifest["edge_cut"]["total"] == crossing / 960 <= 9 / 960
    assert manifest["edge_cut"]["per_relation"] == {"node,next,node": crossing / 960}
    assert sum(manifest["balance"]["train_seeds"]) == 480
    assert manifest["balance"]["per_type"]["node"] == max(np.diff(entry["bounds"])) / 240


def test_what_the_manifest_says_of_values(tmp_path: Path):
    data = nasty()
    data["paper"].holes = torch.tensor([[1.0, float("nan")], [4.0, float("nan")], [float("nan")] * 2]).repeat(71, 1)[
        :211
    ]
    attributes = write(data, tmp_path, 3)["node_types"][0]["attributes"]
    assert attributes["y"] | {"file": ""} == {
        "file": "", "dtype": "int64", "shape": [], "low": 0, "high": 6, "missing": 0, "mean": None, "std": None,
    }  # fmt: skip
    assert (attributes["train_mask"]["low"], attributes["train_mask"]["dtype"]) == (None, "bool")
    assert attributes["time"]["high"] == 210 * 1_000_000_007
    # Infinite values are no range.
    assert (attributes["special"]["low"], attributes["special"]["high"], attributes["special"]["missing"]) == (
        None,
        None,
        43,
    )
    holes = attributes["holes"]
    assert (holes["low"], holes["high"], holes["missing"]) == (1.0, 4.0, 211 + 70)
    assert np.load(tmp_path / holes["mean"]).tolist() == [(71 * 1 + 70 * 4) / 141, 0.0]
    for name in ("x", "weight", "strided"):
        expected = np.atleast_2d(data["paper"][name].double().numpy().T).T
        if attributes[name]["mean"] is None:
            assert name == "strided"
            continue
        assert np.allclose(np.load(tmp_path / attributes[name]["mean"]), expected.mean(axis=0), rtol=1e-6)
        assert np.allclose(np.load(tmp_path / attributes[name]["std"]), expected.std(axis=0), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float64])
def test_features_of_any_type_and_shape_have_statistics(dtype: torch.dtype, tmp_path: Path):
    data = zoo()
    data["paper"].x = (torch.arange(211 * 6).view(211, 2, 3) % 7 - 2).to(dtype)
    entry = write(data, tmp_path, 3)["node_types"][0]["attributes"]["x"]
    flat = data["paper"].x.double().flatten(1).numpy()
    np.testing.assert_allclose(np.load(tmp_path / entry["mean"]), flat.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / entry["std"]), flat.std(axis=0), rtol=1e-6)


def test_statistics_do_not_depend_on_the_cut(tmp_path: Path):
    for parts in (1, 3):
        write(zoo(), tmp_path / str(parts), parts, "random")
    for statistic in ("mean", "std"):
        one, three = ((tmp_path / parts / f"nodes/0/x.{statistic}.npy").read_bytes() for parts in "13")
        assert one == three


def test_a_part_without_nodes_of_a_type(tmp_path: Path):
    manifest = write(nasty(), tmp_path, 8)
    bounds = {entry["type"]: np.diff(entry["bounds"]) for entry in manifest["node_types"]}
    assert (bounds["lonely"] == 0).any()
    assert (bounds["nobody"] == 0).all()
    assert sorted(bounds["single"]) == [0] * 7 + [1]


def test_keys_and_info(tmp_path: Path):
    keys = {"venue": pyarrow.array(["a", "b", None, "d", "é"])}
    manifest = write(zoo(), tmp_path / "p", 2, keys=keys, info={"classes": {"paper": ["x", "y"]}})
    assert manifest == read_manifest(tmp_path / "p")
    table = pyarrow.parquet.read_table(tmp_path / "p" / manifest["keys"]["venue"])
    assert table["key"].to_pylist() == ["a", "b", None, "d", "é"]
    assert manifest["info"] == {"classes": {"paper": ["x", "y"]}}
    with pytest.raises(ExperimentError, match="'venue': expected 5 keys, got 4"):
        write(zoo(), tmp_path / "q", 2, keys={"venue": keys["venue"][:4]})


def test_attributes_of_no_row_go_to_info_or_are_named_in_one_warning(tmp_path: Path):
    data = zoo()
    data.num_classes = 7
    data["paper"].license = "CC0"
    data["paper"].threshold = float("nan")
    data["paper"].class_weight = torch.ones(7)
    data["author"].names = ["someone"] * 97
    data["venue"].scale = torch.tensor(3.0)
    data["author", "writes", "paper"].edge_label_index = torch.zeros(2, 9, dtype=torch.long)
    data["author"].something = object()
    with pytest.warns(UserWarning, match="neither one row per node nor one row per edge") as record:
        manifest = write(data, tmp_path, 2)
    assert len(record) == 1
    message = str(record[0].message)
    for name in (
        "paper: threshold",
        "paper: class_weight",
        "venue: scale",
        "author,writes,paper: edge_label_index",
        "author: something",
    ):
        assert name in message
    assert manifest["info"]["attributes"] == {
        "": {"num_classes": 7},
        "paper": {"license": "CC0"},
        "author": {"names": ["someone"] * 97},
    }


def refused(change: str) -> HeteroData:
    data = zoo()
    paper, cites = data["paper"], data["paper", "cites", "paper"]
    if change == "bfloat16":
        paper.x = paper.x.bfloat16()
    elif change == "complex":
        paper.x = paper.x.to(torch.complex64)
    elif change == "sparse":
        paper.x = paper.x.to_sparse()
    elif change == "x":
        paper.x = paper.x[:-1]
    elif change == "mask":
        paper.train_mask = paper.train_mask[:5]
    elif change == "edge_attr":
        cites.edge_attr = cites.edge_attr[:5]
    elif change == "adj_t":
        cites.adj_t = torch.eye(211).to_sparse()
        del cites.edge_index
    elif change == "no edge_index":
        del cites.edge_index
    elif change == "float edges":
        cites.edge_index = cites.edge_index.float()
    elif change == "shape":
        cites.edge_index = cites.edge_index.T
    elif change == "range":
        cites.edge_index[1, 7] = 211
        cites.edge_index[1, 9] = -1
    elif change == "source range":
        data["author", "writes", "paper"].edge_index[0, 3] = 97
    elif change == "unknown end":
        data["paper", "to", "nothing"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    elif change == "unknown size":
        data["new"].a, data["new"].b = torch.zeros(3), torch.zeros(4)
    elif change == "nothing":
        return HeteroData()
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bfloat16", r"data\['paper'\]\.x: bfloat16 has no counterpart.*\.float\(\)"),
        ("complex", r"data\['paper'\]\.x: expected real numbers.*complex64"),
        ("sparse", r"data\['paper'\]\.x: expected a dense tensor.*to_dense"),
        ("x", r"data\['paper'\]\.x: expected 211 rows, one for each of the nodes, got 210"),
        ("mask", r"data\['paper'\]\.train_mask: expected 211 rows.*got 5"),
        ("edge_attr", r"data\['paper', 'cites', 'paper'\]\.edge_attr: expected 1,500 rows.*edges, got 5"),
        ("adj_t", r"sparse matrix \(adj_t\); expected an `edge_index`.*ToSparseTensor"),
        ("no edge_index", r"data\['paper', 'cites', 'paper'\] has no edge_index"),
        ("float edges", r"expected integers of shape \[2, E\], got float32"),
        ("shape", r"expected integers of shape \[2, E\], got int64 \[1500, 2\]"),
        (
            "range",
            r"'cites'.*2 of 1500 destination ids are not among the 211 nodes of type 'paper' \(0 to 210\), the first "
            "is 211 in edge 7",
        ),
        ("source range", r"'writes'.*1 of 700 source ids.*'author'.*97 in edge 3"),
        ("unknown end", r"destination type 'nothing' is no node type.*set data\['nothing'\]\.num_nodes"),
        ("unknown size", r"data\['new'\]: its number of nodes is unknown.*set data\['new'\]\.num_nodes"),
        ("nothing", "no node types"),
    ],
)
def test_refusals(change: str, message: str, tmp_path: Path):
    with pytest.raises(ExperimentError, match=message):
        write(refused(change), tmp_path / "p", 2)
    assert list(tmp_path.iterdir()) == []


def test_num_nodes_is_taken_from_x_or_the_only_length():
    data = HeteroData()
    data["a"].x = torch.zeros(4, 1)
    data["a"].y_index = torch.arange(2)
    data["b"].y = torch.zeros(3)
    from disttrain.graph.arrays import graph_arrays

    with pytest.warns(UserWarning, match="a: y_index"):
        graph = graph_arrays(data)
    assert [nodes.count for nodes in graph.nodes.values()] == [4, 3]


def test_progress_names_what_is_done(tmp_path: Path):
    lines: list[str] = []
    write(zoo(), tmp_path / "p", 2, progress=lines.append)
    assert lines[0] == "cutting 316 nodes and 3,330 edges into 2 parts (metis)"
    assert "writing node type 1 of 4: paper, 211 nodes" in lines
    assert "writing edge type 6 of 6: author,knows,author, 0 edges" in lines
    assert str(tmp_path / "p") in lines[-1]


def test_again_is_left_alone_and_something_else_is_refused(tmp_path: Path):
    directory = tmp_path / "p"
    first = write(zoo(), directory, 2)
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    lines: list[str] = []
    assert write(zoo(), directory, 2, progress=lines.append) == first
    assert lines == [f"{directory} is there already"]
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    with pytest.raises(ExperimentError, match=r"partition\.parts is 3, it was made with 2"):
        write(zoo(), directory, 3)
    with pytest.raises(ExperimentError, match=r"partition\.method is 'random', it was made with 'metis'"):
        write(zoo(), directory, 2, "random")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ExperimentError, match=r"is no partition .*remove it, or name another"):
        write(zoo(), tmp_path / "mine", 2)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    # An empty directory is as good as none.
    (tmp_path / "empty").mkdir()
    write(zoo(), tmp_path / "empty", 2)


def test_files_are_plain_arrays(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manifest = write(nasty(), tmp_path, 2)
    for name in manifest["files"]:
        assert np.load(tmp_path / name, mmap_mode="r", allow_pickle=False) is not None
    on_disk = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert on_disk == {*manifest["files"], "manifest.json"}
    assert len({name.lower() for name in on_disk}) == len(on_disk)
