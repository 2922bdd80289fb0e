"""Aggregations of neighbours, with every one of `torch_geometric.nn.aggr` that can be told apart from its mini-batch.

PyG's modules are given only destinations that have a neighbour, in fp32. A destination without any gets zeros, whatever
the aggregation, and every parameter a gradient of zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch_geometric.nn import MLP, aggr
from torch_geometric.utils import to_dense_batch

from .. import config
from ..config import ExperimentError
from .neighbours import Edges, sum_neighbours


def nothing(module: nn.Module, x: Tensor, rows: int, width: int) -> Tensor:
    """Zeros [rows, width] that give x and every parameter of the module a zero gradient instead of none."""
    connected = x.sum() * 0.0
    for parameter in module.parameters():
        connected = connected + parameter.sum() * 0.0
    return x.new_zeros(rows, width) + connected


class _Reduce(nn.Module):
    """`sum`, `mean`, `max` and `min`: gathered and reduced at once, in the precision that comes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        if self.kind == "sum" or (self.kind == "mean" and edges.weight is None):
            mean = self.kind == "mean"
            _, (out,) = sum_neighbours(x, [Edges(edges.src, edges.dst, edges.pointer, mean, edges.weight)])
            return out
        if self.kind == "mean":
            return weighted_mean(x, edges)
        src = edges.src
        if edges.weight is not None:
            x, src = x[src] * edges.weight.unsqueeze(1).to(x.dtype), torch.arange(src.numel(), device=src.device)
        sign = 1.0 if self.kind == "max" else -1.0
        return sign * functional.embedding_bag(src, x * sign, edges.pointer, mode="max", include_last_offset=True)


def weighted_mean(x: Tensor, edges: Edges) -> Tensor:
    """The mean over a node's edges of weight times vector (the weights do not add up to one), as PyG has it."""
    _, (out,) = sum_neighbours(x, [with_mean_weights(edges)])
    return out


def with_mean_weights(edges: Edges) -> Edges:
    """Such that their sum is the mean over a node's edges of weight times vector."""
    assert edges.weight is not None
    count = edges.pointer.diff().clamp(min=1)
    return Edges(edges.src, edges.dst, edges.pointer, weight=edges.weight / count[edges.dst])


class _Module(nn.Module):
    """One of PyG's modules, on the destinations that have a neighbour."""

    def __init__(self, module: nn.Module, out_channels: int, step: int = 0) -> None:
        """step: it pads to the longest list of neighbours, and what it computes depends on that; so it is given
        together only destinations with equally many, in multiples of `step`. 0: it does not."""
        super().__init__()
        self.module, self.out_channels, self.step = module, out_channels, step

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        rows = edges.pointer.numel() - 1
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            out = nothing(self.module, x, rows, self.out_channels)
            if edges.src.numel() == 0:
                return out
            messages = x.index_select(0, edges.src)
            if edges.weight is not None:
                messages = messages * edges.weight.unsqueeze(1)
            count = edges.pointer.diff()
            if self.step == 0:
                found = count.nonzero().squeeze(1)
                return out.index_add(0, found, self._apply_to(messages, count[found]))
            size = (count + self.step - 1).div(self.step, rounding_mode="floor")
            for some in size.unique().tolist():
                if some:
                    chosen = size == some
                    part = messages[chosen[edges.dst]]
                    made = self._apply_to(part, count[chosen], max_num_elements=some * self.step)
                    out = out.index_add(0, chosen.nonzero().squeeze(1), made)
            return out

    def _apply_to(self, messages: Tensor, count: Tensor, **arguments: int) -> Tensor:
        index = torch.repeat_interleave(count, output_size=messages.size(0))
        return self.module(messages, index, dim_size=count.numel(), **arguments)


class _Recurrent(nn.Module):
    """The state of an LSTM or GRU after a node's last neighbour; PyG's reads on over the padding of shorter lists."""

    def __init__(self, cell: type[nn.LSTM] | type[nn.GRU], channels: int, out_channels: int, **arguments: Any) -> None:
        super().__init__()
        self.cell = cell(channels, out_channels, batch_first=True, **arguments)

    def forward(self, x: Tensor, index: Tensor, dim_size: int) -> Tensor:
        dense, mask = to_dense_batch(x, index, batch_size=dim_size)
        packed = pack_padded_sequence(dense, mask.sum(dim=1).cpu(), batch_first=True, enforce_sorted=False)
        state = self.cell(packed)[1]
        last = state[0] if isinstance(state, tuple) else state
        return torch.cat((last[-2], last[-1]), dim=1) if self.cell.bidirectional else last[-1]


def _recurrent(cell: Any, channels: int, out_channels: int | None = None, **arguments: Any) -> _Module:
    out_channels = out_channels or channels
    module = _Recurrent(cell, channels, out_channels, **arguments)
    return _Module(module, out_channels * (2 if arguments.get("bidirectional") else 1))


def _quantile(channels: int, q: Any, **arguments: Any) -> _Module:
    several = list(q) if isinstance(q, (list, tuple)) else [q]
    return _Module(aggr.QuantileAggregation(several, **arguments), channels * len(several))


_LEARNABLE = {"softmax": aggr.SoftmaxAggregation, "powermean": aggr.PowerMeanAggregation}


def _learnable(name: str, width: int, learn: bool | None = None, **arguments: Any) -> _Module:
    # With a fixed exponent of 1, `powermean` is the mean; both are learnt, as in DeeperGCN (arXiv:2006.07739).
    if learn is None:
        learn = not arguments.get("semi_grad", False)
    if arguments.get("channels", 1) not in (1, width):
        raise ExperimentError(f"{name}: args.channels must be 1 or the width of the vectors, {width}")
    try:
        return _Module(_LEARNABLE[name](learn=learn, **arguments), width)
    except ValueError as error:
        raise ExperimentError(f"{name}: {error}") from None


def _degree_scaler(
    channels: int,
    mean_degree: float,
    aggr_names: Any = ("mean", "min", "max", "std"),
    scaler: Any = ("identity", "amplification", "attenuation"),
    deg: Any = None,
    train_norm: bool = False,
) -> _Module:
    names = [aggr_names] if isinstance(aggr_names, str) else list(aggr_names)
    if deg is None:
        # PyG takes the mean of d and of log(d + 1) over a histogram of degrees: all as it is on average.
        low = max(0, int(mean_degree))
        share = round(1000 * (mean_degree - low))
        deg = [0] * low + [1000 - share, share] if mean_degree > 0 else [0, 1]
    elif sum(deg[1:]) == 0:
        raise ExperimentError("degree_scaler: args.deg, how many nodes have degree 0, 1, ..., needs some above 0")
    module = aggr.DegreeScalerAggregation(names, list(scaler), torch.tensor(list(deg)), train_norm=train_norm)
    return _Module(module, channels * len(names) * len(scaler))


def _lcm(channels: int, out_channels: int | None = None, project: bool = True) -> _Module:
    out_channels = out_channels or channels
    if not project and out_channels != channels:
        raise ExperimentError(f"lcm: without args.project, args.out_channels is the width of the vectors, {channels}")
    return _Module(aggr.LCMAggregation(channels, out_channels, project=project), out_channels, step=1)


def _attentional(channels: int, hidden_channels: int | None = None, transform: bool = False) -> _Module:
    hidden = hidden_channels or channels
    gate = MLP([channels, hidden, 1], norm=None)
    return _Module(
        aggr.AttentionalAggregation(gate, MLP([channels, channels], norm=None) if transform else None), channels
    )


def _deep_sets(channels: int, hidden_channels: int | None = None, out_channels: int | None = None) -> _Module:
    hidden, out_channels = hidden_channels or channels, out_channels or channels
    local, whole = MLP([channels, hidden, hidden], norm=None), MLP([hidden, hidden, out_channels], norm=None)
    return _Module(aggr.DeepSetsAggregation(local, whole), out_channels)


def _check_heads(name: str, channels: int, heads: int) -> None:
    if channels % heads:
        raise ExperimentError(f"{name}: args.heads ({heads}) must divide the width of the vectors, {channels}")


def _set_transformer(channels: int, **arguments: Any) -> _Module:
    _check_heads("set_transformer", channels, arguments.get("heads", 1))
    points = arguments.get("num_seed_points", 1) if arguments.get("concat", True) else 1
    return _Module(aggr.SetTransformerAggregation(channels, **arguments), channels * points)


def _graph_multiset_transformer(channels: int, **arguments: Any) -> _Module:
    _check_heads("graph_multiset_transformer", channels, arguments.get("heads", 1))
    return _Module(aggr.GraphMultisetTransformer(channels, **arguments), channels)


def _patch_transformer(
    channels: int,
    patch_size: int,
    out_channels: int | None = None,
    hidden_channels: int | None = None,
    **arguments: Any,
) -> _Module:
    out_channels, hidden = out_channels or channels, hidden_channels or channels
    _check_heads("patch_transformer", hidden, arguments.get("heads", 1))
    if "aggr" in arguments and not isinstance(arguments["aggr"], str):
        arguments["aggr"] = list(arguments["aggr"])
    module = aggr.PatchTransformerAggregation(channels, out_channels, patch_size, hidden, **arguments)
    return _Module(module, out_channels, step=patch_size)


def _mlp(
    channels: int,
    max_num_elements: int,
    out_channels: int | None = None,
    hidden_channels: int | None = None,
    num_layers: int = 2,
    **arguments: Any,
) -> _Module:
    out_channels = out_channels or channels
    module = aggr.MLPAggregation(
        channels, out_channels, max_num_elements, hidden_channels=hidden_channels or channels, num_layers=num_layers,
        norm=None, **arguments,
    )  # fmt: skip
    return _Module(module, out_channels)


_MODULES: dict[str, Callable[..., _Module]] = {
    "mul": lambda channels: _Module(aggr.MulAggregation(), channels),
    "var": lambda width, /, **arguments: _Module(aggr.VarAggregation(**arguments), width),
    "std": lambda width, /, **arguments: _Module(aggr.StdAggregation(**arguments), width),
    "softmax": lambda width, /, **arguments: _learnable("softmax", width, **arguments),
    "powermean": lambda width, /, **arguments: _learnable("powermean", width, **arguments),
    "median": lambda channels: _Module(aggr.MedianAggregation(), channels),
    "quantile": _quantile,
    "variance_preserving": lambda channels: _Module(aggr.VariancePreservingAggregation(), channels),
    "sort": lambda channels, k: _Module(aggr.SortAggregation(k), channels * k),
    "lstm": lambda width, /, **arguments: _recurrent(nn.LSTM, width, **arguments),
    "gru": lambda width, /, **arguments: _recurrent(nn.GRU, width, **arguments),
    "lcm": _lcm,
    "set2set": lambda width, /, **arguments: _Module(aggr.Set2Set(width, **arguments), 2 * width),
    "attentional": _attentional,
    "deep_sets": _deep_sets,
    "set_transformer": _set_transformer,
    "graph_multiset_transformer": _graph_multiset_transformer,
    "patch_transformer": _patch_transformer,
    "mlp": _mlp,
}


class Aggregate(nn.Module):
    """Neighbours' vectors [N_src, channels] -> [N_dst, out_channels], by one aggregation or several.

    Several are put side by side, or then multiplied by a matrix to `channels` (`proj`).
    """

    def __init__(self, chosen: config.Aggr, channels: int, mode: str = "cat", mean_degree: float = 1.0) -> None:
        """mean_degree: edges per destination in the whole graph, for `degree_scaler`.

        Raises:
            ExperimentError: arguments do not fit the width.
        """
        super().__init__()
        self.parts = nn.ModuleList()
        self.kinds = [one.kind for one in config.aggregations(chosen)]
        width = 0
        for one in config.aggregations(chosen):
            if one.kind in ("sum", "mean", "max", "min"):
                self.parts.append(_Reduce(one.kind))
                width += channels
                continue
            arguments = dict(one.args)
            if one.kind == "degree_scaler":
                if "aggr" in arguments:
                    arguments["aggr_names"] = arguments.pop("aggr")
                module = _degree_scaler(channels, mean_degree, **arguments)
            else:
                module = _MODULES[one.kind](channels, **arguments)
            self.parts.append(module)
            width += module.out_channels
        self.project = nn.Linear(width, channels) if mode == "proj" and len(self.parts) > 1 else None
        self.out_channels = channels if self.project is not None else width

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        """edges: which sources each destination has, destinations ascending; a weight multiplies its vector."""
        outs = [part(x, edges) for part in self.parts]
        out = outs[0] if len(outs) == 1 else torch.cat([of.to(outs[0].dtype) for of in outs], dim=-1)
        return out if self.project is None else self.project(out)
