"""Hold torchrun's store, by which machines find each other, on a machine that no rank runs on: a login node, say.

    python launch/store.py --port 29400

Then each machine joins with `--rdzv-endpoint=THIS-HOST:29400 --rdzv-conf=is_host=0`, and any of them may be lost: the
others keep the store. A second job needs another `--rdzv-id`. It ends with Ctrl-C or SIGTERM, and with it all jobs that
use it.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys

from torch.distributed import TCPStore


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=29400)
    options = parser.parse_args(arguments)
    if not 0 <= options.port < 1 << 16:
        parser.error(f"--port: expected a number from 0 to 65535 (0: any that is free), got {options.port}")
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before the store's threads are there
    try:
        store = TCPStore("localhost", options.port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        print(f"store: port {options.port} cannot be used: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    print(f"store: --rdzv-endpoint={socket.gethostname()}:{store.port} --rdzv-conf=is_host=0", flush=True)
    signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
