"""`python -m disttrain EXPERIMENT.yaml [key.path=value ...]` trains; see `cli.py` for the other commands.

Exit codes: 0 done; 2 the user's input was refused (a message, no traceback); 1 anything else (a traceback headed by
rank and host).
"""

from __future__ import annotations

import os
import sys
import traceback

from . import cli
from .config import ExperimentError
from .environment import let_threads_sleep, place
from .lasting import LastingStream
from .refusal import Leave


def main() -> None:
    """Run a command and leave with its exit code."""
    let_threads_sleep()
    sys.stdout, sys.stderr = LastingStream(sys.stdout), LastingStream(sys.stderr)  # pyright: ignore
    try:
        code = cli.run(sys.argv[1:])
    except ExperimentError as error:
        print(f"disttrain: {error}", file=sys.stderr)
        _leave(2)
    except Leave as leave:
        _leave(leave.code)
    except KeyboardInterrupt:
        print(f"disttrain: {place()} was interrupted", file=sys.stderr)
        _leave(130)
    except Exception as error:
        # One write, so that the lines of several ranks do not mix.
        sys.stderr.write(f"disttrain: {place()} failed:\n{''.join(traceback.format_exception(error))}")
        _leave(1)
    else:
        sys.exit(code)


def _leave(code: int) -> None:
    """End now. Loader threads and process groups whose peers are gone would keep the interpreter from ending."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code)


if __name__ == "__main__":
    main()
