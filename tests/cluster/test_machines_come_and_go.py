"""Machines with addresses of their own that are slow, lost, and come back: the run goes the way it goes undisturbed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.train.checkpoint import CheckpointDirectory

from ..fault_table import ELASTIC
from ..preloaded import Preloaded
from .jobs import losses
from .scenarios import SCENARIOS, worlds

pytestmark = pytest.mark.cluster

MARGIN = 45.0
"""Beyond what a time should be: others use this machine too."""


def last_weights(directory: Path) -> dict[str, torch.Tensor]:
    checkpoints = CheckpointDirectory(directory / "runs" / "tiny" / "checkpoints")
    return checkpoints.read_tensors(checkpoints.names()[0])


def summary(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "runs" / "tiny" / "summary.json").read_text())


@pytest.fixture(scope="module")
def outcomes(
    server: Preloaded, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Future[Any], Path]]]:
    """Several at once: most of their time is waiting."""
    with ThreadPoolExecutor(3) as pool:
        found = {}
        for number, (name, scenario) in enumerate(SCENARIOS.items(), start=1):
            directory = tmp_path_factory.mktemp(name.replace(" ", "-"))
            found[name] = pool.submit(scenario, server, directory, number), directory
        yield found


Outcomes = dict[str, tuple[Future[Any], Path]]


def directory_of(outcomes: Outcomes, name: str) -> Path:
    outcomes[name][0].result()
    return outcomes[name][1]


def same_course(run: Path, whole: Path) -> None:
    straight, found = losses(whole), losses(run)
    assert straight.keys() == found.keys()
    assert found == pytest.approx(straight, rel=2e-5, abs=1e-6)
    weights = last_weights(run)
    for name, tensor in last_weights(whole).items():
        assert torch.allclose(weights[name], tensor, rtol=1e-4, atol=1e-5), name
    assert summary(run)["num_evaluated"] == summary(whole)["num_evaluated"]


@pytest.mark.parametrize(
    ("name", "other"),
    [("two anywhere", "two on one"), ("three anywhere", "three on one"), ("slow", "two"), ("late", "two")],
)
def test_what_lies_between_the_ranks_changes_nothing(name: str, other: str, outcomes: Outcomes) -> None:
    """Two and three machines are as one with as many ranks; 100 Mbit/s, and 5 ms for each way, cost time only."""
    run, straight = directory_of(outcomes, name), directory_of(outcomes, other)
    assert losses(run) == losses(straight)
    weights = last_weights(run)
    assert all(torch.equal(weights[key], tensor) for key, tensor in last_weights(straight).items())
    machines = summary(run)["nodes"]
    assert (machines, summary(straight)["nodes"]) == (int(name.startswith("three")) + 2, 2 if other == "two" else 1)


def test_the_machine_of_the_first_rank_is_lost_and_comes_back(outcomes: Outcomes) -> None:
    took, found = outcomes["three lose one"][0].result()
    print(f"two of three went on after {took:.0f} s")
    assert found[-3:] in ([("start", 3), ("resume", 2), ("resume", 3)], [("resume", n) for n in (3, 2, 3)])
    # train.timeout, three keep-alives of 5 s, the last call of 20 s, and the start of ranks.
    assert took < 12 + 15 + 20 + MARGIN
    same_course(directory_of(outcomes, "three lose one"), directory_of(outcomes, "three"))


def test_a_machine_that_is_cut_off_is_done_without_and_joins_again(outcomes: Outcomes) -> None:
    """Each has a disk of its own: the one that is left makes the partitions again, and goes on from its own copy of
    the newest checkpoint; the other one's older directory does not count."""
    found = outcomes["cut off"][0].result()
    print(f"the other machine went on after {found['seconds']:.0f} s")
    assert found["seconds"] < 12 + 15 + 20 + MARGIN
    survivor = found["places"][found["other"]]
    assert worlds(survivor)[-3:] in ([("start", 2), ("resume", 1), ("resume", 2)], [("resume", n) for n in (2, 1, 2)])
    assert "partitioning again" in found["said"]
    for place in found["places"]:
        weights = last_weights(place)
        assert all(torch.equal(weights[key], tensor) for key, tensor in last_weights(survivor).items())
    same_course(survivor, directory_of(outcomes, "two"))


def test_parts_that_are_lost_are_named(outcomes: Outcomes) -> None:
    code, seconds, said = outcomes["lost parts"][0].result()
    print(f"over after {seconds:.0f} s")
    assert code != 0 and seconds < 12 + 15 + 20 + 20 + MARGIN
    assert re.search(ELASTIC["partitions-are-lost-with-their-machine"], said), said


def test_without_the_store_the_job_is_over(outcomes: Outcomes) -> None:
    code, seconds, said = outcomes["lost store"][0].result()
    print(f"over after {seconds:.0f} s")
    assert code != 0 and seconds < 12 + 80 + MARGIN
    assert re.search(ELASTIC["the-machine-with-the-store-loses-power"], said), said


def test_a_machine_that_is_told_to_stop_leaves_the_others_at_work(outcomes: Outcomes) -> None:
    _, found, said = outcomes["one stops"][0].result()
    assert found[-2:] in ([("start", 2), ("resume", 1)], [("resume", 2), ("resume", 1)])
    assert re.search(ELASTIC["one-of-the-machines-is-told-to-stop"], said), said
    same_course(directory_of(outcomes, "one stops"), directory_of(outcomes, "two"))


def test_the_other_machine_goes_on_when_one_is_killed(outcomes: Outcomes) -> None:
    took, found = outcomes["one killed"][0].result()
    print(f"the other machine went on after {took:.0f} s")
    assert found[-2:] in ([("start", 2), ("resume", 1)], [("resume", 2), ("resume", 1)])
    assert took < 12 + 15 + 20 + MARGIN
    same_course(directory_of(outcomes, "one killed"), directory_of(outcomes, "two"))


def test_a_job_that_needs_all_machines_is_over_when_one_is_killed_and_goes_on_when_started_again(
    outcomes: Outcomes,
) -> None:
    code, seconds, said = outcomes["needed one killed"][0].result()
    print(f"over after {seconds:.0f} s")
    assert code != 0 and seconds < 12 + MARGIN
    # Nobody on the other host can say anything any more.
    assert re.search(r"rank [01] on host-1 (waited for rank [01] in|could not go on in) ", said), said
    run, whole = directory_of(outcomes, "needed one killed"), directory_of(outcomes, "two")
    assert worlds(run) == [("start", 2), ("resume", 2)]
    assert losses(run) == losses(whole)
    weights = last_weights(run)
    assert all(torch.equal(weights[key], tensor) for key, tensor in last_weights(whole).items())
