"""A batch of scores as a table: keys, split, label, prediction, probabilities, embedding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..collection.graphs import Graphs
from ..graph.graph import Graph
from ..tasks.columns import rows_of
from ..train.scores import Scores
from .keys import Keys
from .selection import SPLITS


class Scored(NamedTuple):
    """The seeds of a batch, on the CPU."""

    rows: np.ndarray
    """int64 [N], of the user's data, ascending."""
    logits: Tensor
    embedding: Tensor | None
    labels: Tensor
    """[N, ...], as the data has them."""
    present: np.ndarray
    """bool [N], which of them are a label."""
    split: np.ndarray
    """int8 [N], the place in `SPLITS`, -1 for none."""


class TableMaker:
    """Makes tables of one schema, whatever the batch holds."""

    def __init__(self, graph: Graph | Graphs, task: Any, keys: Keys, *, logits: bool) -> None:
        """Args:
        logits: add a column of what the model returned, from which probabilities are computed.
        """
        self.task, self.keys, self.logits = task, keys, logits
        self.names: tuple[str, ...] = tuple(graph.schema.info.get("classes", {}).get(task.node_type, ()))
        self.schema: pa.Schema | None = None

    def scored(self, scores: Scores) -> Scored:
        """Bring a batch to the CPU and sort it by rows."""
        store = scores.batch[self.task.node_type]
        size = store.batch_size
        rows = store.n_id[:size].cpu().numpy()
        order = torch.from_numpy(np.argsort(rows))
        labels = store[self.task.label][:size].cpu()[order]
        split = np.full(size, -1, np.int8)
        for number, name in enumerate(SPLITS):
            split[store[self.task.splits[name]][:size].cpu().bool().numpy()] = number
        embedding = scores.embedding
        return Scored(
            rows=rows[order.numpy()],
            logits=scores.logits.detach().float().cpu()[order],
            embedding=None if embedding is None else embedding.detach().float().cpu()[order],
            labels=labels,
            present=self.task.has_label(labels.numpy()),
            split=split[order.numpy()],
        )

    def table(self, scored: Scored) -> pa.Table:
        splits = pa.DictionaryArray.from_arrays(
            pa.array(scored.split, pa.int8(), mask=scored.split < 0), pa.array(SPLITS, pa.string())
        )
        ours: dict[str, pa.Array] = {
            "split": splits.cast(pa.string()),
            **self.task.label_columns(scored.labels.numpy(), self.names),
            **self.task.columns(scored.logits, self.names),
        }
        if self.logits:
            ours["logits"] = rows_of(scored.logits)
        if scored.embedding is not None:
            ours["embedding"] = rows_of(scored.embedding)
        columns = self.keys.take(scored.rows)
        for name, values in ours.items():
            while name in columns:  # the user's own names come first
                name = f"{name}_"
            columns[name] = values
        table = pa.table(columns)
        if self.schema is None:
            self.schema = table.schema
        return table
