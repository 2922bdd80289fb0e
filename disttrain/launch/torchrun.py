"""The torchrun command of one machine, and the environment that it wants: the same for every way to start a job."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import Launch
from .shell import Shell

JOIN_SECONDS = 600
"""So long, the machines wait for each other at the start."""
LAST_CALL_SECONDS = 30
"""So long, a job that may do with fewer machines waits for more once there are enough: some start later."""
ELASTIC_RESTARTS = 10
"""Each loss of a machine costs one."""


def torchrun_command(
    launch: Launch,
    program: Sequence[str],
    *,
    endpoint: str,
    is_host: bool | str,
    local_address: str | None = None,
    nodes: int | str | None = None,
    procs_per_node: int | str | None = None,
    run_id: str = "disttrain",
    python: str = "python",
    max_restarts: int | None = None,
) -> list[str]:
    """The words of the command.

    Args:
        launch: gives the numbers that are not given here.
        program: what torchrun runs: `-m disttrain experiment.yaml`.
        endpoint: `host:port` of the machine where all meet, the same on every machine.
        is_host: whether this is that machine. Left to torchrun, it compares names and addresses, and where a machine's
            own name resolves to 127.0.1.1 nobody is it. Text stands for a value that only the machine knows.
        local_address: of this machine, as the others reach it; None: torchrun asks the machine for its name.
        run_id: the same on every machine, and another one for every job that could meet at this endpoint.
    """
    most = nodes or launch.nodes or 1
    rendezvous = {"is_host": is_host if isinstance(is_host, str) else int(is_host), "join_timeout": JOIN_SECONDS}
    if launch.min_nodes is not None:
        rendezvous["last_call_timeout"] = LAST_CALL_SECONDS
    restarts = launch.max_restarts if max_restarts is None else max_restarts
    if launch.min_nodes is not None:
        restarts = restarts or ELASTIC_RESTARTS
    return [
        *(python, "-m", "torch.distributed.run"),
        f"--nnodes={most if launch.min_nodes is None else f'{launch.min_nodes}:{most}'}",
        f"--nproc-per-node={procs_per_node or launch.procs_per_node or 1}",
        f"--max-restarts={restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        Shell(f'--rdzv-id="{run_id}"') if isinstance(run_id, Shell) else f"--rdzv-id={run_id}",
        f"--rdzv-conf={','.join(f'{key}={value}' for key, value in rendezvous.items())}",
        *([] if local_address is None else [f"--local-addr={local_address}"]),
        "--log-dir=/dev/null",  # otherwise torchrun leaves an empty folder in the temporary ones
        *program,
    ]


def torchrun_environment(launch: Launch) -> dict[str, str]:
    """Variables to set for torchrun, which hands them on to the ranks; those of the experiment come last and win."""
    by_interface = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if launch.interface else ()
    return {
        # One killed rank then costs one restart, not two or three.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        **{name: launch.interface or "" for name in by_interface},
        **launch.env,
    }
