"""Ranks that meet in a store: all hear the same, also where an earlier attempt has left its notes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch.distributed import HashStore, Store  # pyright: ignore[reportPrivateImportUsage]

from disttrain.notes import Notes
from disttrain.place import Place
from disttrain.preflight.facts import Facts
from disttrain.preflight.meeting import Meeting, Verdict
from disttrain.preflight.peers import Door, Try
from disttrain.preflight.report import Tries
from disttrain.refusal import PeerError

from .test_preflight_findings import rank as made


def place(store: Store, rank: int, size: int, per_machine: int = 1, timeout: float = 20.0) -> Place:
    notes = Notes(store, timeout, watch=False)
    machine, local = divmod(rank, per_machine)
    return Place(rank, size, local, per_machine, machine, torch.device("cpu"), "", timeout, notes)


def meet(store: Store, ranks: Sequence[Facts], heard: list, **changed: float) -> list[Verdict]:
    """Each rank in a thread; what rank 0 is asked to judge goes to `heard`."""

    def judge(all_ranks: Sequence[Facts], tries: Tries) -> str:
        heard.append((list(all_ranks), tries))
        return "judged"

    def tried(doors: Sequence[Door]) -> list[Try]:
        return [Try(door.machine, detail=door.nonce) for door in doors]

    def run(facts: Facts) -> Verdict:
        here = place(
            store, facts.rank, int(changed.get("size", len(ranks))), facts.local_size, changed.get("timeout", 20)
        )
        return Meeting(here, judge, tried).compare(facts)

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(run, ranks))


@pytest.mark.parametrize(("size", "per_machine"), [(1, 1), (2, 1), (3, 1), (4, 2)])
def test_all_hear_the_verdict_and_rank_0_hears_of_all(size: int, per_machine: int) -> None:
    heard: list = []
    ranks = [made(number, per_machine) for number in range(size)]
    assert meet(HashStore(), ranks, heard) == [Verdict("judged", "")] * size
    ((found, tries),) = heard
    assert [facts.nonce for facts in found] == [facts.nonce for facts in ranks]
    machines = size // per_machine
    assert sorted((a, tried.machine) for a, tried in tries) == [
        (a, b) for a in range(machines) for b in range(machines) if a != b
    ]


def test_settings_are_sent_where_they_differ() -> None:
    heard: list = []
    ranks = [made(n, experiment=str(n == 2), settings={"lr": n // 2}) for n in range(3)]
    meet(HashStore(), ranks, heard)
    assert [facts.settings for facts in heard[0][0]] == [{"lr": 0}, {"lr": 0}, {"lr": 1}]


def test_notes_of_an_earlier_attempt_are_not_believed() -> None:
    store, heard = HashStore(), []
    before = [made(number) for number in range(3)]
    meet(store, before, heard)
    # Now each has another nonce, and another port, and rank 2 is late.
    now = [replace(facts, nonce=f"{number + 9:016x}", port=5000) for number, facts in enumerate(before)]

    def late(doors: Sequence[Door]) -> list[Try]:
        return [Try(door.machine, detail=str(door.port)) for door in doors]

    def judge(all_ranks: Sequence[Facts], tries: Tries) -> str:
        heard.append((list(all_ranks), tries))
        return ""

    def run(facts: Facts) -> Verdict:
        time.sleep(1.0 if facts.rank == 2 else 0.0)
        return Meeting(place(store, facts.rank, 3), judge, late).compare(facts)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run, now)) == [Verdict("", "")] * 3
    found, tries = heard[1]
    assert [facts.nonce for facts in found] == [facts.nonce for facts in now]
    assert {tried.detail for _, tried in tries} == {"5000"} and len(tries) == 6


def test_a_rank_that_does_not_come_is_named_by_all() -> None:
    heard: list = []
    verdicts = meet(HashStore(), [made(0), made(1)], heard, size=4, timeout=1.0)
    assert verdicts[0] == verdicts[1] and heard == []
    assert verdicts[0].missing.startswith(
        "rank 2 (machine 2), rank 3 (machine 3) of 4 ranks did not show up within 1 s"
    )
    assert verdicts[0].missing.endswith("There are host-1, host-2")


def test_without_rank_0_the_others_give_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("disttrain.preflight.meeting._SECONDS_OF_TRIES", 0.5)
    monkeypatch.setattr("disttrain.preflight.meeting._SECONDS_TO_HEAR", 0.5)
    with pytest.raises(PeerError, match=r"rank 1 on .* waited for rank 0 in comparing .* it has not shown up"):
        meet(HashStore(), [made(1)], [], size=2, timeout=0.5)
