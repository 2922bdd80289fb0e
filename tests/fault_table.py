"""Every fault that is caused on purpose, by name. docs/faults.md has a row for each."""

from __future__ import annotations

from typing import NamedTuple

from .faults import Fault

STEP = r"\(epoch 1, step 2 of it\)"
"""Where a fault comes in the third call of the model in training."""
SUMS = rf"adding up gradients {STEP}"
KILLED = rf"rank %d on \S+ was killed in training {STEP}; .*sampling\.batch_size"
SILENT = r"rank %d on \S+ showed no sign of life for 15 s%s in %s"
STOPPED = r" \(it was stopped, as by SIGSTOP\)"
WITHOUT_RANK_0 = r"rank 1 on \S+ (could not go on|waited for rank 0) in "
AT_STEP_2 = rf"(adding up gradients|training|writing a checkpoint) {STEP}"

PROCESSES: dict[str, Fault] = {
    "a-rank-is-killed": Fault(kind="kill", says=(rf"rank 0 on \S+ waited for rank 1 in {SUMS}", KILLED % 1)),
    "the-first-rank-is-killed": Fault(kind="kill", rank=0, says=(rf"{WITHOUT_RANK_0}{AT_STEP_2}", KILLED % 0)),
    "a-rank-crashes": Fault(
        stacks=(1,),
        in_stacks=r"(?s)Segmentation fault.*saboteur\.py",
        leaves_what="a-rank-is-killed",
        kind="crash",
        says=(rf"rank 1 on \S+ crashed in training {STEP}: SIGSEGV",),
    ),
    "an-agent-is-killed": Fault(
        kind="kill the agent",
        says=(
            r"rank 1 on \S+ lost its torchrun agent \(process \d+ is gone\) in training",
            "stopped by SIGTERM after step",
        ),
        killed_agents=(1,),
    ),
    "the-machine-with-the-store-is-killed": Fault(
        kind="kill the machine", rank=0, says=(rf"{WITHOUT_RANK_0}{AT_STEP_2}", KILLED % 0), killed_agents=(0,)
    ),
    "a-rank-is-stopped-in-training": Fault(
        stacks=(0, 1),
        kind="stop",
        says=(rf"rank 0 on \S+ waited for rank 1 in {SUMS}", SILENT % (1, STOPPED, f"training {STEP}")),
    ),
    "the-first-rank-is-stopped-in-training": Fault(
        stacks=(0, 1),
        kind="stop",
        rank=0,
        says=(rf"{WITHOUT_RANK_0}{AT_STEP_2}", SILENT % (0, STOPPED, f"training {STEP}")),
    ),
    "a-rank-is-stopped-beside-another": Fault(
        stacks=(0, 1),
        leaves_what="a-rank-is-killed",
        kind="stop",
        machines=1,
        procs=2,
        says=(rf"rank 0 on \S+ waited for rank 1 in {SUMS}", SILENT % (1, STOPPED, f"training {STEP}")),
    ),
    "the-first-rank-is-stopped-while-it-partitions": Fault(
        stacks=(0, 1),
        where="disttrain.graph.partitioner:write_manifest",
        kind="stop",
        rank=0,
        call=1,
        says=(rf"{WITHOUT_RANK_0}partitioning", SILENT % (0, STOPPED, "partitioning")),
    ),
    "a-rank-is-stopped-in-evaluation": Fault(
        stacks=(0, 1),
        where="evaluation",
        kind="stop",
        call=1,
        says=(r"rank 0 on \S+ waited for rank 1 in ", SILENT % (1, STOPPED, r"evaluation on val \(epoch 1, .*\)")),
    ),
    "the-first-rank-is-stopped-while-it-writes-a-checkpoint": Fault(
        stacks=(0, 1),
        where="disttrain.train.checkpoint:CheckpointDirectory.save",
        kind="stop",
        rank=0,
        says=(rf"{WITHOUT_RANK_0}writing a checkpoint", SILENT % (0, STOPPED, "writing a checkpoint")),
    ),
    "a-rank-is-killed-while-it-writes-a-checkpoint": Fault(
        where="disttrain.train.checkpoint:_write_manifest",
        kind="kill",
        rank=0,
        says=(rf"{WITHOUT_RANK_0}writing a checkpoint", r"rank 0 on \S+ was killed in writing a checkpoint"),
    ),
    "a-rank-hangs": Fault(
        stacks=(0, 1),
        in_stacks=r"saboteur\.py",
        leaves_what="a-rank-is-killed",
        kind="hang",
        says=(rf"rank 0 on \S+ waited for rank 1 in {SUMS}", rf"rank 1 on \S+ ends, in training {STEP}: rank 0"),
    ),
    "a-rank-hangs-outside-of-python": Fault(
        stacks=(0, 1),
        in_stacks=r"saboteur\.py",
        leaves_what="a-rank-is-killed",
        kind="hang in C",
        says=(rf"rank 0 on \S+ waited for rank 1 in {SUMS}", SILENT % (1, "", f"training {STEP}")),
    ),
    "an-agent-is-told-to-stop": Fault(kind="terminate the agent", says=("stopped by SIGTERM after step",)),
    "an-agent-is-interrupted": Fault(
        leaves_what="an-agent-is-told-to-stop", kind="interrupt the agent", says=("stopped by SIGINT after step",)
    ),
    "an-agent-loses-its-terminal": Fault(
        leaves_what="an-agent-is-told-to-stop", kind="hang up on the agent", says=("stopped by SIGHUP after step",)
    ),
    "an-agent-is-told-to-stop-in-the-final-evaluation": Fault(
        where="disttrain.train.trainer:evaluate",
        kind="terminate the agent",
        call=3,
        says=(r"stopped by SIGTERM in evaluation on test \(epoch 3, .*\); the same command goes on",),
    ),
    "a-run-is-asked-to-stop": Fault(
        kind="ask to stop", code=0, says=(r"stopped by runs/tiny/STOP after step 3; a checkpoint is in",)
    ),
    "a-run-is-asked-to-stop-while-it-partitions": Fault(
        where="disttrain.graph.partitioner:write_manifest",
        kind="ask to stop",
        rank=0,
        call=1,
        code=0,
        says=(r"stopped by runs/tiny/STOP in partitioning; the same command goes on",),
    ),
    "a-rank-is-slow": Fault(leaves_what="no-test-seeds", kind="be slow", code=0, never=("disttrain: rank",)),
}

NO_LUCK = r"RuntimeError: no luck"
HEADED = r"disttrain: rank %d on \S+ failed:"
TOLD = r"rank 0 on \S+ could not go on in %s: rank 1 on \S+ failed in %s: "

PROGRAMS: dict[str, Fault] = {
    "a-model-raises-on-one-rank": Fault(
        says=(HEADED % 1, NO_LUCK, TOLD % (SUMS, f"training {STEP}") + NO_LUCK), never=()
    ),
    "a-model-raises-while-it-is-built": Fault(
        where="building",
        says=(HEADED % 1, r"rank 1 on \S+ failed in building the model: RuntimeError: no luck"),
        never=(),
    ),
    "a-model-raises-in-evaluation": Fault(
        leaves_what="a-rank-is-stopped-in-evaluation",
        where="evaluation",
        call=1,
        says=(HEADED % 1, r"rank 1 on \S+ failed in evaluation on val .*: RuntimeError: no luck"),
        never=(),
    ),
    "a-model-calls-exit": Fault(
        leaves_what="a-rank-is-killed",
        kind="exit",
        says=(r"rank 1 on \S+ failed in training .*: RuntimeError: sys\.exit\(0\) was called",),
        never=(),
    ),
    "a-model-forgets-a-parameter-on-one-rank": Fault(
        kind="forget a parameter",
        says=(
            r"rank 1 on \S+: model\.module: .*no use of its parameters spare",
            r"rank 1 on \S+ was refused, and says why",
        ),
    ),
    "a-loss-becomes-nan": Fault(
        kind="become NaN",
        says=(r"not finite: first on rank 1 on \S+, in step 2 \(epoch 1\): the model.s output",),
        never=(),
    ),
    "a-loss-becomes-nan-and-is-skipped": Fault(
        leaves_what="no-test-seeds",
        kind="become NaN",
        more=("train.on_nan=skip",),
        code=0,
        says=(r"not finite: first on rank 1 on \S+, in step 2 \(epoch 1\).* this step is left out",),
    ),
    "a-data-function-raises": Fault(
        where="data",
        rank=0,
        says=(HEADED % 0, NO_LUCK, r"rank 1 on \S+.* rank 0 on \S+ failed in reading the data: RuntimeError: no luck"),
        never=(),
    ),
    "memory-runs-out": Fault(
        leaves_what="a-rank-is-killed",
        kind="run out of memory",
        says=(
            r"disttrain: the machine had no memory left: .*sampling\.batch_size",
            "rank 0 on .*can't allocate memory",
        ),
        never=(),
    ),
    "more-ranks-than-seeds": Fault(
        leaves_what="no-test-seeds",
        kind="",
        code=0,
        procs=2,
        more=("data.split={by: ratio, train: 0.05, val: 0.5, test: 0.4}",),
    ),
    "no-validation-seeds": Fault(
        leaves_what="no-test-seeds", kind="", code=0, more=("data.split={by: ratio, train: 0.5, val: 0.0, test: 0.5}",)
    ),
    "no-test-seeds": Fault(kind="", code=0, more=("data.split={by: ratio, train: 0.5, val: 0.5, test: 0.0}",)),
    "no-training-seeds": Fault(
        kind="",
        more=("data.split={by: ratio, train: 0.001, val: 0.5, test: 0.4}",),
        mended=("data.split={by: ratio, train: 0.5, val: 0.2, test: 0.2}", "partition.dir=others"),
        says=("data.split: no node of .paper. is left to train on",),
    ),
    "fewer-partitions-than-machines": Fault(
        kind="",
        more=("partition.parts=1",),
        mended=("partition.parts=2",),
        says=("partition.parts is 1, fewer than the 2 machines of this job; set partition.parts=2 or more, or auto",),
    ),
}

FULL = r"files may not grow any more .*MiB free"

DISKS: dict[str, Fault] = {
    "the-disk-is-full-for-partitions": Fault(
        where="disttrain.graph.partitioner:write_manifest",
        kind="fill the disk",
        rank=0,
        call=1,
        says=(r"partition directory parts: a file may not grow more; .* Make room",),
    ),
    "the-disk-is-full-for-the-settings": Fault(
        where="disttrain.report.run_directory:RunDirectory.write_experiment",
        kind="fill the disk",
        rank=0,
        call=1,
        says=(rf"experiment\.yaml could not be written to runs/tiny: {FULL}",),
    ),
    "the-disk-is-full-for-a-checkpoint": Fault(
        where="disttrain.train.checkpoint:CheckpointDirectory.save",
        kind="fill the disk",
        rank=0,
        says=(rf"a checkpoint could not be written to runs/tiny/checkpoints/step-0000000003: {FULL}",),
    ),
    "the-disk-is-full-for-the-figures": Fault(
        where="disttrain.report.run_report:RunReport.write",
        kind="fill the disk",
        rank=0,
        says=(rf"metrics\.jsonl could not be written to runs/tiny/metrics.jsonl: {FULL}",),
    ),
    "the-disk-is-full-for-tensorboard": Fault(
        where="tensorboard.summary.writer.record_writer:RecordWriter.write",
        kind="fill the disk",
        rank=0,
        call=5,
        says=(rf"TensorBoard.s figures could not be written to runs/tiny/tensorboard/.*: {FULL}",),
    ),
    "the-disk-is-full-for-the-summary": Fault(
        where="disttrain.report.run_directory:RunDirectory.write_summary",
        kind="fill the disk",
        rank=0,
        call=1,
        says=(rf"summary\.json could not be written to runs/tiny: {FULL}",),
    ),
    "the-run-directory-cannot-be-made": Fault(
        kind="",
        more=("run_dir=/proc/nowhere",),
        mended=("run_dir=runs/tiny",),
        says=(r"the run directory cannot be used at /proc/nowhere: ",),
    ),
}


class Damage(NamedTuple):
    """What has happened to the files of a run that was stopped, when it is started again."""

    how: str
    says: tuple[str, ...]
    code: int = 1


PASSED_OVER = r"checkpoint passed over: .* is not what was written: its checksum differs"
DAMAGED = r"partition directory parts is damaged: nodes/0/x\.npy %s; remove the directory and partition again"

DAMAGES: dict[str, Damage] = {
    "the-newest-checkpoint-is-damaged": Damage("the newest checkpoint flipped", (PASSED_OVER,), code=0),
    "the-newest-checkpoint-is-cut-short": Damage("the newest checkpoint cut short", (PASSED_OVER,), code=0),
    "all-checkpoints-are-damaged": Damage(
        "all checkpoints flipped",
        (PASSED_OVER, r"none of the checkpoints in runs/tiny/checkpoints can be read .*--fresh"),
    ),
    "a-partition-is-cut-short": Damage("a partition cut short", (DAMAGED % r"has \d+ bytes, expected \d+",)),
    "a-partition-lacks-a-file": Damage("a partition without a file", (DAMAGED % r"cannot be read \(No such file.*\)",)),
    "the-manifest-of-a-partition-is-torn": Damage(
        "a manifest cut short", (r"parts/manifest\.json is damaged .*; remove the directory and partition again",)
    ),
}

FORBIDDEN: dict[str, tuple[str, int, str]] = {
    "the-run-directory-may-not-be-written-to": (
        "runs",
        0o500,
        r"the run directory cannot be used at runs/another: Permission denied\. Expected a directory that this user",
    ),
    "a-partition-may-not-be-read": ("parts/nodes/0/x.npy", 0, r"nodes/0/x\.npy.* cannot be read .*Permission denied"),
}
"""Path, mode, and what is said when a user who is not root starts a run there."""

ALONE: dict[str, str] = {
    "a-data-function-raises-on-another-machine": (
        r"rank 0 on \S+ .*rank 1 on \S+ failed in looking for the data on the other machines: RuntimeError: no luck"
    ),
    "a-bit-of-a-partition-is-flipped": r"nodes/0/x\.npy: its checksum differs from the manifest's",
    "the-run-directory-is-in-use": r"disttrain: the run directory runs/tiny is in use by process \d+ on \S+\. Wait",
    "the-port-is-in-use": r"EADDRINUSE|[Aa]ddress already in use",
    "the-kernel-kills-a-rank-for-its-memory": (
        rf"rank 1 on \S+ was killed in training {STEP}; the kernel.s out-of-memory killer was at work on this machine: "
        r"less memory is needed with a lower sampling\.batch_size"
    ),
    "the-disk-is-full-for-predictions": rf"predictions could not be written to .*: {FULL}.* another --output",
}
"""Faults that have a test of their own, `test_<name>`, and what is said."""

MISSED_1 = r"rank 0 on host-1 waited for rank 1 in "
MISSED_0 = r"rank 1 on host-2 (could not go on in|waited for rank 0 in|ends, in) "
HUNG = r"rank 1 on host-2 has ended, and its torchrun agent \(process \d+\) shows no sign of life for \d+ s"

NETWORK: dict[str, tuple[str, str]] = {
    "the-network-of-a-machine-goes-down": (rf"{MISSED_1}{AT_STEP_2}", rf"(?s){MISSED_0}{AT_STEP_2}.*{HUNG}"),
    "the-network-of-the-machine-with-the-store-swallows-everything": (
        rf"{MISSED_1}{AT_STEP_2}",
        rf"(?s){MISSED_0}{AT_STEP_2}.*{HUNG}",
    ),
    "the-machine-with-the-store-freezes": (r"rank 0 on host-1 ", rf"(?s){MISSED_0}{AT_STEP_2}.*{HUNG}"),
}
"""What is said on the first host, and on the second; in `tests/cluster`."""

PREFLIGHT: dict[str, str] = {
    "the-loopback-is-chosen": (
        r"a loopback address, at which no other machine is reached, was chosen: host-1 would be 127\.0\.0\.1 "
        r"\(GLOO_SOCKET_IFNAME names lo; it has eth0 \([\d.]+\.1\)\); host-2 would be 127\.0\.0\.1 "
        r"\(GLOO_SOCKET_IFNAME names lo; it has eth0 \([\d.]+\.2\)\)\. Set GLOO_SOCKET_IFNAME "
    ),
    "an-interface-is-missing": (
        r"no address to talk from: host-2 has eth0 \([\d.]+\.2\), and the interface ib0, which "
        r"GLOO_SOCKET_IFNAME names, is not there\. Set GLOO_SOCKET_IFNAME "
    ),
    "own-names-stand-for-the-loopback": (
        r"host-1 would be 127\.0\.1\.1 \(its own name host-1 stands for that; .*; host-2 would be 127\.0\.1\.1 "
    ),
    "own-names-stand-for-nothing": (
        r"host-1 would be 127\.0\.0\.1 \(its own name host-1 stands for no address; .*; host-2 would be 127\.0\.0\.1 "
    ),
    "a-firewall-on-one-side": (
        r"host-1 cannot connect to host-2 at [\d.]+\.2 \(no answer in 5 s\); host-2 does reach host-1\. "
        r"Let the firewalls of these machines pass TCP on all ports"
    ),
    "large-packets-are-lost": (
        r"host-1 exchanges small messages only with host-2 at .* Large packets are lost on the way: the MTU"
    ),
    "the-first-machine-has-an-unknown-name": (
        r"rank 1 on host-2 does not reach rank 0: the name of its machine, host-1, stands for no address here\. Give "
        r"torchrun on that machine --local-addr"
    ),
    "experiments-differ": (
        r"rank 1 on host-2 read another experiment than rank 0 on host-1:(\n|` `)  ?"
        r"train\.lr: 0\.01 on rank 0, 0\.5 there"
    ),
    "a-rank-does-not-come": (
        r"rank 2 \(machine 2\) of 3 ranks did not show up within \d+ s of rank 0 on host-1 "
        r"\(train\.timeout is 20\); .* There are host-1, host-2"
    ),
}
"""What the preflight says on one of two hosts; in `tests/cluster`."""

ELASTIC: dict[str, str] = {
    "a-machine-is-lost-and-the-others-go-on": r"resuming after step \d+",
    "one-of-the-machines-is-told-to-stop": (
        r"stopped by SIGTERM after step \d+; .*; of the machines, only \S+ was told to"
    ),
    "partitions-are-lost-with-their-machine": (
        r"partitions? [\d, ]+ ?\(of 0 to 2\) of parts (is|are) on no machine of this job: .* on \S+, which made them"
    ),
    "the-machine-with-the-store-loses-power": r"the store that (rank 0|it asks)",
}
"""What is said where machines come and go; in `tests/cluster`."""

ALL: dict[str, tuple[str, ...]] = {
    **{name: fault.says for name, fault in (PROCESSES | PROGRAMS | DISKS).items()},
    **{name: damage.says for name, damage in DAMAGES.items()},
    **{name: (said,) for name, (_, _, said) in FORBIDDEN.items()},
    **{name: (said,) for name, said in ALONE.items()},
    **NETWORK,
    **{name: (said,) for name, said in PREFLIGHT.items()},
    **{name: (said,) for name, said in ELASTIC.items()},
}
"""What is said, by the fault's name."""
