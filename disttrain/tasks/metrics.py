"""Metrics that are the same number over any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

States = dict[str, dict[str, Any]]
"""Metric name -> state name -> a tensor (to be added up) or a list of tensors (to be joined)."""


def metric_states(metrics: MetricCollection) -> States:
    """What one rank has counted, on the CPU, as plain tensors and lists: fit to be sent to the others."""
    return {
        name: {
            state: [part.cpu() for part in value] if isinstance(value, list) else value.cpu()
            for state, value in metric.metric_state.items()
        }
        for name, metric in metrics.items(copy_state=False)
    }


def compute_metrics(metrics: MetricCollection, states: Sequence[States]) -> dict[str, float]:
    """The metrics over all ranks: exactly what one rank that had seen all seeds would say.

    Args:
        metrics: as `task.metrics()` gives it; left untouched.
        states: `metric_states` of each rank, in rank order. Ranks without a seed have zero counts and empty lists.

    Returns:
        Metric name -> value; NaN where no rank has seen a seed.
    """
    return {name: _compute(metric, [rank[name] for rank in states]) for name, metric in metrics.items(copy_state=False)}


def _compute(metric: Metric, states: Sequence[dict[str, Any]]) -> float:
    metric = metric.clone()
    metric.reset()
    seen = False
    for state in metric.metric_state:
        values = [rank[state] for rank in states]
        if isinstance(values[0], list):
            parts: list[Tensor] = [part for value in values for part in value]
            seen = seen or any(part.numel() for part in parts)
            setattr(metric, state, parts)
        else:
            total = torch.stack(values).sum(dim=0)
            seen = seen or bool(total.any())
            setattr(metric, state, total)
    if not seen:
        return float("nan")
    # Torchmetrics warns when compute comes before update; this metric's updates were on the ranks.
    metric._update_count = 1
    return float(metric.compute())
