"""Does a run that went well exit with 0, every time? Two ranks, as two machines, again and again.

    python benchmarks/exits.py --runs 50

Gloo is known to abort now and then while a process ends. Ranks are forked from this process, which has imported what
takes long, and end as any program does, through the interpreter's and the C++ library's own teardown; `--new` starts
new interpreters instead. Prints the exit codes, and what failed runs said; exits with 1 if not all went well.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

EXPERIMENT = """\
data:
  source: generated
  nodes: {paper: {num_nodes: 60, features: 4}, author: {num_nodes: 30, features: 2}}
  edges: {"author,writes,paper": {num_edges: 150}}
  num_classes: 3
task: {kind: node_classification}
model: {kind: hetero_conv, hidden: 4}
sampling: {fanout: [3, 2], batch_size: 8, workers: 2}
train: {epochs: 1, threads: 1, device: cpu, timeout: 120}
"""
MACHINES = 2


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def begin(arguments: list[str], place: dict[str, str], log: Path, new: bool) -> int:
    """Start one rank; returns its process id."""
    if new:
        with log.open("ab") as out:
            command = [sys.executable, "-m", "disttrain", *arguments]
            return subprocess.Popen(command, env={**os.environ, **place}, stdout=out, stderr=out).pid
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    os.environ.update(place)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv = ["disttrain", *arguments]
    from disttrain.__main__ import main

    main()
    sys.exit(0)


def run(name: str, directory: Path, new: bool) -> list[int]:
    """One run; the exit codes of its ranks, negative for signals."""
    place = {"WORLD_SIZE": str(MACHINES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    arguments = [str(directory / "tiny.yaml"), f"name={name}", f"run_dir={directory / name}"]
    arguments.append(f"partition.dir={directory / 'parts'}")
    ranks = [
        begin(arguments, {**place, "RANK": str(rank), "GROUP_RANK": str(rank)}, directory / f"{name}.log", new)
        for rank in range(MACHINES)
    ]
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]


def describe(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--new", action="store_true", help="new interpreters instead of forked ones (slower)")
    options = parser.parse_args()
    if not options.new:
        import torchmetrics  # noqa: F401

        import disttrain.train.job  # noqa: F401
    started, codes = time.perf_counter(), Counter()
    well, parent, directory = 0, os.getpid(), Path(tempfile.mkdtemp(prefix="exits-"))
    (directory / "tiny.yaml").write_text(EXPERIMENT)
    try:
        for number in range(options.runs):
            ended = run(f"run-{number}", directory, options.new)
            codes.update(map(describe, ended))
            well += not any(ended)
            if any(ended):
                log = (directory / f"run-{number}.log").read_text(errors="replace")
                print(f"run {number}: {', '.join(map(describe, ended))}\n{log[-3000:]}", flush=True)
    finally:
        if os.getpid() == parent:  # ranks come through here too, on their way out
            shutil.rmtree(directory)
    seconds = time.perf_counter() - started
    print(f"{well} of {options.runs} runs of {MACHINES} ranks exited with 0 ({seconds:.0f} s); codes: {dict(codes)}")
    return int(well != options.runs)


if __name__ == "__main__":
    sys.exit(main())
