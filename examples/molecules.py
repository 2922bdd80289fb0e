"""Collections of molecules: tables of SMILES or of coordinates become graphs.

Used by `esol.yaml`, `esol_gps.yaml` and `esol_rings.yaml` in `configs/`, which need RDKit
(`pip install disttrain[molecules]`), and by `qm9_gap.yaml`, which does not.

Each function yields one graph after the other, so that no table of them has to be in memory.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import from_smiles

ELEMENTS = ("H", "C", "N", "O", "F")
EV = 27.211386
"""Electron volts in a Hartree."""


def esol(path: str) -> Iterator[Data]:
    """ESOL, 1,128 molecules (Delaney 2004): log10 of the solubility in water, in mol/l, of each.

    Args:
        path: of `delaney-processed.csv`, as DeepChem and MoleculeNet publish it.
    """
    for row in _rows(path):
        graph = from_smiles(row["smiles"].strip())
        graph.y = torch.tensor([float(row["measured log solubility in mols per litre"])])
        yield graph


def esol_with_rings(path: str) -> Iterator[HeteroData]:
    """The same as heterogeneous graphs: atoms and their bonds, and the rings that they are in (some have none)."""
    from rdkit import Chem

    for flat in esol(path):
        molecule: Any = Chem.MolFromSmiles(flat.smiles)  # pyright: ignore[reportAttributeAccessIssue]
        rings = [list(ring) for ring in molecule.GetRingInfo().AtomRings()]
        aromatic = [all(molecule.GetAtomWithIdx(atom).GetIsAromatic() for atom in ring) for ring in rings]
        graph: Any = HeteroData()
        graph["atom"].x = flat.x
        graph["ring"].x = torch.tensor([[len(ring), yes] for ring, yes in zip(rings, aromatic)]).reshape(-1, 2).float()
        graph["atom", "bond", "atom"].edge_index = flat.edge_index
        graph["atom", "bond", "atom"].edge_attr = flat.edge_attr
        pairs = [(atom, number) for number, ring in enumerate(rings) for atom in ring]
        inside = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()
        graph["atom", "in", "ring"].edge_index = inside
        graph["ring", "has", "atom"].edge_index = inside.flip(0)
        graph.y = flat.y
        yield graph


def qm9_gap(path: str, cutoff: float = 3.0, width: int = 16) -> Iterator[Data]:
    """Molecules of QM9 by their atoms in space: the gap between HOMO and LUMO, in eV.

    Nodes are atoms, `x` their element; edges join those that are nearer than `cutoff` Ångström, and `edge_attr` says
    how near by `width` Gaussians. No chemistry is needed, and turning a molecule changes nothing.

    Args:
        path: a CSV file (`.gz` or not) with the columns of the package `qm9pack`.
    """
    centres = np.linspace(0.8, cutoff, width, dtype=np.float32)
    for row in _rows(path):
        elements = json.loads(row["Elements"].replace("'", '"'))
        places = np.array(json.loads(row["XYZ_Ang"]))
        distances = np.linalg.norm(places[:, None] - places, axis=2)
        edge_index = np.nonzero((distances < cutoff) & ~np.eye(len(places), dtype=bool))
        beyond = (distances[edge_index].astype(np.float32)[:, None] - centres) / (centres[1] - centres[0])
        yield Data(
            x=torch.tensor([[ELEMENTS.index(element)] for element in elements]),
            edge_index=torch.from_numpy(np.stack(edge_index)),
            edge_attr=torch.from_numpy(np.exp(-0.5 * beyond**2)),
            y=torch.tensor([float(row["HOMO_LUMO_gap_au"]) * EV]),
        )


def _rows(path: str) -> Iterator[dict[str, str]]:
    opened = gzip.open if Path(path).suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
