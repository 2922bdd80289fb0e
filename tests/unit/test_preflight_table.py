"""What `disttrain doctor` prints: docs/clusters.md shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from disttrain.preflight.facts import Disk
from disttrain.preflight.findings import findings
from disttrain.preflight.peers import Try
from disttrain.preflight.report import Report
from disttrain.preflight.table import print_json, show_report

from .test_preflight_findings import gpu

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"


def report() -> Report:
    disks = {"run": Disk("runs/a", 3 << 40), "partitions": Disk("data", 1 << 40)}
    versions = {"python": "3.11.7", "disttrain": "0.1.0", "torch": "2.13.0+cu130", "torch_geometric": "2.8.1"}
    ranks = [
        gpu(
            n,
            2,
            device_name="NVIDIA H200",
            device_id=f"GPU-{n}",
            device_free=139 << 30,
            disks=disks,
            versions={**versions, "numba": "0.68.1", "numpy": "2.4.6", "cuda": "13.0", "nccl": "2.29.3"},
            memory_free=1 << 40,
            experiment="c2979e9a7e0cc0c8",
        )
        for n in range(4)
    ]
    tries = [(0, Try(1, seconds=1e-4, clock=0.0012)), (1, Try(0, seconds=1e-4, clock=-0.0012))]
    return Report(ranks, tries, findings(ranks, tries), 0.2)


def test_the_page_shows_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show_report(report())
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert printed in PAGE.read_text(encoding="utf-8")


def test_programs_are_told_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(report())
    found = json.loads(capsys.readouterr().out)
    assert [rank["host"] for rank in found["ranks"]] == ["host-1", "host-1", "host-2", "host-2"]
    assert found["ranks"][3]["disks"]["run"] == {"path": "runs/a", "free": 3 << 40}
    assert found["clocks"] == {"1": 0.0012}
    assert found["findings"] == []
