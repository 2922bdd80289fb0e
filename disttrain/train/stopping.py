"""How a trainer stops when it is asked to: between two steps, or in the middle of a validation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ..config import Experiment
from ..failure import failed_meanwhile
from ..report.run_report import note_stop
from ..stop import Agreement, StopHere, StopRequest, agree_to_stop, stopped_by
from ..world import World
from .evaluate import Evaluation

if TYPE_CHECKING:
    from .trainer import Trainer


@contextmanager
def noted(experiment: Experiment, world: World) -> Iterator[None]:
    """What stops the run that the block is, before and after training too, is in its directory for who looks there.

    Raises:
        PeerError: instead of `Stopped`, where another rank has failed.
    """
    try:
        yield
    except Exception as error:
        stopped = stopped_by(error)
        if stopped is not None and (failure := failed_meanwhile(world, stopped)) is not None:
            raise failure from error
        if stopped is not None and world.leads_machine:
            note_stop(Path(experiment.directory))
        raise


def stop_here(trainer: Trainer) -> NoReturn:
    """Write a checkpoint and leave, as all ranks do now. What an epoch's end has to do is left to who goes on.

    Raises:
        Stopped: always.
    """
    saved, position = trainer.saved, trainer.position
    with trainer.clock.wall("checkpoint"):
        # An undisturbed run would not have averaged them here: it gets them back. Who predicts gets the average.
        each = trainer.statistics.of_shares()
        trainer.statistics.share()
        saved.save(trainer.all_seconds(), trainer.what("writing a checkpoint"), each=each)
    saved.write("stop")  # for who looks at the run meanwhile: it is cut off again when the run goes on
    checkpoint = f"a checkpoint is in {saved.checkpoints.directory}, and {StopRequest.again} goes on from it"
    stopped = agree_to_stop(trainer.world, trainer.stop_request, f"after step {position.step}; {checkpoint}")
    trainer.progress.say(str(stopped))
    trainer.world.barrier("stopping")  # torchrun ends all ranks when the first one leaves
    raise stopped


def validate(trainer: Trainer) -> Evaluation:
    """Score the validation split.

    Raises:
        Stopped: somebody asked for it; a checkpoint was written, from which the validation begins again.
    """
    before = trainer.statistics.copy()
    trainer.statistics.share()
    try:
        return trainer.evaluate("val", Agreement(trainer.world, trainer.stop_request, "evaluation").look)
    except StopHere:
        trainer.statistics.put_back(before)
        stop_here(trainer)
