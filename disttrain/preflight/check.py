"""The preflight of a job: each rank's facts are compared, and machines try to reach each other."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..config import Experiment, ExperimentError
from ..environment import place, started_by_torchrun
from ..place import Place
from ..refusal import Leave, say_once
from .facts import Facts, facts_here
from .findings import Finding, findings, told
from .meeting import Meeting
from .network import why
from .peers import Door, Listener, Try, try_doors
from .report import Report, Tries
from .store import reach_store


class Check:
    """See `place.Preflight`. A single process has nobody to compare with: nothing is done unless `show` is given.

    Args:
        experiment: None: it was refused, or is read on another machine.
        refused: why it was refused.
        show: is given the report, on rank 0, before anything is refused.
        more: further findings about the machine of rank 0.
        clock: what this machine's clock says.
    """

    def __init__(
        self,
        experiment: Experiment | None,
        refused: str = "",
        show: Callable[[Report], None] | None = None,
        more: Callable[[Facts, Experiment], list[Finding]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._experiment, self._refused, self._show, self._more, self._clock = experiment, refused, show, more, clock
        self._began = time.monotonic()

    def reach(self, address: str, port: int, timeout: float, *, holds: bool, aloud: bool) -> None:
        reach_store(address, port, timeout, place(), holds=holds, aloud=aloud)

    def look(self, here: Place) -> None:
        """Raises:
        Leave: something was refused, or a rank is missing. It has been said.
        PeerError: rank 0 or the store does not answer.
        """
        if here.size == 1 and self._show is None:
            if here.refused:
                raise ExperimentError(here.refused)
            return
        self._began = time.monotonic()
        own = facts_here(
            self._experiment,
            rank=here.rank,
            local_rank=here.local_rank,
            local_size=here.local_size,
            machine=here.machine,
            device=None if here.refused else here.device,
            refused=self._refused or here.refused,
            environment=self._environment(),
        )
        with contextlib.ExitStack() as stack:
            if own.local_rank == 0 and own.address and own.wanted:
                try:
                    listener = Listener(own.address, own.nonce, self._clock)
                except OSError as error:
                    silent = f"this machine cannot listen on its own address {own.address}: {why(error)}"
                    own = replace(own, refused=own.refused or silent)
                else:
                    stack.callback(listener.close)
                    own = replace(own, port=listener.port)
            verdict = Meeting(here, self._judge, self._tries).compare(own)
        if verdict.refusal or verdict.missing:
            say_once(verdict.refusal or verdict.missing, here)
            raise Leave(2 if verdict.refusal else 1)

    def _environment(self) -> Mapping[str, str]:
        """Without torchrun, that which `disttrain submit` would make."""
        interface = self._experiment.launch.interface if self._experiment is not None else None
        if interface is None or started_by_torchrun():
            return os.environ
        return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface, **os.environ}

    def _tries(self, doors: Sequence[Door]) -> list[Try]:
        return try_doors(doors, self._clock)

    def _judge(self, ranks: Sequence[Facts], tries: Tries) -> str:
        found = findings(ranks, tries)
        if self._more is not None and self._experiment is not None:
            found += self._more(ranks[0], self._experiment)
        refusal, warnings = told(found)
        for warning in warnings:
            print(f"disttrain: warning: {warning}", file=sys.stderr, flush=True)
        if self._show is not None:
            self._show(Report(ranks, tries, found, time.monotonic() - self._began))
        return refusal
