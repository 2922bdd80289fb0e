"""`disttrain extend`: graphs are added to a collection that is stored."""

from __future__ import annotations

from pydantic import ValidationError

from ..config import Experiment, ExperimentError, GraphTask, PythonData
from ..config.yaml import YamlError, parse_yaml
from ..world import World
from .alone import say
from .collection_making import extend_collection


def addition_of(experiment: Experiment, function: str, args: str) -> PythonData:
    """Where the new graphs come from, with the filters and transforms of the experiment.

    Args:
        function: dotted path.
        args: YAML of a mapping.

    Raises:
        ExperimentError: the experiment is not about a collection, or the arguments are none.
    """
    if not isinstance(experiment.task, GraphTask):
        raise ExperimentError(f"task.kind is {experiment.task.kind}, about one graph; only collections are extended")
    try:
        found = parse_yaml(args).value
    except YamlError as error:
        raise ExperimentError(f"--args: expected YAML, such as '{{path: new.sdf}}': {error}") from error
    if not isinstance(found, dict):
        raise ExperimentError(f"--args: expected a mapping, such as '{{path: new.sdf}}', got {args!r}")
    data = experiment.data
    try:
        return PythonData(
            source="python", function=function, args=found, pre_filter=data.pre_filter,
            pre_transforms=data.pre_transforms, split=data.split, store=data.store,
        )  # fmt: skip
    except ValidationError as error:
        raise ExperimentError(f"--function: {error.errors()[0]['msg']}") from error


def extend(experiment: Experiment, addition: PythonData, again: bool, world: World) -> None:
    """Add them, on every machine that has a collection of its own.

    Raises:
        ExperimentError: see `extend_collection`.
        PeerError: a rank failed in it, or fell silent.
    """
    done = world.lead(
        lambda: extend_collection(experiment, addition, again), "extending the collection", per_machine=True
    )
    if world.leads_machine:
        say(done)
