"""The learning rate as a function of the step."""

from __future__ import annotations

import pytest

from disttrain.config import Scheduler
from disttrain.train.schedule import learning_rate_factor


def factors(num_steps: int, steps_per_epoch: int = 4, **settings: object) -> list[float]:
    scheduler = Scheduler.model_validate(settings)
    return [learning_rate_factor(scheduler, step, num_steps, steps_per_epoch) for step in range(num_steps)]


def test_constant_is_one():
    assert factors(5) == [1.0] * 5


def test_warmup_rises_to_one_and_decay_begins_there():
    assert factors(8, kind="linear", warmup_steps=4) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 2 / 3, 1 / 3, 0.0])


def test_linear_and_cosine_end_at_min_factor():
    assert factors(5, kind="linear", min_factor=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    cosine = factors(5, kind="cosine", min_factor=0.2)
    assert cosine == pytest.approx([1.0, 0.2 + 0.8 * 0.8535533906, 0.6, 0.2 + 0.8 * 0.1464466094, 0.2])


def test_step_multiplies_every_so_many_epochs():
    assert factors(8, steps_per_epoch=2, kind="step", step_epochs=2, gamma=0.5) == [1.0] * 4 + [0.5] * 4


def test_more_warmup_than_steps_never_reaches_one():
    assert factors(3, kind="cosine", warmup_steps=10) == pytest.approx([0.1, 0.2, 0.3])


def test_a_single_step():
    assert factors(1, kind="cosine") == [1.0]
