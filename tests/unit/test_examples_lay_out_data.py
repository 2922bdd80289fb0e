"""Laying out downloads for PyG's classes."""

from __future__ import annotations

import socket
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_geometric.data import Dataset
from torch_geometric.datasets import DBLP, IMDB, HGBDataset, Planetoid, TUDataset

from disttrain.config import ExperimentError, PygData
from disttrain.data.pyg import _LAID_OUT, _by_script, raw_files
from examples.lay_out_data import AIFB_FILES, CORA_FILES, DBLP_FILES, HGB, HGB_FILES, IMDB_FILES, TU, lay_out


def raw_paths(dataset_class: type[Dataset], **attributes: str) -> list[Path]:
    """Where a class of PyG looks, without constructing it."""
    dataset = object.__new__(dataset_class)
    for name, value in attributes.items():
        setattr(dataset, name, value)
    return [Path(path) for path in dataset.raw_paths]


def test_files_land_where_pyg_looks(tmp_path: Path) -> None:
    source, target = tmp_path / "downloads", tmp_path / "data"
    (source / "some" / "cora").mkdir(parents=True)
    (source / "dblp").mkdir()
    (source / "imdb").mkdir()
    (source / "aifb").mkdir()
    with zipfile.ZipFile(source / "ACM.zip", "w") as archive:
        for name in (*HGB_FILES, "meta.dat"):
            archive.writestr(f"ACM/{name}", f"hgb {name}")
    (source / "delaney-processed.csv").write_text("esol")
    for name in CORA_FILES:
        (source / "some" / "cora" / name).write_text(name)
    for folder, names in (("dblp", DBLP_FILES), ("imdb", IMDB_FILES), ("aifb", AIFB_FILES)):
        for name in names:
            (source / folder / name).write_text(name)

    tu = ("A", "graph_indicator", "graph_labels", "node_labels")
    with zipfile.ZipFile(source / "MUTAG.zip", "w") as archive:
        for part in (*tu, "README"):
            archive.writestr(f"MUTAG/MUTAG_{part}.txt", part)
    with zipfile.ZipFile(source / "ENZYMES.zip", "w") as archive:
        archive.writestr("ENZYMES/ENZYMES_A.txt", "one of three")

    found = lay_out(source, target)
    missing = ["hgb DBLP", "hgb IMDB", "tu PROTEINS", "tu ENZYMES", "qm9"]
    assert [name for name, folder in found.items() if folder is None] == missing
    raw = target / "tu" / "MUTAG" / "raw"
    assert {path.name: path.read_text() for path in raw.iterdir()} == {f"MUTAG_{part}.txt": part for part in tu}
    hgb = raw_paths(HGBDataset, root=str(target / "hgb"), name="acm")
    assert [path.read_text() for path in hgb] == [f"hgb {path.name}" for path in hgb]
    for path in raw_paths(DBLP, root=str(target / "dblp")):
        assert path.read_text() == path.name
    for path in raw_paths(IMDB, root=str(target / "imdb")):
        assert path.read_text() == path.name
    assert all((target / "aifb" / name).read_text() == name for name in AIFB_FILES)
    for path in raw_paths(Planetoid, root=str(target / "planetoid"), name="Cora", split="public"):
        assert path.read_text() == path.name

    hgb[0].write_text("mine")
    assert lay_out(source, target) == found
    assert hgb[0].read_text() == "mine", "what is there stays"


def test_half_a_data_set_is_not_laid_out(tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / DBLP_FILES[0]).write_text("one of seven")
    assert not any(lay_out(tmp_path / "downloads", tmp_path / "data").values())


def test_the_real_enzymes_open_without_downloading(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    lay_out(real_data("tu-ENZYMES"), tmp_path)
    found = TUDataset(str(tmp_path / "tu"), "ENZYMES", use_node_attr=True)
    assert (len(found), found.num_classes, found.num_node_features) == (600, 6, 21)


def test_the_real_cora_opens_without_downloading(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    lay_out(real_data("planetoid-cora"), tmp_path)
    data = Planetoid(str(tmp_path / "planetoid"), "Cora")[0]
    assert (data.num_nodes, data.num_edges) == (2708, 10556)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("dataset", "name", "known"),
    [("Planetoid", "Cora", True), ("Planetoid", "PubMed", False), ("IMDB", None, True), ("AMiner", None, False)],
)
def test_a_download_that_fails_names_it_for_the_sets_that_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, name: str | None, known: bool
) -> None:
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    for variable in ("https_proxy", "http_proxy"):  # nobody listens there any more
        monkeypatch.setenv(variable, f"http://localhost:{port}")
    for folder in (dataset.lower(), "elsewhere"):
        root, args = tmp_path / folder, {} if name is None else {"name": name}
        with pytest.raises(
            ExperimentError, match="could not be downloaded .*; lay its raw files out yourself: "
        ) as said:
            raw_files(PygData(source="pyg", dataset=dataset, root=str(root), args=args))
        text = str(said.value)
        assert ("lay_out_data.py" in text) == known
        if known and folder == "elsewhere":
            assert text.endswith(f"lay_out_data.py FOLDER_OF_IT data` does that, with data.root=data/{dataset.lower()}")
        elif known:
            assert text.endswith(f"lay_out_data.py FOLDER_OF_IT {tmp_path}` does that")


def test_the_sets_that_it_knows_are_those_that_messages_send_to_it(tmp_path: Path) -> None:
    assert _LAID_OUT["TUDataset"][1] == TU and _LAID_OUT["HGBDataset"][1] == tuple(name.lower() for name in HGB)
    for name in HGB:
        assert _by_script(PygData(source="pyg", dataset="HGBDataset", root="data/hgb", args={"name": name}))
    (tmp_path / "a").mkdir()
    for name, folder in {"Cora": "cora", **{name: f"tu {name}" for name in TU}}.items():
        assert folder in lay_out(tmp_path, tmp_path / "a")
        assert any(name in names for _, names in _LAID_OUT.values())
