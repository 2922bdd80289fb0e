"""The command line: each command is a few lines onto a function elsewhere.

Nothing here imports torch before the input has been read, so that `--help`, `schema` and a mistake in the YAML answer
at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

from . import __version__, guard, watchdog
from .config import Experiment, ExperimentError
from .config.check import nearest
from .config.counted import counted
from .config.file import plain, read_experiment
from .config.schema import schema_text
from .config.yaml import dump_yaml
from .environment import started_by_torchrun
from .joining import NotHereError, joined
from .launch.command import (
    experiment_arguments,
    note_points,
    note_results,
    one_run,
    point_argument,
    run_status,
    run_submit,
    run_sweep,
    status_arguments,
    submit_arguments,
)
from .launch.status import nearest_run
from .stop import stop_file


class Command(NamedTuple):
    help: str
    run: Callable[[argparse.Namespace], int]
    arguments: Callable[[argparse.ArgumentParser], None]


def run(arguments: list[str]) -> int:
    """Run what the arguments say; returns the exit code.

    Raises:
        ExperimentError: the input was refused.
    """
    parser, of_command = _parsers()
    if arguments and arguments[0] in ("--dry-run", "--fresh"):
        arguments = ["train", *arguments]
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        if not arguments[0].endswith((".yaml", ".yml")) and not Path(arguments[0]).exists():
            close = nearest(arguments[0], COMMANDS)
            raise ExperimentError(
                f"{arguments[0]!r} is neither a command ({', '.join(COMMANDS)}) nor a YAML file"
                + (f"; did you mean `{close}`?" if close else "")
            )
        arguments = ["train", *arguments]
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    if arguments[0] in COMMANDS:
        # Not by the main parser: options may stand between overrides.
        return COMMANDS[arguments[0]].run(of_command[arguments[0]].parse_intermixed_args(arguments[1:]))
    parser.parse_args(arguments)  # --help, --version, or an option that there is not
    return 2


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        prog="disttrain",
        description="Train graph neural networks on heterogeneous graphs over several machines, from one YAML file.",
        epilog="[torchrun ...] -m disttrain EXPERIMENT.yaml [key.path=value ...] is short for `train`.",
    )
    parser.add_argument("--version", action="version", version=f"disttrain {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    of_command = {
        name: commands.add_parser(name, help=command.help, description=command.help)
        for name, command in COMMANDS.items()
    }
    for name, command in COMMANDS.items():
        command.arguments(of_command[name])
    return parser, of_command


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    experiment_arguments(parser)
    parser.add_argument("--dry-run", action="store_true", help="resolve, check and print the plan; touch nothing")
    parser.add_argument(
        "--fresh", action="store_true", help="remove what an earlier run left in the run directory, and start anew"
    )
    point_argument(parser)


def _train(arguments: argparse.Namespace) -> int:
    if arguments.point is None and not started_by_torchrun():
        experiment = read_experiment(arguments.experiment, arguments.overrides)
        if experiment.sweep is not None:
            return run_sweep(experiment, arguments)
    # Whether a run is over is told by its directory; of other commands, only the exit code tells.
    with joined(arguments, one_run(arguments.point), stopped_code=0) as (world, experiment):
        from .train import job
        from .train.stopping import noted

        if arguments.dry_run:
            plan = world.lead(lambda: job.plan(experiment, world), "making the plan")
            if world.is_lead:
                print(dump_yaml(plain(experiment)) + "\n" + "\n".join(f"# {line}" for line in plan))
            return 0
        sweep = None
        if arguments.point is not None:  # now, as the file may be another one by the end
            sweep = world.lead(lambda: note_points(arguments.experiment, arguments.overrides), "noting the sweep")
        if world.leads_machine:
            watchdog.begin(experiment.directory, guard.job_began())
        with stop_file(experiment, world, arguments.fresh), noted(experiment, world):
            job.run(experiment, world, fresh=arguments.fresh)
        if sweep is not None and world.is_lead:
            note_results(sweep)
    return 0


def _partition(arguments: argparse.Namespace) -> int:
    with joined(arguments) as (world, experiment):
        from .train import job

        graph = job.prepare_graph(experiment, world)
        if world.is_lead:
            print("\n".join(job.describe_partition(graph)))
    return 0


def _predict_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN_DIR", help="of a run that is finished, or was stopped")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key.path=value", help="settings laid over the run's own"
    )
    which = "all, train, val, test, unlabelled, rest (in no split); several: val,test. Default: all"
    parser.add_argument("--split", metavar="NAMES", help=which)
    parser.add_argument("--ids", metavar="FILE", help="what to predict, by key: .parquet, .csv, or an id a line")
    parser.add_argument(
        "--key",
        metavar="NAMES",
        help="of a collection: attributes by which you know the graphs, as `name` or `smiles,idx`",
    )
    parser.add_argument("--checkpoint", default="best", metavar="WHICH", help="best (the default), last, or step-N")
    parser.add_argument(
        "--method", choices=("sampled", "layerwise"), help="from drawn neighbours, or exactly; default: evaluate.method"
    )
    parser.add_argument("--output", metavar="DIR", help="where to; default: RUN_DIR/predictions")
    parser.add_argument(
        "--embeddings",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also the vectors of nodes or graphs; default: where the model has them",
    )
    parser.add_argument("--logits", action="store_true", help="also what the model returned, in fp32")
    parser.add_argument("--overwrite", action="store_true", help="replace predictions that are there")


def _predict(arguments: argparse.Namespace) -> int:
    from .predict.request import Request

    request = Request.make(
        arguments.run_directory,
        split=arguments.split,
        ids=arguments.ids,
        key=arguments.key,
        checkpoint=arguments.checkpoint,
        output=arguments.output,
        embeddings=arguments.embeddings,
        logits=arguments.logits,
        overwrite=arguments.overwrite,
    )
    arguments.experiment = str(request.run_directory / "experiment.yaml")
    if arguments.method is not None:
        arguments.overrides.append(f"evaluate.method={arguments.method}")
    with joined(arguments, _read_run, directory=str(request.run_directory)) as (world, experiment):
        from .predict.job import predict
        from .predict.table import show_predictions

        summary = predict(experiment, request, world)
        if world.is_lead:
            show_predictions(summary, request.output)
    return 0


def _read_run(path: str, overrides: list[str]) -> Experiment:
    if not Path(path).exists():
        raise NotHereError(
            f"{Path(path).parent} holds no {Path(path).name} on any machine: expected the directory of a run"
            + nearest_run(Path(path).parent)
        )
    return read_experiment(path, overrides)


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    experiment_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--machines", type=int, metavar="N", help="to estimate memory for; default: launch.nodes, else 1"
    )


def _inspect(arguments: argparse.Namespace) -> int:
    if arguments.machines is not None and arguments.machines < 1:
        raise ExperimentError(f"--machines: expected a number of at least 1, got {arguments.machines}")
    with joined(arguments) as (world, experiment):
        from .inspect.job import inspect
        from .inspect.table import show_facts

        def say(line: str) -> None:
            print(f"[inspect] {line}", file=sys.stderr, flush=True)

        with redirect_stdout(sys.stderr):  # what sources print on the way is no part of the report
            facts = inspect(experiment, world, arguments.machines or experiment.launch.nodes or 1, say)
        if arguments.json:
            print(json.dumps(facts, indent=2))
        else:
            show_facts(facts)
    return 0


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    from .preflight.command import doctor_arguments

    experiment_arguments(parser)
    doctor_arguments(parser)


def _doctor(arguments: argparse.Namespace) -> int:
    from .preflight.command import doctor_check

    with joined(arguments, **doctor_check(arguments)) as (world, experiment):
        from .train.conflicts import expected_world, refuse, world_conflicts

        if started_by_torchrun():
            world.together(lambda: refuse(world_conflicts(experiment, world)), "comparing experiment and world")
        if world.is_lead and not arguments.json:
            machines = counted(world.num_machines, "machine")
            print(f"nothing to mend: {counted(world.size, 'rank')} on {machines} can work together")
            if not started_by_torchrun() and (expected := expected_world(experiment.launch)):
                print(f"the experiment expects {expected} to be started: whether they fit is tried under torchrun")
    return 0


def _extend_arguments(parser: argparse.ArgumentParser) -> None:
    experiment_arguments(parser)
    parser.add_argument(
        "--function", required=True, metavar="PACKAGE.MODULE:NAME", help="returns the new graphs, as data.function does"
    )
    parser.add_argument("--args", default="{}", metavar="YAML", help="arguments of the function: '{path: new.sdf}'")
    parser.add_argument("--again", action="store_true", help="also if these are the graphs that were added last")


def _extend(arguments: argparse.Namespace) -> int:
    with joined(arguments) as (world, experiment):
        from .train.extending import addition_of, extend

        addition = world.together(
            lambda: addition_of(experiment, arguments.function, arguments.args), "reading the arguments"
        )
        extend(experiment, addition, arguments.again, world)
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from .collection.files import is_collection
    from .collection.verify import verify_collection
    from .graph.verify import verify

    directory = arguments.directory
    problems = verify_collection(directory) if is_collection(Path(directory)) else verify(directory)
    if problems:
        raise ExperimentError("\n".join([f"{arguments.directory}: {counted(len(problems), 'problem')}", *problems]))
    print(f"{arguments.directory}: every file is as the manifest says")
    return 0


def _convert_arguments(parser: argparse.ArgumentParser) -> None:
    experiment_arguments(parser)
    parser.add_argument("--to", required=True, metavar="DIR", help="a folder that is not there yet, or empty")


def _convert(arguments: argparse.Namespace) -> int:
    with joined(arguments) as (world, experiment):
        from .train.convert import convert_collection

        convert_collection(experiment, world, Path(arguments.to))
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    print(schema_text(), end="")
    return 0


COMMANDS: dict[str, Command] = {
    "train": Command("train a model (partition the graph first where needed)", _train, _train_arguments),
    "partition": Command("partition the graph only", _partition, experiment_arguments),
    "extend": Command("add graphs to a collection that is stored, without rewriting it", _extend, _extend_arguments),
    "inspect": Command(
        "look at the graph or the graphs: sizes, labels, features, memory, and what is advised",
        _inspect,
        _inspect_arguments,
    ),
    "doctor": Command(
        "look at the machines only: do they reach each other, and fit together? Under torchrun, or on each alone",
        _doctor,
        _doctor_arguments,
    ),
    "predict": Command(
        "predict nodes or graphs with a trained model, into Parquet files under your own keys",
        _predict,
        _predict_arguments,
    ),
    "convert": Command(
        "write a collection of graphs as a folder that PyG's OnDiskDataset opens", _convert, _convert_arguments
    ),
    "verify": Command(
        "check every file of a directory of partitions or of a collection against its manifest",
        _verify,
        lambda parser: parser.add_argument("directory", metavar="DIR") and None,
    ),
    "submit": Command("start a job: under Slurm, in Docker, or on this machine", run_submit, submit_arguments),
    "status": Command("say whether a run waits, runs, was stopped, failed or is done", run_status, status_arguments),
    "schema": Command("print the JSON Schema of the experiment file, for editors", _schema, lambda parser: None),
}
