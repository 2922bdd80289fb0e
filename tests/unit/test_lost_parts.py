"""Which partitions are missing where machines have only what they were sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.graph.holds import Holds, Piece, manifest_digest
from disttrain.graph.needed import needed_rows
from disttrain.graph.sending import ranges_of_rows
from disttrain.train.lost_parts import Part, part_of, refuse_lost
from tests.graphs import open_parts, write_parts, zoo


@pytest.mark.parametrize(("machine", "machines", "held"), [(0, 2, {0}), (1, 2, {1, 2}), (2, 3, {2}), (0, 1, {0, 1, 2})])
def test_a_machine_has_the_partitions_that_it_was_sent(
    tmp_path: Path, machine: int, machines: int, held: set[int]
) -> None:
    directory = write_parts(zoo(), tmp_path / "parts", 3)
    assert part_of(directory) is None and part_of(tmp_path / "nowhere") is None
    graph = open_parts(directory)
    sent = ranges_of_rows(graph, needed_rows(graph.seen_by(machine, machines)))
    pieces = {name: [Piece(start, stop, "") for start, stop in ranges] for name, ranges in sent.items()}
    Holds(manifest_digest(directory) or "", pieces, "host-9").write(directory)
    assert part_of(directory) == Part(3, frozenset(held), "host-9")


def test_what_is_missing_is_said() -> None:
    one = str(refuse_lost("cut", [Part(3, frozenset({1, 2}), "a")]))
    assert one.startswith(
        "partition 0 (of 0 to 2) of cut is on no machine of this job: they were on a, which made them"
    )
    assert "name a directory on a shared disk (partition.dir)" in one
    two = str(refuse_lost("cut", [Part(4, frozenset({0}), "a"), Part(4, frozenset({3}), "a")]))
    assert two.startswith("partitions 1, 2 (of 0 to 3) of cut are on no machine")
    none = str(refuse_lost("cut", [Part(2, frozenset({0}), ""), Part(2, frozenset({1}), "")]))
    assert none.startswith(
        "no machine of this job has all 2 partitions of cut: they were on the machine that made them"
    )
