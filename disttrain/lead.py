"""What one rank does for others, while they wait for as long as it shows that it is alive."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .config import ExperimentError
from .failure import ended, hung, said, without_store
from .notes import StoreLost
from .refusal import PeerError
from .stop import stopped_by

if TYPE_CHECKING:
    from .world import World

T = TypeVar("T")

_BEAT_SECONDS = 1.0
_POLL_SECONDS = 0.5


class Lead:
    """A piece of work of the ranks `workers`, each of which leaves beats and its outcome in the notes.

    Args:
        key: of the notes; of this piece alone.
        what: the work, for messages.
    """

    def __init__(self, world: World, key: str, what: str, workers: Sequence[int]) -> None:
        self._world, self._key, self._what, self._workers = world, key, what, workers

    def result(self, work: Callable[[], T], mine: int) -> T:
        """The result of worker `mine`, which may be this rank, once all workers have theirs.

        Raises:
            ExperimentError: a worker refused its input.
            PeerError: another worker failed in some other way, or fell silent.
        """
        world = self._world
        outcomes, cause = {}, None
        if world.rank in self._workers:
            outcomes[world.rank], cause = self._work(work)
        if cause is None or isinstance(cause, ExperimentError):
            for worker in self._workers:
                if worker not in outcomes:
                    outcomes[worker] = self._await(worker)
        elif cause is not None:
            raise cause
        refused = {worker: (host, text) for worker, (state, host, text) in outcomes.items() if state == "refused"}
        if len(refused) == len(self._workers) and len({text for _, text in refused.values()}) == 1:
            raise ExperimentError(next(iter(refused.values()))[1]) from cause
        if refused:
            named = [f"rank {worker} on {host}: {text}" for worker, (host, text) in sorted(refused.items())]
            raise ExperimentError("\n".join(named)) from cause
        return outcomes[mine][2]

    def _work(self, work: Callable[[], Any]) -> tuple[tuple[str, str, Any], BaseException | None]:
        """The outcome, for all to read, and the error if there was one."""
        world, key, finished = self._world, f"{self._key}/{self._world.rank}", threading.Event()

        def beat() -> None:
            count = 0
            while not finished.wait(_BEAT_SECONDS):
                count += 1
                try:
                    world.notes.set(f"{key}/beat", str(count))
                except StoreLost:
                    return  # and with it those who would listen

        try:
            world.notes.set(f"{key}/beat", "0")
        except StoreLost as error:
            raise without_store(world, self._what, error) from error
        pulse = threading.Thread(target=beat, name=f"beat: {self._what}", daemon=True)
        pulse.start()
        cause = None
        try:
            outcome = "done", world.host, work()
        except BaseException as error:
            if (stopped := stopped_by(error)) is not None:  # the others hear of it as of all that ends a job
                finished.set()
                raise stopped from None
            refused = isinstance(error, ExperimentError)
            outcome = ("refused", world.host, str(error)) if refused else ("failed", world.host, said(error))
            cause = error
        try:
            world.notes.set_large(f"{key}/outcome", pickle.dumps(outcome))
        except StoreLost as error:
            if cause is None:
                raise without_store(world, self._what, error) from error
        finally:
            finished.set()
            pulse.join()
        return outcome, cause

    def _await(self, worker: int) -> tuple[str, str, Any]:
        world, key = self._world, f"{self._key}/{worker}"
        last_beat, started = b"", time.monotonic()
        heard = started
        waiting = f"{world} waited for rank {worker} in {self._what}"
        try:
            while not world.notes.check([f"{key}/outcome"]):
                if world.notes.check([f"{key}/beat"]) and (beat := world.notes.get(f"{key}/beat")) != last_beat:
                    last_beat, heard = beat, time.monotonic()
                if world.notes.over is not None:
                    raise ended(world, world.notes.over, waiting)
                now = time.monotonic()
                if now - heard > world.timeout:
                    raise hung(f"{waiting}, which has been silent for {world.timeout:g} s")
                # Not store.wait: each time that it runs out, torch writes a warning. A tenth of the wait may be lost.
                time.sleep(min(_POLL_SECONDS, max(0.005, (now - started) / 10)))
            state, host, value = pickle.loads(world.notes.get_large(f"{key}/outcome"))
        except StoreLost as error:
            raise without_store(world, self._what, error) from error
        if state == "failed":
            raise PeerError(f"{world} could not go on: rank {worker} on {host} failed in {self._what}: {value}")
        return state, host, value
