"""A Slurm cluster on this machine, without systemd: slurmctld on one host and slurmd on each of the others.

A host is a network namespace of `hosts.py` with names, processes and mounts of its own. Needs root, and Debian's
slurmctld, slurmd and slurm-client (`run.sh` installs them).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from .hosts import Host, hosts

T = TypeVar("T")

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")

_CONFIGURATION = """\
ClusterName=ci
SlurmctldHost=head
SlurmUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
MpiDefault=none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0
SlurmctldParameters=preempt_send_user_signal
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout=30
SlurmctldTimeout=30
KillWait=30
MinJobAge=86400
MaxArraySize=1001
SlurmdParameters=config_overrides
NodeName=node[1-{nodes}] CPUs=16 RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 PreemptMode=REQUEUE MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""
# A job that is requeued waits until its credential has expired, 120 s unless `cred_expire` says otherwise.


class Machine:
    """A host whose first process holds its namespaces: with it, all that runs there ends."""

    def __init__(self, host: Host, name: str, folder: Path, names: Path) -> None:
        self.name = name
        (folder / f"{name}.hostname").write_text(f"{name}\n")
        # Not `ip netns exec`, which mounts a /sys without the control groups that slurmd looks for.
        script = (
            f'mount --bind "{names}" /etc/hosts; mount --bind "{folder}/{name}.hostname" /etc/hostname; '
            f"mount -t tmpfs none /dev/shm; hostname {name}; exec sleep infinity"
        )
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{host._namespace}",
             "unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-ec", script],
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._first = wait_for(self._first_process, 20, f"the first process of {name}")

    def _first_process(self) -> int:
        for child in psutil.Process(self._holder.pid).children():
            if child.name() == "sleep":
                return child.pid
        return 0

    def command(self, *words: str, directory: Path | None = None) -> list[str]:
        """Words that run other words on this machine."""
        enter = ["nsenter", "-t", str(self._first), "--net", "--uts", "--pid", "--mount"]
        return [*enter, f"--wdns={directory or Path.cwd()}", "--", *words]

    def processes(self) -> list[str]:
        """The command lines of all that runs there."""
        namespace = os.readlink(f"/proc/{self._first}/ns/pid")
        found = []
        for process in psutil.process_iter():
            try:
                if os.readlink(f"/proc/{process.pid}/ns/pid") == namespace:
                    found.append(" ".join(process.cmdline()) or process.name())
            except (OSError, psutil.Error):
                continue
        return found

    def end(self) -> None:
        self._holder.send_signal(signal.SIGKILL)
        self._holder.wait(20)


class Cluster:
    """What the tests know of it."""

    def __init__(self, head: Machine, nodes: list[Machine], folder: Path) -> None:
        self.head, self.nodes, self.folder = head, nodes, folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: str, directory: Path | None = None, timeout: float = 60, **environment: str) -> str:
        """What a command on the head prints; it has to succeed."""
        done = self.attempt(*words, directory=directory, timeout=timeout, **environment)
        assert done.returncode == 0, f"{words}: {done.stderr}{done.stdout}"
        return done.stdout

    def attempt(
        self, *words: str, directory: Path | None = None, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.head.command(*words, directory=directory),
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, ..."""
        found = re.search(r"JobState=(\S+)", self.run("scontrol", "--oneliner", "show", "job", job))
        assert found is not None
        return found[1]

    def field(self, job: str, name: str) -> str:
        found = re.search(rf" {name}=(\S*)", self.run("scontrol", "--oneliner", "show", "job", job))
        assert found is not None, name
        return found[1]

    def logs(self) -> str:
        """The end of what the daemons have written, for messages."""
        return "\n".join(
            f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:])
            for log in sorted(self.folder.glob("*.log"))
        )


def wait_for(look: Callable[[], T], seconds: float, what: str) -> T:
    """The first answer that is not empty."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(0.1)
    return found


@contextmanager
def slurm_cluster(count: int, network: str = "10.79.0") -> Iterator[Cluster]:
    """A head and `count` nodes, node1 to node<count>, all idle."""
    folder = Path(tempfile.mkdtemp(prefix="dt-slurm-", dir="/run"))
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=folder, nodes=count))
        made = undo.enter_context(hosts(count + 1, network))
        called = ["head", *(f"node{k}" for k in range(1, count + 1))]
        names = folder / "hosts"
        lines = "\n".join(f"{host.address} {name}" for host, name in zip(made, called))
        names.write_text(f"127.0.0.1 localhost\n{lines}\n")
        machines = []
        for host, name in zip(made, called):
            machines.append(Machine(host, name, folder, names))
            undo.callback(machines[-1].end)
        head, *nodes = machines
        cluster = Cluster(head, nodes, folder)
        cluster.run("slurmctld", "-f", str(folder / "slurm.conf"))
        for node in nodes:
            subprocess.run(
                node.command("slurmd", "-f", str(folder / "slurm.conf"), "-N", node.name),
                env=cluster.environment, check=True, timeout=60,
            )  # fmt: skip

        def idle() -> bool:
            said = cluster.attempt("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%n")
            return len(said.stdout.split()) == count

        try:
            wait_for(idle, 30, "idle nodes")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{cluster.logs()}") from None
        yield cluster
