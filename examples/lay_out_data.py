"""Put data sets that you have downloaded where the classes of PyG look for them, so that they download nothing.

    python examples/lay_out_data.py ~/Downloads data

looks through the first folder (and its subfolders) and fills `data/hgb`, `data/dblp`, `data/imdb`, `data/planetoid`,
`data/aifb`, `data/tu`, `data/esol` and `data/qm9`, where the files in `configs/` look:

    DBLP.zip, ACM.zip, IMDB.zip   the archives of the Heterogeneous Graph Benchmark (HGB), as its authors publish them
    adjM.npz and six more         the raw files of `torch_geometric.datasets.DBLP`, together in one folder
    adjM.npz and six more         those of `torch_geometric.datasets.IMDB`, likewise
    ind.cora.x and seven more     the raw files of `torch_geometric.datasets.Planetoid`, together in one folder
    aifb_stripped.nt.gz and two   the AIFB knowledge graph as R-GCN's authors publish it, together in one folder
    MUTAG.zip, PROTEINS.zip, ENZYMES.zip   the archives of TUDataset
    delaney-processed.csv         ESOL, as DeepChem publishes it
    qm9_every20th.csv.gz          a sample of QM9, in the columns of the package qm9pack

What is not found is left out and said; what is already there is left as it is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

HGB = ("ACM", "DBLP", "IMDB")
TU = ("MUTAG", "PROTEINS", "ENZYMES")
HGB_FILES = ("info.dat", "node.dat", "link.dat", "label.dat", "label.dat.test")
DBLP_FILES = (
    "adjM.npz",
    "features_0.npz",
    "features_1.npz",
    "features_2.npy",
    "labels.npy",
    "node_types.npy",
    "train_val_test_idx.npz",
)
IMDB_FILES = tuple(file.replace(".npy", ".npz") if file == "features_2.npy" else file for file in DBLP_FILES)
AIFB_FILES = ("aifb_stripped.nt.gz", "trainingSet.tsv", "testSet.tsv")
CORA_FILES = tuple(f"ind.cora.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index"))


def lay_out(source: Path, target: Path) -> dict[str, Path | None]:
    """Lay out every known data set under `source`.

    Returns:
        Data set -> the raw folder it is in now, or None if it was not found.
    """
    return {
        **{f"hgb {name}": _hgb(source, target / "hgb", name) for name in HGB},
        "pyg dblp": _folder(source, DBLP_FILES, target / "dblp" / "raw"),
        "pyg imdb": _folder(source, IMDB_FILES, target / "imdb" / "raw"),
        "aifb": _folder(source, AIFB_FILES, target / "aifb"),
        **{f"tu {name}": _tu(source, target / "tu", name) for name in TU},
        "esol": _folder(source, ("delaney-processed.csv",), target / "esol"),
        "qm9": _folder(source, ("qm9_every20th.csv.gz",), target / "qm9"),
        "cora": _folder(source, CORA_FILES, target / "planetoid" / "Cora" / "raw"),
    }


def _hgb(source: Path, root: Path, name: str) -> Path | None:
    raw = root / name.lower() / "raw"
    return raw if _unpacked(source, name, HGB_FILES, HGB_FILES, raw / name, raw) else None


def _tu(source: Path, root: Path, name: str) -> Path | None:
    raw = root / name / "raw"
    needed = tuple(f"{name}_{part}.txt" for part in ("A", "graph_indicator", "graph_labels"))
    further = tuple(
        f"{name}_{part}.txt" for part in ("node_labels", "node_attributes", "edge_labels", "edge_attributes")
    )
    return raw if _unpacked(source, name, needed, (*needed, *further), raw, raw) else None


def _unpacked(
    source: Path, name: str, needed: tuple[str, ...], files: tuple[str, ...], folder: Path, raw: Path
) -> bool:
    """Put those files into a folder that the archive `name`.zip has; it must have the needed ones."""
    if all((folder / file).is_file() for file in needed):
        return True
    for archive in sorted(source.rglob(f"{name}.zip")):
        with zipfile.ZipFile(archive) as opened:
            members = {Path(member).name: member for member in opened.namelist() if not member.endswith("/")}
            if not all(file in members for file in needed):
                continue
            there = tuple(file for file in files if file in members)
            with tempfile.TemporaryDirectory(dir=_made(raw)) as temporary:
                for file in there:
                    with opened.open(members[file]) as reader, open(Path(temporary) / file, "wb") as writer:
                        shutil.copyfileobj(reader, writer)
                _land(Path(temporary), there, folder)
        return True
    return False


def _folder(source: Path, files: tuple[str, ...], raw: Path) -> Path | None:
    if all((raw / file).is_file() for file in files):
        return raw
    for first in sorted(source.rglob(files[0])):
        if all((first.parent / file).is_file() for file in files):
            with tempfile.TemporaryDirectory(dir=_made(raw)) as temporary:
                for file in files:
                    shutil.copyfile(first.parent / file, Path(temporary) / file)
                _land(Path(temporary), files, raw)
            return raw
    return None


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _land(temporary: Path, files: tuple[str, ...], folder: Path) -> None:
    for file in files:
        os.replace(temporary / file, _made(folder) / file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder that holds the downloads")
    parser.add_argument("target", type=Path, help="folder to fill (`data` is what the configs name)")
    arguments = parser.parse_args()
    if not arguments.source.is_dir():
        parser.error(f"{arguments.source} is not a folder")
    found = lay_out(arguments.source, arguments.target)
    for name, folder in found.items():
        print(f"{name:10} {folder if folder else 'not found'}")
    return 0 if any(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
