"""`python -m disttrain EXPERIMENT.yaml [key.path=value ...]` trains; see `cli.py` for the other commands.

Exit codes: 0 done, or of a run that was asked to stop (its directory tells whether it is over: `DONE`); 2 the user's
input was refused (a message, no traceback); 130 interrupted (Ctrl-C); 143 another command than `train` was ended by
SIGTERM; 1 anything else (a traceback headed by rank and host).
"""

from __future__ import annotations

import faulthandler
import sys

from . import cli, guard
from .config import ExperimentError
from .environment import has_peers, hush_torch, let_threads_sleep, place, started_by_torchrun, turn
from .lasting import LastingStream
from .memory import memory_advice
from .own_code import traceback_of
from .refusal import Leave, PeerError


def main() -> None:
    """Run a command and leave with its exit code."""
    let_threads_sleep()
    hush_torch()
    sys.stdout, sys.stderr = LastingStream(sys.stdout), LastingStream(sys.stderr)  # pyright: ignore
    if started_by_torchrun():
        guard.start(place(), turn(), has_peers())
    else:  # nobody else would say where it crashed, as by SIGBUS when a mapped file is cut short
        faulthandler.enable()
    try:
        code = cli.run(sys.argv[1:])
    except ExperimentError as error:
        guard.leave(2, f"disttrain: {error}")
    except PeerError as error:  # another rank has more to say
        guard.leave(1, f"disttrain: {error}{error.stacks}")
    except Leave as leave:  # a request to stop is said by the first rank
        guard.leave(leave.code)
    except KeyboardInterrupt:
        guard.leave(130, f"disttrain: {place()} was interrupted")
    except SystemExit:  # of the argument parser, which has said why
        guard.farewell()
        raise
    except Exception as error:
        text, advice = traceback_of(error), memory_advice(error)
        guard.leave(1, f"disttrain: {place()} failed:\n{text}" + (f"\ndisttrain: {advice}" if advice else ""))
    else:
        if started_by_torchrun():
            guard.end_well(code)
        sys.exit(code)


if __name__ == "__main__":
    main()
