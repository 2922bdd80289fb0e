"""What needs a GPU: training on `configs/mag_like.yaml` with one rank over NCCL, in every precision, against the CPU.

    python -m tests.gpu.check_gpu            under 4 minutes; says so and ends with 0 where there is no GPU
    python -m tests.gpu.check_gpu --device cpu --quick    the same steps without one, to test this file

Prints losses side by side, seeds per second and the share of each phase, and one JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch_geometric.data import HeteroData

from disttrain.config import Experiment
from disttrain.config.file import read_experiment
from disttrain.stop import Stopped
from disttrain.train import job
from disttrain.train.phases import PhaseClock
from disttrain.train.trainer import Trainer
from disttrain.train.transfer import Transfer
from disttrain.world import World
from tests.training import stop_after

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "mag_like.yaml"
COMPARED_STEPS = 20
TOLERANCES = {"fp32": 2e-3, "bf16": 5e-2, "fp16": 2e-2}
"""Largest relative difference of the mean loss of five steps from that of the CPU in fp32."""


def reason_to_skip() -> str | None:
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} is built without NCCL"
    return None


def read(directory: Path, quick: bool, name: str, *overrides: str) -> Experiment:
    small = []
    if quick:
        for node_type, count in (("paper", 10_000), ("author", 5_000), ("institution", 100), ("field", 500)):
            small.append(f"data.nodes.{node_type}.num_nodes={count}")
        for relation, count in (
            ("author,writes,paper", 35_000),
            ("paper,cites,paper", 75_000),
            ("author,affiliated,institution", 5_000),
            ("paper,topic,field", 35_000),
        ):
            small.append(f"data.edges.{relation}.num_edges={count}")
        small.append("sampling.batch_size=128")
    return read_experiment(
        CONFIG,
        [
            f"run_dir={directory / name}",
            f"partition.dir={directory / 'partitions'}",
            "partition.parts=1",
            "model.inputs.project=true",  # so that there is something to compute in fp32 in `inputs`
            *small,
            *overrides,
        ],
    )


def train(experiment: Experiment, device: str) -> dict[str, Any]:
    """A whole run with one rank; its summary, and the losses of its log lines."""
    with World.start(device=device, timeout=120.0) as world:
        if world.device.type == "cuda":
            assert "nccl" in str(dist.get_backend_config()), dist.get_backend_config()
        graph = job.prepare_graph(experiment, world)
        task, model = job.build(experiment, graph, world)
        summary = Trainer(experiment, world, graph, task, model).train()
    lines = [json.loads(line) for line in (Path(experiment.directory) / "metrics.jsonl").read_text().splitlines()]
    logged = [line for line in lines if line["event"] == "train"]
    return {"summary": summary, "losses": [line["loss"] for line in logged], "last": logged[-1]}


def compare_precisions(directory: Path, device: str, quick: bool) -> dict[str, list[float]]:
    """The same steps in every precision; the losses stay close to those of the CPU."""
    short = (f"train.max_steps={COMPARED_STEPS}", "train.log_every=5", "train.eval_every=1000")
    runs = {"cpu": train(read(directory, quick, "cpu", *short), "cpu")}
    for precision in TOLERANCES:
        layers = ["train.fp32_layers=[inputs,convs.0]"] if precision == "fp16" else []
        experiment = read(directory, quick, precision, *short, f"train.precision={precision}", *layers)
        runs[precision] = train(experiment, device)
    expected = runs["cpu"]["losses"]
    assert expected[-1] < expected[0], f"nothing was learned: {expected}"
    for precision, tolerance in TOLERANCES.items():
        found = runs[precision]["losses"]
        print(f"{precision}: losses {found}, on the CPU {expected}")
        for ours, theirs in zip(found, expected, strict=True):
            assert abs(ours - theirs) <= tolerance * theirs, (
                f"{precision}: {ours} is not within {tolerance} of {theirs}"
            )
    assert runs["fp16"]["last"]["scale"] > 1.0, "fp16 goes with a scaler"
    return {name: run["losses"] for name, run in runs.items()}


def compare_copies(directory: Path, device: str, quick: bool) -> int:
    """Batches arrive whole over the side stream while the main stream is busy. Returns how many were compared."""
    experiment = read(directory, quick, "copies")
    with World.start(device=device, timeout=120.0) as world:
        graph = job.prepare_graph(experiment, world)
        task, model = job.build(experiment, graph, world)
        trainer = Trainer(experiment, world, graph, task, model)
        loader = trainer.loaders["train"]
        with closing(loader.batches(0)) as batches:
            expected = list(islice(batches, 8))
        busy, count = torch.randn(2048, 2048, device=world.device), 0
        with closing(loader.batches(0)) as batches:
            moved = Transfer(world.device, PhaseClock(world.device))(batches)
            for plain, there in zip(expected, moved):
                for _ in range(20):
                    busy = (busy @ busy).tanh()
                compare_batches(plain, there, world.device)
                count += 1
        trainer._let_go()
    return count


def compare_batches(plain: HeteroData, there: HeteroData, device: torch.device) -> None:
    for ours, theirs in zip(plain.stores, there.stores, strict=True):
        for key, value in ours.items():
            if isinstance(value, torch.Tensor):
                assert theirs[key].device.type == device.type, key
                assert torch.equal(theirs[key].cpu(), value), f"{key} was damaged on its way"
            else:
                assert theirs[key] == value, key


def stop_and_go_on(directory: Path, device: str, quick: bool) -> int:
    """A run that is asked to stop does so within three steps, and goes on. Returns after which step it stopped."""
    experiment = read(directory, quick, "stopped", "train.max_steps=12", "train.log_every=100", "train.eval_every=1000")
    with World.start(device=device, timeout=120.0) as world:
        graph = job.prepare_graph(experiment, world)
        task, model = job.build(experiment, graph, world)
        trainer = Trainer(experiment, world, graph, task, model)
        stop_after(trainer, 3)
        try:
            trainer.train()
        except Stopped:
            pass
    stopped = trainer.position.step
    assert 4 <= stopped <= 6, f"asked to stop in step 4, stopped after step {stopped}"
    assert train(experiment, device)["summary"]["steps"] == 12
    return stopped


def measure(directory: Path, device: str, quick: bool) -> dict[str, Any]:
    """One epoch after a warm one, in bf16: seeds per second and where the time goes."""
    experiment = read(directory, quick, "speed", "train.epochs=2", "train.precision=bf16", "train.eval_every=1000")
    run = train(experiment, device)
    lines = [json.loads(line) for line in (Path(experiment.directory) / "metrics.jsonl").read_text().splitlines()]
    epoch = [line for line in lines if line["event"] == "epoch"][-1]
    seconds = dict(epoch["seconds"])
    whole = seconds.pop("train")
    print(f"an epoch of {epoch['seeds']:,} seeds in {whole:.2f} s, {epoch['seeds'] / whole:,.0f} seeds/s")
    for phase, value in seconds.items():
        # Waiting is the host's, the others are the device's: they overlap, and need not add up to 1.
        print(f"  {phase:<16}{value:8.3f} s  {value / whole:6.1%}")
    if device == "cuda":
        assert seconds["to_device"] > 0.0
        assert run["summary"]["peak_gpu_bytes"][0] > 0
    return {
        "seeds_per_second": epoch["seeds"] / whole,
        "share": {phase: value / whole for phase, value in seconds.items()},
        "peak_gpu_bytes": run["summary"]["peak_gpu_bytes"][0],
        "test": run["summary"]["test"],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a graph of a twentieth")
    options = parser.parse_args(arguments)
    skip = reason_to_skip() if options.device == "cuda" else None
    if skip:
        print(f"skipped: {skip}")
        return 0
    if options.device == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        figures = {
            "losses": compare_precisions(directory, options.device, options.quick),
            "stopped_after": stop_and_go_on(directory, options.device, options.quick),
            "batches_compared": compare_copies(directory, options.device, options.quick),
            "speed": measure(directory, options.device, options.quick),
        }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
