"""`disttrain doctor`: its arguments, and what they make of the preflight."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..config import Experiment, ExperimentError
from ..environment import started_by_torchrun

if TYPE_CHECKING:
    from .facts import Facts
    from .findings import Finding


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what was found out as JSON")
    parser.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        help="without torchrun: the --rdzv-endpoint that it is going to have; is it reached, or held, from here?",
    )


def doctor_check(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `check.Check` is told.

    Raises:
        ExperimentError: the endpoint is none, or is given under torchrun.
    """
    from .alone import Endpoint, findings_alone
    from .table import print_json, show_report

    launched = started_by_torchrun()
    endpoint = None if arguments.endpoint is None else Endpoint.parse(arguments.endpoint)
    if endpoint is not None and launched:
        raise ExperimentError("--endpoint is for a try without torchrun: under it, ranks have met there already")

    def more(own: Facts, experiment: Experiment) -> list[Finding]:
        return [] if launched else findings_alone(own, experiment, endpoint)

    return {"show": print_json if arguments.json else show_report, "more": more}
