"""OGB's sets, from raw folders in its layout; what is read is what OGB's own package reads from them."""

from __future__ import annotations

import gzip
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain import data as sources
from disttrain.config import ExperimentError, NodeClassification, OgbData
from disttrain.data import fingerprint, load
from disttrain.data import ogb as reader
from disttrain.data.scratch import FileArray, Scratch

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ogb") is None, reason="ogb is not installed; pip install ogb")
TASK = NodeClassification(kind="node_classification")
RNG = np.random.default_rng(0)


def ogb(dataset: str, root: Path) -> OgbData:
    return OgbData(source="ogb", dataset=dataset, root=str(root))


def table(path: Path, rows: Any, header: list[str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header] if header else []
    with gzip.open(path.with_name(f"{path.name}.csv.gz"), "wt") as file:
        for row in [*lines, *rows]:
            file.write(",".join(map(str, np.atleast_1d(row))) + "\n")


def splits(folder: Path, count: int, names: tuple[str, ...] = ("train", "valid", "test")) -> None:
    order = RNG.permutation(count)
    for number, name in enumerate(names):
        table(folder / name, order[number::4])


def homogeneous(root: Path, dataset: str, release: int, split: str, **extra: Any) -> Path:
    folder = root / dataset.replace("-", "_")
    raw = folder / "raw"
    table(raw / "edge", RNG.integers(0, 40, (90, 2)))
    table(raw / "num-node-list", [40])
    table(raw / "num-edge-list", [90])
    for name, rows in extra.items():
        table(raw / name.replace("__", "-"), rows)
    splits(folder / "split" / split, 40)
    (folder / f"RELEASE_v{release}.txt").write_text("")
    return raw


def arxiv(root: Path) -> Path:
    features, years, labels = (
        RNG.normal(size=(40, 5)).round(6),
        RNG.integers(1990, 2020, (40, 1)),
        RNG.integers(0, 7, (40, 1)),
    )
    return homogeneous(root, "ogbn-arxiv", 1, "time", node__feat=features, node_year=years, node__label=labels)


def products(root: Path) -> Path:
    features, labels = RNG.normal(size=(40, 3)).round(6), RNG.integers(0, 7, (40, 1))
    return homogeneous(root, "ogbn-products", 1, "sales_ranking", node__feat=features, node__label=labels)


def proteins(root: Path) -> Path:
    return homogeneous(
        root,
        "ogbn-proteins",
        1,
        "species",
        edge__feat=RNG.random((90, 8)).round(3),
        node_species=RNG.integers(3000, 9999, (40, 1)),
        node__label=RNG.integers(0, 2, (40, 112)),
    )


def mag(root: Path) -> Path:
    folder = root / "ogbn_mag"
    raw, counts = folder / "raw", {"author": 30, "field_of_study": 11, "institution": 6, "paper": 40}
    table(raw / "num-node-dict", [list(counts.values())], list(counts))
    triplets = [
        ("paper", "has_topic", "field_of_study"),
        ("author", "affiliated_with", "institution"),
        ("author", "writes", "paper"),
        ("paper", "cites", "paper"),
    ]
    table(raw / "triplet-type-list", triplets)
    for number, (source, name, destination) in enumerate(triplets):
        relation = raw / "relations" / f"{source}___{name}___{destination}"
        size = 50 + number
        ends = [RNG.integers(0, counts[source], size), RNG.integers(0, counts[destination], size)]
        table(relation / "edge", np.stack(ends, axis=1))
        table(relation / "num-edge-list", [size])
        table(relation / "edge_reltype", np.full((size, 1), number))
    table(raw / "node-feat" / "paper" / "node-feat", RNG.normal(size=(40, 4)).round(6))
    table(raw / "node-feat" / "paper" / "node_year", RNG.integers(2010, 2020, (40, 1)))
    has = [[str(kind == "paper") for kind in counts]]
    table(raw / "nodetype-has-label", has, list(counts))
    table(raw / "node-label" / "paper" / "node-label", RNG.integers(0, 9, (40, 1)))
    table(folder / "split" / "time" / "nodetype-has-split", has, list(counts))
    splits(folder / "split" / "time" / "paper", 40)
    (folder / "RELEASE_v2.txt").write_text("")
    return raw


def papers(root: Path) -> Path:
    folder = root / "ogbn_papers100M"
    raw = folder / "raw"
    raw.mkdir(parents=True)
    np.savez(
        raw / "data.npz",
        edge_index=RNG.integers(0, 40, (2, 90)),
        num_nodes_list=np.array([40]),
        num_edges_list=np.array([90]),
        node_feat=RNG.normal(size=(40, 6)).astype(np.float16),
        node_year=RNG.integers(1990, 2020, (40, 1)),
    )
    labels = RNG.integers(0, 5, (40, 1)).astype(np.float32)
    labels[::3] = np.nan
    np.savez(raw / "node-label.npz", node_label=labels)
    splits(folder / "split" / "time", 40)
    (folder / "RELEASE_v1.txt").write_text("")
    return raw


def test_arrays_are_read_in_blocks_whatever_their_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An edge_index is two rows of billions."""
    arrays = {"edges": np.arange(2000).reshape(2, 1000), "x": np.ones((7, 3, 2), np.float16), "none": np.ones((2, 0))}
    np.savez(tmp_path / "data.npz", **arrays)
    monkeypatch.setattr(reader, "_BLOCK_BYTES", 100)
    largest, write = [0], FileArray.write

    def watched(array: FileArray, row: int, block: np.ndarray) -> None:
        largest.append(block.nbytes)
        write(array, row, block)

    monkeypatch.setattr(FileArray, "write", watched)
    with Scratch(tmp_path) as scratch:
        for name, array in arrays.items():
            found = reader._member(str(tmp_path / "data.npz"), name, scratch)
            assert np.array_equal(found, array) and found.dtype == array.dtype
    assert 80 < max(largest) <= 100


SETS = {
    "ogbn-arxiv": arxiv,
    "ogbn-products": products,
    "ogbn-proteins": proteins,
    "ogbn-mag": mag,
    "ogbn-papers100M": papers,
}


def by_ogb(dataset: str, root: Path) -> tuple[Any, dict[str, Any]]:
    """The graph and the split, by OGB's own package."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ogb.nodeproppred  # type: ignore[import-not-found]

        found = ogb.nodeproppred.PygNodePropPredDataset(dataset, str(root))
        return found[0], found.get_idx_split()  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("dataset", SETS)
def test_what_is_read_is_what_ogb_reads(tmp_path: Path, dataset: str, monkeypatch: pytest.MonkeyPatch):
    SETS[dataset](tmp_path)
    section = ogb(dataset, tmp_path)
    first = fingerprint(section, TASK)
    loaded = load(section, TASK, tmp_path / "scratch").data
    assert list((tmp_path / "scratch").iterdir()) == []
    # what it asks on the terminal where releases differ would wait for ever
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    # it loads what it has just written as if PyTorch restored everything
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    expected, split = by_ogb(dataset, tmp_path)
    assert fingerprint(section, TASK) == first  # also after OGB has processed it
    if dataset == "ogbn-mag":
        compare_typed(loaded, expected, split)
        return
    nodes, edges = loaded["node"], loaded["node", "edge", "node"]
    assert nodes.num_nodes == expected.num_nodes
    assert torch.equal(edges.edge_index, expected.edge_index)
    for name, value in expected.items():
        own = {"node_year": "time", "node_feat": "x", "edge_feat": "edge_attr"}.get(name, name)
        if name in ("edge_index", "num_nodes", "y") or value is None:
            continue
        found = (edges if str(own).startswith("edge") else nodes)[own]
        assert found.dtype == value.dtype and torch.equal(found, value.view(found.shape)), name
    assert torch.equal(nodes.y.nan_to_num(-5), expected.y.nan_to_num(-5).view(nodes.y.shape))
    labelled = ~nodes.y.isnan() if nodes.y.is_floating_point() else torch.ones(40, dtype=torch.bool)
    for name, ids in zip(("train_mask", "val_mask", "test_mask"), split.values()):
        kept = sorted(i for i in ids.tolist() if labelled[i])
        assert nodes[name].nonzero().flatten().tolist() == kept


def compare_typed(loaded: HeteroData, expected: Any, split: dict[str, Any]) -> None:
    assert {name: loaded[name].num_nodes for name in loaded.node_types} == expected.num_nodes_dict
    assert set(loaded.edge_types) == set(expected.edge_index_dict)
    for edge_type, ends in expected.edge_index_dict.items():
        assert torch.equal(loaded[edge_type].edge_index, ends)
        assert torch.equal(loaded[edge_type].edge_reltype, expected.edge_reltype[edge_type])
    assert [name for name in loaded.node_types if "x" in loaded[name]] == ["paper"]
    paper = loaded["paper"]
    assert torch.equal(paper.x, expected.x_dict["paper"])
    assert torch.equal(paper.time, expected.node_year["paper"][:, 0])
    assert torch.equal(paper.y, expected.y_dict["paper"][:, 0])
    for name, ids in zip(("train_mask", "val_mask", "test_mask"), split.values()):
        assert paper[name].nonzero().flatten().tolist() == sorted(ids["paper"].tolist())


def test_what_is_refused(tmp_path: Path):
    with pytest.raises(ExperimentError, match='no node-property set "ogbn-arxive"; did you mean "ogbn-arxiv"'):
        sources.is_there(ogb("ogbn-arxive", tmp_path))
    assert not sources.is_there(ogb("ogbn-arxiv", tmp_path))
    raw = arxiv(tmp_path)
    assert sources.is_there(ogb("ogbn-arxiv", tmp_path))
    (raw / "node-label.csv.gz").rename(tmp_path / "label")
    with pytest.raises(ExperimentError, match=r"ogbn-arxiv is not complete: there is no .*node-label.csv.gz"):
        load(ogb("ogbn-arxiv", tmp_path), TASK)
    (tmp_path / "label").rename(raw / "node-label.csv.gz")
    (raw / "edge.csv.gz").write_bytes(b"\x1f\x8b no gzip")
    with pytest.raises(ExperimentError, match="a file of ogbn-arxiv is damaged"):
        load(ogb("ogbn-arxiv", tmp_path), TASK)
    (tmp_path / "ogbn_arxiv" / "RELEASE_v1.txt").unlink()
    with pytest.raises(ExperimentError, match="another release of ogbn-arxiv than version 1"):
        fingerprint(ogb("ogbn-arxiv", tmp_path), TASK)


def test_ogb_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ogb" else found(name, *more))
    with pytest.raises(ExperimentError, match="data.source: ogb needs the package ogb.*pip install ogb"):
        load(ogb("ogbn-arxiv", tmp_path), TASK)
