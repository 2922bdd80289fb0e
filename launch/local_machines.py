"""Run torchrun as several machines on this one: one agent per machine, meeting on a free port of localhost.

    python launch/local_machines.py --machines 2 --nproc-per-node 1 -- -m disttrain experiment.yaml train.lr=0.01

What comes after `--` is what torchrun runs. All agents write to this terminal; of the ranks of disttrain only the first
has anything to say as long as all goes well. When one agent fails the others are ended; the exit code is that of the
first that failed. Ctrl-C reaches all of them.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

GRACE_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def agent_command(options: argparse.Namespace, machine: int, port: int) -> list[str]:
    """The torchrun command of one machine; the first one holds the rendezvous."""
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        f"--nnodes={options.machines}",
        f"--nproc-per-node={options.nproc_per_node}",
        f"--max-restarts={options.max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=localhost:{port}",
        "--rdzv-id=local-machines",
        f"--rdzv-conf=is_host={int(machine == 0)}",
        "--local-addr=localhost",
        *options.program,
    ]


def stop(agents: list[subprocess.Popen[bytes]], how: int) -> None:
    """Ask the agents to end, and make them after a while; an agent ends its own ranks."""
    for agent in agents:
        if agent.poll() is None:
            agent.send_signal(how)
    deadline = time.monotonic() + GRACE_SECONDS
    for agent in agents:
        try:
            agent.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


def run(options: argparse.Namespace) -> int:
    port = free_port()
    # One killed rank then costs one restart, not two or three.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents: list[subprocess.Popen[bytes]] = []

    def interrupted(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupted)
    try:
        for machine in range(options.machines):
            # A session of its own: the terminal's Ctrl-C comes through here, once.
            command = agent_command(options, machine, port)
            agents.append(subprocess.Popen(command, env=environment, start_new_session=True))
        running = list(agents)
        while running:
            try:
                running[0].wait(0.2)
            except subprocess.TimeoutExpired:
                pass
            failed = next((agent.returncode for agent in agents if agent.poll() not in (None, 0)), None)
            if failed is not None:
                stop(agents, signal.SIGTERM)
                return failed if failed > 0 else 128 - failed
            running = [agent for agent in agents if agent.poll() is None]
        return 0
    except KeyboardInterrupt:
        stop(agents, signal.SIGINT)
        return 130
    finally:
        for agent in agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--nproc-per-node", type=int, default=1)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("program", nargs="+", help="what torchrun runs, after `--`: -m disttrain experiment.yaml")
    sys.exit(run(parser.parse_args()))


if __name__ == "__main__":
    main()
