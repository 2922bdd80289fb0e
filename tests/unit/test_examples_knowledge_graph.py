"""N-Triples become a graph of one node type, with a relation and its inverse for each predicate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples.knowledge_graph import entities

TRIPLES = """\
# a comment
<http://x.org/ann> <http://x.org/o#knows> <http://x.org/bob> .
<http://x.org/bob> <http://x.org/o#knows> _:b1 .

<http://x.org/ann> <http://y.org/knows> "a \\"quoted\\" . name"@en .
<http://x.org/bob> <http://x.org/age> "7"^^<http://www.w3.org/2001/XMLSchema#integer> . # and another
"""


def write(folder: Path, triples: str = TRIPLES) -> Path:
    (folder / "g.nt").write_text(triples)
    (folder / "trainingSet.tsv").write_text("person\tid\tlabel_affiliation\nhttp://x.org/bob\t1\tblue\n")
    (folder / "testSet.tsv").write_text("person\tid\tlabel_affiliation\nhttp://x.org/ann\t2\tamber\n")
    return folder


def test_triples_become_nodes_and_relations(tmp_path: Path) -> None:
    data = entities(str(write(tmp_path)), graph="g.nt")
    assert data["entity"].num_nodes == 5
    names = [relation for _, relation, _ in data.edge_types]
    assert names == ["age", "inverse_age", "knows", "inverse_knows", "knows_2", "inverse_knows_2"]
    knows = data["entity", "knows", "entity"].edge_index
    assert knows.tolist() == [[0, 1], [1, 2]]
    assert torch.equal(data["entity", "inverse_knows", "entity"].edge_index, knows.flip(0))
    assert data["entity"].y.tolist() == [0, 1, -1, -1, -1]
    assert data["entity"].train_mask.tolist() == [False, True, False, False, False]
    assert data["entity"].test_mask.tolist() == [True, False, False, False, False]
    assert data["entity"].split.tolist() == [2, 1, 0, 0, 0]


def test_a_line_that_is_no_triple_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 2: expected a triple of N-Triples, got <http://x.org/ann> knows bob"):
        entities(str(write(tmp_path, "# one\n<http://x.org/ann> knows bob .\n")), graph="g.nt")


def test_the_real_aifb_has_the_published_counts(real_data: Callable[[str], Path]) -> None:
    data = entities(str(real_data("rdf-aifb")))
    assert (data["entity"].num_nodes, len(data.edge_types)) == (8285, 2 * 45)
    assert sum(data[e].num_edges for e in data.edge_types) == 2 * 29043
    assert (int(data["entity"].train_mask.sum()), int(data["entity"].test_mask.sum())) == (140, 36)
    assert data["entity"].y.unique().tolist() == [-1, 0, 1, 2, 3]
