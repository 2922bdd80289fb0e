"""Evaluation: every seed is scored exactly once over all ranks, and the metrics are those of one rank that saw all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from ..tasks.task import Score
from ..world import World
from .layerwise import LayerwiseLoader
from .precision import Precision
from .scores import sampled_scores


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]
    """The task's metrics, and `loss`, the (weighted) mean over the seeds; NaN where there is no value."""
    num_evaluated: int
    """Distinct seeds that were scored."""
    num_entries: int = 0
    """Of these, labels or targets that are there: as many, where each seed has one."""
    each: dict[str, list[float]] = field(default_factory=dict)
    """Metric -> its value for each label or target, where there are several; NaN where there is none."""
    notes: tuple[str, ...] = ()
    """What a reader has to know of the metrics: which have no value, and why."""

    def figures(self) -> dict[str, Any]:
        """What `metrics.jsonl` gets of it: JSON."""
        return {"num_evaluated": self.num_evaluated, "num_entries": self.num_entries, "metrics": self.metrics}

    def kept(self) -> dict[str, Any]:
        """What a checkpoint and the summary hold of it: JSON."""
        return {**self.figures(), "each": self.each}


def evaluate(
    model: nn.Module,
    task: Any,
    loader: Any,
    transfer: Callable[[Iterable[HeteroData]], Iterator[HeteroData]],
    precision: Precision,
    world: World,
    look: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Score all seeds of a loader. Every rank calls it; ranks without seeds take part.

    Args:
        look: called now and then, as often on every rank; what it raises ends the evaluation.

    Cost: one pass over the split, then each rank gathers the states of the metrics.
    """
    node_type = task.node_type
    metrics = task.metrics()
    sums, scored = torch.zeros(3, dtype=torch.float64), [torch.empty(0, dtype=torch.int64)]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            if isinstance(loader, LayerwiseLoader):
                scores = loader.scores(model, task, precision, look=look)
            else:
                scores = sampled_scores(model, task, loader, transfer, precision)
            with closing(scores):
                for logits, _, batch in scores:
                    loss = task.loss(logits, batch).double()
                    counts = (task.weight(batch), task.num_entries(batch))
                    counts = [c.double() if isinstance(c, Tensor) else loss.new_full((), c) for c in counts]
                    sums = sums.to(logits.device) + torch.stack([loss, *counts])
                    if batch[node_type].batch_size:
                        task.update(metrics, logits, batch)
                        scored.append(batch[node_type].input_id[: batch[node_type].batch_size].cpu())
                    look()
    finally:
        model.train(training)
    num_evaluated, num_scored = _count(torch.cat(scored), world)
    assert num_evaluated == num_scored, f"{num_scored - num_evaluated} seeds were scored twice"
    scores = merged_scores(metrics, task, world)
    loss, weight, num_entries = world.sum(sums.cpu(), "evaluation").tolist()
    values = {name: score.value for name, score in scores.items()}
    notes = tuple(score.note for score in scores.values() if score.note)
    each = {name: list(score.each) for name, score in scores.items() if score.each}
    values["loss"] = loss / weight if weight else float("nan")
    return Evaluation(values, num_evaluated, int(num_entries), each, notes)


def merged_scores(metrics: Any, task: Any, world: World) -> dict[str, Score]:
    """The scores of a `MetricCollection` of the task over what all ranks have seen, on every rank.

    States are gathered and merged in rank order; ranks that saw nothing have nothing to add.

    Args:
        metrics: this rank's.
    """
    mine = {
        name: metric.metric_state
        for name, metric in metrics.items(keep_base=True, copy_state=False)
        if metric.update_called
    }
    states = world.gather(mine, "evaluation")
    scores: dict[str, Score] = {}
    for name, metric in task.metrics().items(keep_base=True, copy_state=False):
        seen = [state[name] for state in states if name in state]
        if not seen:
            scores[name] = Score(float("nan"), f"{name} has no value: there was nothing to score")
            continue
        for state in reversed(seen):  # each is put before what is there
            metric.merge_state(state)
        metric._update_count = len(seen)  # else compute() warns that nothing was seen
        scores[name] = task.score(name, metric)
    return scores


def _count(input_id: Tensor, world: World) -> tuple[int, int]:
    """How many distinct seeds were scored over all ranks, and how many scorings there were."""
    length = max(world.gather(int(input_id.max()) + 1 if input_id.numel() else 0, "evaluation"))
    times = world.sum(torch.bincount(input_id, minlength=length), "evaluation")
    return int((times > 0).sum()), int(times.sum())
