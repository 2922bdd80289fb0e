"""What needs a GPU: NCCL, mixed precision, copies on a side stream. On `configs/mag_like.yaml`, under four minutes.

make test-gpu        (or: python -m pytest -m gpu tests/gpu -s)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from disttrain.train.phases import PhaseClock
from disttrain.train.transfer import Transfer

from ..agents import REPOSITORY, agent_command, run_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no GPU that torch can use: torch.cuda.is_available() is false"
    ),
]

STEPS = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gpu")


def train(place: Path, name: str, device: str, precision: str = "fp32", torchrun: bool = False) -> dict[str, Any]:
    """Some steps of mag_like, no dropout; its losses, each the mean of ten steps, and its summary."""
    program = [
        str(REPOSITORY / "configs" / "mag_like.yaml"),
        *(f"name={name}", "partition.dir=cut", f"train.device={device}", f"train.precision={precision}"),
        *(f"train.max_steps={STEPS}", "train.log_every=10", "sampling.workers=2"),
        "data.split={by: ratio, train: 0.6, val: 0.02, test: 0.02}",
    ]
    command = agent_command(program, 0, 1) if torchrun else [sys.executable, "-m", "disttrain", *program]
    (ended,) = run_all([command], [place], timeout=200)
    assert ended.code == 0, ended.err
    run = place / "runs" / name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {"losses": [line["loss"] for line in lines if line["event"] == "train"]}
    summary = json.loads((run / "summary.json").read_text())
    phases = summary["step_seconds"]
    whole = sum(phases.values()) or 1.0
    shares = ", ".join(f"{phase} {seconds / whole:.0%}" for phase, seconds in phases.items())
    print(f"{name}: {summary['seeds_per_second']:,.0f} seeds/s; {shares}; losses {found['losses']}")
    return {**found, "summary": summary}


@pytest.fixture(scope="module")
def on_cpu(place: Path) -> list[float]:
    return train(place, "cpu", "cpu")["losses"]


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 2e-3), ("bf16", 3e-2), ("fp16", 3e-2)])
def test_losses_are_those_of_the_cpu(place: Path, on_cpu: list[float], precision: str, tolerance: float) -> None:
    found = train(place, f"cuda-{precision}", "cuda", precision)
    assert len(found["losses"]) == STEPS // 10
    assert found["losses"] == pytest.approx(on_cpu, rel=tolerance)
    assert found["losses"][-1] < found["losses"][0]
    assert max(found["summary"]["peak_gpu_bytes"]) > 0


def test_one_rank_under_torchrun_with_nccl(place: Path, on_cpu: list[float]) -> None:
    assert train(place, "nccl", "cuda", torchrun=True)["losses"] == pytest.approx(on_cpu, rel=2e-3)


def test_batches_arrive_whole_over_the_side_stream() -> None:
    device = torch.device("cuda", 0)

    def batches():
        for step in range(8):
            batch = HeteroData()
            batch["a"].x = torch.full((4096, 256), float(step))
            batch["a", "to", "a"].edge_index = torch.full((2, 100_000), step)
            batch.step = step
            yield batch

    seen = []
    for batch in Transfer(device, PhaseClock(device))(batches()):
        assert batch["a"].x.device == device
        busy = torch.randn(2048, 2048, device=device)
        (busy @ busy).sum()  # the next copy runs beside this
        assert bool((batch["a"].x == batch.step).all())
        assert bool((batch["a", "to", "a"].edge_index == batch.step).all())
        seen.append(batch.step)
    assert seen == list(range(8))
