"""Molecules without chemistry: as many atoms and bonds as those of QM9, with its attributes, as PyG's `QM9` keeps them.

Atoms and rings of a molecule are drawn as they occur in every twentieth molecule of QM9 (Ramakrishnan et al.,
Scientific Data 2014). A molecule of n atoms and r rings has n - 1 + r bonds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.data.dataset import _repr

ATOMS = {
    5: 2, 8: 4, 9: 9, 10: 23, 11: 55, 12: 104, 13: 210, 14: 323, 15: 507, 16: 683, 17: 866, 18: 895, 19: 885, 20: 598,
    21: 680, 22: 238, 23: 291, 24: 42, 25: 100, 26: 4, 27: 23,
}  # fmt: skip
RINGS = {0: 674, 1: 2567, 2: 2099, 3: 996, 4: 194, 5: 12}
QM9_GRAPHS = 130_831
_LETTERS = np.array(list("CNOFc1=#()"))


def molecules(count: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """All molecules as one graph, and where each one's part of it lies: the form of PyG's `InMemoryDataset`."""
    rng = np.random.default_rng(seed)
    atoms, rings = (_drawn(rng, of, count) for of in (ATOMS, RINGS))
    bonds = atoms - 1 + rings
    num_nodes, num_edges = int(atoms.sum()), int(2 * bonds.sum())
    at = np.arange(bonds.sum()) - np.repeat(np.cumsum(bonds) - bonds, bonds)
    size = np.repeat(atoms, bonds)
    # A tree in which each atom has an earlier one for a parent, and further bonds between any two.
    in_tree, any_ = at < size - 1, rng.integers(0, 1 << 30, len(at))
    src = np.where(in_tree, np.minimum(at + 1, size - 1), any_ % size)
    dst = np.where(in_tree, any_ % np.maximum(src, 1), (src + 1) % size)
    edges = [np.stack(ends, axis=1).reshape(-1) for ends in ((src, dst), (dst, src))]
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 4, (num_edges,), generator=generator)
    letters = _LETTERS[rng.integers(0, len(_LETTERS), (count, 14))]
    content = {
        "x": torch.randint(0, 2, (num_nodes, 11), generator=generator).float(),
        "edge_index": torch.from_numpy(np.stack(edges)),
        "edge_attr": torch.nn.functional.one_hot(kinds, 4).float(),
        "y": torch.randn(count, 19, generator=generator),
        "pos": torch.randn(num_nodes, 3, generator=generator),
        "z": torch.randint(1, 10, (num_nodes,), generator=generator),
        "smiles": ["".join(row) for row in letters],
        "name": [f"gdb_{number + 1}" for number in range(count)],
        "idx": torch.arange(count),
    }
    of_nodes, of_edges, of_graphs = (
        torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])) for sizes in (atoms, 2 * bonds, np.ones(count, int))
    )
    by_name = {**dict.fromkeys(("x", "pos", "z"), of_nodes), **dict.fromkeys(("edge_index", "edge_attr"), of_edges)}
    return content, {name: by_name.get(name, of_graphs) for name in content}


def _drawn(rng: np.random.Generator, occurrences: dict[int, int], count: int) -> np.ndarray:
    shares = np.array(list(occurrences.values())) / sum(occurrences.values())
    return rng.choice(list(occurrences), count, p=shares)


def lay_out(root: Path, count: int) -> None:
    """Put them where PyG has what `QM9` has processed, with a raw file of as many bytes, which nobody reads."""
    (root / "raw").mkdir(parents=True)
    (root / "processed").mkdir()
    content, slices = molecules(count)
    torch.save(content, root / "raw" / "qm9_v3.pt")
    torch.save((content, slices, Data), root / "processed" / "data_v3.pt")
    for name in ("pre_transform.pt", "pre_filter.pt"):
        torch.save(_repr(None), root / "processed" / name)
