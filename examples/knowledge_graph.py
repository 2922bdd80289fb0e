"""A knowledge graph in N-Triples, with entities that have a class: the data of `configs/aifb.yaml`.

As the R-GCN paper has it (https://arxiv.org/abs/1703.06103): one node type, a node for each subject and object
(literals too), no features; each predicate is a relation, its inverse another one.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch_geometric.data import HeteroData

_TERM = r'<[^>]*>|_:\S+|"(?:[^"\\]|\\.)*"(?:\^\^<[^>]*>|@[A-Za-z0-9-]+)?'
_TRIPLE = re.compile(rf"\s*(<[^>]*>|_:\S+)\s+<([^>]*)>\s+({_TERM})\s*\.\s*(?:#.*)?")


def entities(
    folder: str,
    graph: str = "aifb_stripped.nt.gz",
    entity: str = "person",
    label: str = "label_affiliation",
    train: str = "trainingSet.tsv",
    test: str = "testSet.tsv",
) -> HeteroData:
    """The graph with the node type `entity`, labels `y` (-1: none), `train_mask` and `test_mask`.

    `split` says the same in one attribute (1: train, 2: test, 0: neither), for experiments that do without validation:
    `split: {by: column, column: split, train: "1", test: "2"}`.

    Args:
        folder: holds the other files.
        graph: N-Triples, one a line; gzip by its name.
        entity: column of `train` and `test` (tables with tabs and a header) that holds the entity's IRI.
        label: column that holds its class.

    Nodes are numbered in the order in which they come, relations and classes by name: the same on each machine.
    """
    nodes: dict[str, int] = {}
    edges: dict[str, list[tuple[int, int]]] = {}
    for subject, predicate, value in _triples(Path(folder) / graph):
        pair = nodes.setdefault(subject, len(nodes)), nodes.setdefault(value, len(nodes))
        edges.setdefault(predicate, []).append(pair)
    data = HeteroData()
    data["entity"].num_nodes = len(nodes)
    for predicate, name in _short_names(sorted(edges)).items():
        edge_index = torch.tensor(edges[predicate]).t().contiguous()
        data["entity", name, "entity"].edge_index = edge_index
        data["entity", f"inverse_{name}", "entity"].edge_index = edge_index.flip(0)
    rows = {mask: list(_rows(Path(folder) / file)) for mask, file in (("train_mask", train), ("test_mask", test))}
    classes = sorted({row[label] for of_split in rows.values() for row in of_split})
    data["entity"].y = torch.full((len(nodes),), -1)
    data["entity"].split = torch.zeros(len(nodes), dtype=torch.int64)
    for number, (mask, of_split) in enumerate(rows.items(), 1):
        ids = torch.tensor([nodes[f"<{row[entity]}>"] for row in of_split])
        data["entity"].y[ids] = torch.tensor([classes.index(row[label]) for row in of_split])
        data["entity"].split[ids] = number
        data["entity"][mask] = data["entity"].split == number
    return data


def _triples(path: Path) -> Iterator[tuple[str, str, str]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _TRIPLE.fullmatch(line.rstrip("\n"))
            if match is None:
                raise ValueError(f"{path}, line {number}: expected a triple of N-Triples, got {line.strip()[:80]}")
            yield match.group(1), match.group(2), match.group(3)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines, delimiter="\t")


def _short_names(iris: list[str]) -> dict[str, str]:
    """What comes after the last `/` or `#`; with a number where several end alike, without commas."""
    names: dict[str, str] = {}
    for iri in iris:
        short = re.split(r"[/#]", iri.rstrip("/#"))[-1].replace(",", "_")
        taken = sum(name == short or name.startswith(f"{short}_") for name in names.values())
        names[iri] = f"{short}_{taken + 1}" if taken else short
    return names
