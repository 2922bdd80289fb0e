"""How ranks compare facts with nothing but the store, which may still hold what an earlier attempt has left there.

Every rank leaves its facts, with a nonce of its own. Rank 0 reads them and leaves the roster: all nonces, and the doors
of the machines. A rank that finds itself in the roster tries the doors and leaves, under the roster's digest, what came
of it (and its settings, if they differ somewhere); under that digest rank 0 leaves the verdict. Facts that an earlier
attempt has left are in no roster that is answered by all: rank 0 reads again the facts of those that do not answer, and
leaves another roster. Until the doors are tried, all notes fit into a packet each in a job of a few machines: where
large packets are lost, that is found out.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import NamedTuple

from ..config.counted import counted
from ..failure import first_line
from ..notes import StoreLost
from ..place import Place
from ..refusal import PeerError
from .facts import Facts
from .peers import ANSWER_SECONDS, CONNECT_SECONDS, Door, Try
from .report import Tries

_SECONDS_TO_SAY = 15.0
_SECONDS_BETWEEN_READS = 0.3
_SECONDS_OF_TRIES = CONNECT_SECONDS + 2 * ANSWER_SECONDS
_SECONDS_TO_HEAR = 10.0
_MOST_SHOWN = 8


class Verdict(NamedTuple):
    """The same on all ranks."""

    refusal: str
    """Empty: none."""
    missing: str
    """Which ranks did not come; empty: none."""


class Meeting:
    """One attempt of one rank.

    Args:
        judge: on rank 0, makes the refusal (or "") of the facts and tries of all.
        try_doors: on the first rank of each machine, tries those of the others.
    """

    def __init__(
        self,
        place: Place,
        judge: Callable[[Sequence[Facts], Tries], str],
        try_doors: Callable[[Sequence[Door]], list[Try]],
    ) -> None:
        self._place, self._notes = place, place.notes
        self._judge, self._try_doors = judge, try_doors
        self._began, self._said = time.monotonic(), False

    def compare(self, own: Facts) -> Verdict:
        """Every rank calls it, and hears the same.

        Raises:
            PeerError: rank 0 or the store does not answer.
        """
        try:
            self._notes.set_large(_facts_of(own.rank), own.packed())
            return self._as_lead(own) if self._place.is_lead else self._as_other(own)
        except StoreLost as error:
            raise PeerError(
                f"{self._place} could not go on in comparing the machines: the store that rank 0 or its torchrun agent "
                f"holds does not answer ({first_line(error)})"
            ) from error

    def _as_lead(self, own: Facts) -> Verdict:
        ranks: dict[int, Facts] = {own.rank: own}
        others = range(1, self._place.size)
        if missing := self._missing(others):
            for rank in set(others) - set(missing):
                ranks[rank] = Facts.unpacked(self._notes.get_large(_facts_of(rank)))
            return self._end(self._call(ranks), Verdict("", self._gone(missing, ranks)))
        digest, read, deadline, mine = "", 0.0, 0.0, []
        while True:
            now = time.monotonic()
            silent = [rank for rank in others if not digest or not self._notes.check([_tries_of(digest, rank)])]
            if digest and not silent:
                break
            if not digest or now - read > _SECONDS_BETWEEN_READS:
                before = {rank: ranks[rank].nonce for rank in silent if rank in ranks}
                for rank in silent:
                    ranks[rank] = Facts.unpacked(self._notes.get_large(_facts_of(rank)))
                if not digest or before != {rank: ranks[rank].nonce for rank in silent}:
                    digest = self._call(ranks)
                    deadline = time.monotonic() + self._place.timeout + _SECONDS_OF_TRIES
                    mine = self._tried(own, _doors(ranks)) if self._place.size > 1 else []
                read = time.monotonic()
            if now > deadline > 0:
                return self._end(digest, Verdict("", self._gone(silent, ranks)))
            time.sleep(0.01)
        tries: Tries = [(own.machine, one) for one in mine]
        for rank in others:
            answer = json.loads(self._notes.get_large(_tries_of(digest, rank)))
            tries += [(ranks[rank].machine, Try(**one)) for one in answer["tries"]]
            ranks[rank] = replace(ranks[rank], settings=answer["settings"])
        in_order = [ranks[rank] for rank in range(self._place.size)]
        return self._end(digest, Verdict(self._judge(in_order, tries), ""))

    def _call(self, ranks: dict[int, Facts]) -> str:
        """Leave the roster; its digest."""
        given = {facts.experiment for facts in ranks.values()} - {""}
        roster = {
            "settings": len(given) > 1,
            "nonces": [ranks[rank].nonce if rank in ranks else "" for rank in range(self._place.size)],
            "doors": [asdict(door) for door in _doors(ranks)],
        }
        text = json.dumps(roster).encode()
        self._notes.set_large(_ROSTER, text)
        return _digest(text)

    def _end(self, digest: str, verdict: Verdict) -> Verdict:
        self._notes.set(_verdict_of(digest), json.dumps(verdict))
        return verdict

    def _as_other(self, own: Facts) -> Verdict:
        bound = self._place.timeout + _SECONDS_OF_TRIES + _SECONDS_TO_HEAR
        answered, pause, began = "", 0.01, time.monotonic()
        while time.monotonic() - began < bound:
            if self._notes.check([_ROSTER]):
                text = self._notes.get_large(_ROSTER)
                digest, roster = _digest(text), json.loads(text)
                nonces = roster["nonces"]
                if own.rank < len(nonces) and nonces[own.rank] == own.nonce:
                    if digest != answered:
                        tries = self._tried(own, [Door(**door) for door in roster["doors"]])
                        settings = own.settings if roster["settings"] else None
                        answer = json.dumps({"tries": [asdict(one) for one in tries], "settings": settings})
                        self._notes.set_large(_tries_of(digest, own.rank), answer.encode())
                        answered, pause = digest, 0.01
                    if self._notes.check([_verdict_of(digest)]):
                        return Verdict(*json.loads(self._notes.get(_verdict_of(digest))))
            time.sleep(pause)
            pause = min(pause * 1.3, 0.1)
        raise PeerError(
            f"{self._place} waited for rank 0 in comparing the machines, at most {bound:g} s: "
            + ("it has not said what came of it" if answered else "it has not shown up")
        )

    def _tried(self, own: Facts, doors: Sequence[Door]) -> list[Try]:
        """One rank of a machine tries for all."""
        return self._try_doors([door for door in doors if door.machine != own.machine]) if not own.local_rank else []

    def _missing(self, others: Sequence[int]) -> list[int]:
        """Wait for the facts of the others; those that have not come in time."""
        pause = 0.005
        while not self._notes.check([_facts_of(rank) for rank in others]):
            waited = time.monotonic() - self._began
            late = waited > self._place.timeout
            if late or (waited > _SECONDS_TO_SAY and not self._said):
                missing = [rank for rank in others if not self._notes.check([_facts_of(rank)])]
                if late:
                    return missing
                text = f"[preflight] {self._place} still waits for {self._named(missing)} to show up"
                print(text, file=sys.stderr, flush=True)
                self._said = True
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return []

    def _gone(self, missing: Sequence[int], ranks: dict[int, Facts]) -> str:
        waited = time.monotonic() - self._began
        there = sorted({facts.host for rank, facts in ranks.items() if rank not in missing})
        return (
            f"{self._named(missing)} of {counted(self._place.size, 'rank')} did not show up within {waited:.0f} s of "
            f"{self._place} (train.timeout is {self._place.timeout:g}); look at what torchrun says on that machine. "
            f"There {'is' if len(there) == 1 else 'are'} {', '.join(there[:_MOST_SHOWN])}"
        )

    def _named(self, missing: Sequence[int]) -> str:
        """`rank 2 (machine 1)`, with machines counted from 0 as torchrun does."""
        shown = [f"rank {rank} (machine {rank // self._place.local_size})" for rank in missing[:_MOST_SHOWN]]
        more = len(missing) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


_ROSTER = "preflight/roster"


def _facts_of(rank: int) -> str:
    return f"preflight/facts/{rank}"


def _tries_of(digest: str, rank: int) -> str:
    return f"preflight/{digest}/tries/{rank}"


def _verdict_of(digest: str) -> str:
    return f"preflight/{digest}/verdict"


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _doors(ranks: dict[int, Facts]) -> list[Door]:
    """None where there is no need to try: something else is refused already, or nobody wants to look."""
    if any(facts.refused or not facts.wanted for facts in ranks.values()):
        return []
    return [
        Door(facts.machine, facts.address, facts.port, facts.nonce)
        for facts in ranks.values()
        if facts.local_rank == 0 and facts.port
    ]
