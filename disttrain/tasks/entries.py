"""Entries of labels: of several labels or targets a seed may have some and lack others (NaN; of zeros and ones, also a
negative number). Only those that are there are learnt and scored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from ..graph.schema import Attribute
from .task import Score

_LEAST_TARGET = 1.17e-06
"""Of smaller targets, mape takes errors as shares of this; torchmetrics has the same bound."""


def lacks_some(label: Attribute, numbers: bool = False) -> bool:
    """Whether seeds may lack single entries, as far as the schema tells: where there are several, and some are missing.

    Args:
        numbers: see `data.split.entries_there`.
    """
    missing = label.missing > 0 or (not numbers and label.low is not None and label.low < 0)
    return bool(label.shape) and label.shape[0] > 1 and missing


def entries_there(labels: Tensor, numbers: bool = False) -> Tensor:
    """`data.split.entries_there` of a tensor, without waiting for its device."""
    if labels.dtype == torch.bool or (numbers and not labels.is_floating_point()):
        return torch.ones_like(labels, dtype=torch.bool)
    return ~labels.isnan() if numbers else labels >= 0


def entries_of_one(columns: int, lacking: bool) -> int:
    """How many entries weigh as much as one seed: all columns. Where seeds lack some, the next power of two, by which
    counts of entries are divided without rounding: then weights add up exactly over ranks and batches."""
    return 1 << (columns - 1).bit_length() if lacking else columns


class AllRight(Metric):
    """Share of rows whose every entry that is there is predicted right."""

    full_state_update = False
    right: Tensor
    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("right", "rows"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, scores: Tensor, targets: Tensor) -> None:
        """Args:
        scores: [N, L], of a one.
        targets: [N, L] of zeros and ones, -1 where there is none.
        """
        self.right += (((scores > 0.5) == (targets > 0)) | (targets < 0)).all(dim=1).sum()
        self.rows += len(targets)

    def compute(self) -> Tensor:
        return self.right / self.rows


def score_of_counts(name: str, state: Mapping[str, Any]) -> Score:
    """Of several labels: label_accuracy over all entries, macro_f1 the mean over labels of which there are any.

    Args:
        state: what of each label was predicted right and wrong, int [L]: `tp`, `fp`, `tn`, `fn`.
    """
    tp, fp, tn, fn = (state[key].reshape(-1).double() for key in ("tp", "fp", "tn", "fn"))
    counts = tp + fp + tn + fn
    if name == "label_accuracy":
        each = (tp + tn) / counts
        return Score(float((tp + tn).sum() / counts.sum()), each=tuple(each.tolist()))
    each = torch.where(counts > 0, 2 * tp / (2 * tp + fp + fn).clamp(min=1), torch.nan)
    left_out = int(each.isnan().sum())
    note = f"{name} leaves out {left_out} of {len(each)} labels, which are not known of any seed" if left_out else ""
    return Score(float(each.nanmean()), note, tuple(each.tolist()))


class Errors(Metric):
    """Sums over the entries that are there, in float64, of each target: how many there are, and their errors.

    `kind` says what an error is: mae its size, mse and rmse its square, mape its size as a share of the target's.
    """

    full_state_update = False
    count: Tensor
    total: Tensor

    def __init__(self, kind: str, num_targets: int) -> None:
        super().__init__()
        self.kind = kind
        for name in ("count", "total"):
            self.add_state(name, torch.zeros(num_targets, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """Both float64 [N, num_targets]; NaN among the targets: none."""
        there = entries_there(targets, numbers=True)
        errors = (predictions - targets).abs()
        if self.kind in ("mse", "rmse"):
            errors = errors.square()
        if self.kind == "mape":
            errors = errors / targets.abs().clamp(min=_LEAST_TARGET)
        self.count += there.sum(dim=0)
        self.total += torch.where(there, errors, 0.0).sum(dim=0)

    def compute(self) -> Tensor:
        """Over all entries."""
        return self._value(self.total.sum() / self.count.sum())

    def each(self) -> Tensor:
        """[num_targets], over the entries of each; NaN where there are none."""
        return self._value(self.total / self.count)

    def _value(self, mean: Tensor) -> Tensor:
        return mean.sqrt() if self.kind == "rmse" else mean


class Explained(Metric):
    """What r2 is computed from: sums over the entries that are there, in float64, of each target."""

    full_state_update = False
    count: Tensor
    sums: Tensor
    squares: Tensor
    residual: Tensor

    def __init__(self, num_targets: int) -> None:
        super().__init__()
        for name in ("count", "sums", "squares", "residual"):
            self.add_state(name, torch.zeros(num_targets, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        """As for `Errors`."""
        there = entries_there(targets, numbers=True)
        known = torch.where(there, targets, 0.0)
        self.count += there.sum(dim=0)
        self.sums += known.sum(dim=0)
        self.squares += known.square().sum(dim=0)
        self.residual += torch.where(there, (targets - predictions).square(), 0.0).sum(dim=0)

    def each(self) -> Tensor:
        """[num_targets]; NaN where the targets do not vary."""
        variation = self.squares - self.sums.square() / self.count.clamp(min=1)
        # Not whether it is above some bound: the targets may be small.
        varies = (self.count > 1) & (variation > 1e-12 * self.squares.clamp(min=1e-300))
        return torch.where(varies, 1.0 - self.residual / variation, torch.nan)

    def compute(self) -> Tensor:
        return self.each().nanmean()
