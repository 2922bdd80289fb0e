"""How a command begins: its experiment is read, and the ranks find each other.

Nothing here imports torch before the input has been read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGTERM
from typing import TYPE_CHECKING, Any

from . import guard
from .config import Experiment, ExperimentError, Train
from .config.file import read_experiment
from .config.ignored import ignored_settings
from .environment import place, started_by_torchrun
from .refusal import Leave, say_once
from .stop import StopRequest, stopped_by

if TYPE_CHECKING:
    from .world import World


class NotHereError(ExperimentError):
    """Another machine may have it."""


@contextmanager
def joined(
    arguments: argparse.Namespace,
    read: Callable[[str, list[str]], Experiment] = read_experiment,
    stopped_code: int = 128 + SIGTERM,
    directory: str | None = None,
    **of_check: Any,
) -> Iterator[tuple[World, Experiment]]:
    """Read the experiment, join the other ranks, and make sure that all have read the same.

    A refusal is said once by all ranks together. A process on its own refuses before it imports torch.

    Args:
        stopped_code: exit code after SIGTERM.
        directory: of the run; None: that of the experiment.
        of_check: what else `preflight.check.Check` is told.

    Raises:
        ExperimentError: a process on its own was refused.
        Leave: ranks were, and it has been said.
    """
    experiment, refusal = None, None
    try:
        experiment = read(arguments.experiment, arguments.overrides)
    except ExperimentError as error:
        if not started_by_torchrun():
            raise
        refusal = error

    from .failure import hear_no_more
    from .preflight.check import Check
    from .world import World

    # Without a shared disk, a run's directory is on the machine of its first rank.
    elsewhere = isinstance(refusal, NotHereError)

    def given(others: list[Experiment | None]) -> Experiment:
        found = experiment or next((there for there in others if elsewhere and there is not None), None)
        if found is None:
            raise ExperimentError(str(refusal))
        return found

    settings = experiment.train if experiment is not None else Train()
    if experiment is not None:
        guard.keep(experiment.directory if directory is None else directory, place())
    check = Check(experiment, "" if refusal is None or elsewhere else str(refusal), **of_check)
    world_to_be = World.start(settings.device, settings.timeout, settings.threads, check)
    with world_to_be as world, StopRequest(True, stopped_code):
        try:
            read_by_others = world.gather(experiment, "reading the experiment")
            agreed = world.together(lambda: given(read_by_others), "reading the experiment")
            if experiment is None:
                guard.keep(agreed.directory, place())
            if world.is_lead:
                for line in ignored_settings(agreed):
                    print(f"disttrain: warning: {line}", file=sys.stderr, flush=True)
            yield world, agreed
        except ExperimentError as error:
            if (stopped := stopped_by(error)) is not None:
                raise stopped from None
            if started_by_torchrun():
                hear_no_more()  # others that were refused may have left by now
            say_once(str(error), world)
            raise Leave(2) from error
