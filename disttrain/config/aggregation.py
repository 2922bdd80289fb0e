"""Aggregations: how the vectors of a node's neighbours become one. Those of `torch_geometric.nn.aggr`, by name."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError, model_validator

from .section import Fraction, Section

_UNUSABLE = {
    "equilibrium": "its output is a minimum of an energy that is averaged over all nodes of a mini-batch, so a node's "
    "vector would depend on which others share it",
    "multi": "several at once are written as a list: aggr: [mean, max, std]",
    "fused": "it is how PyG computes several at once; write them as a list: aggr: [mean, max, std]",
    "add": "it is called sum here",
    "average": "it is called mean here",
    "avg": "it is called mean here",
}


def _usable(name: Any) -> Any:
    if isinstance(name, str) and name in _UNUSABLE:
        raise ValueError(f"{name} cannot be used: {_UNUSABLE[name]}")
    return name


_Names = Literal[
    "mean", "sum", "max", "min", "mul", "var", "std", "softmax", "powermean", "median", "quantile",
    "variance_preserving", "degree_scaler", "sort", "lstm", "gru", "lcm", "set2set", "attentional", "deep_sets",
    "set_transformer", "graph_multiset_transformer", "patch_transformer", "mlp",
]  # fmt: skip
AggrName = Annotated[_Names, BeforeValidator(_usable)]

PLAIN = ("mean", "sum", "max", "min", "std", "var", "median", "softmax", "powermean")
"""Those that attention can weigh: element by element, whatever the axes."""

_Plain = Literal["mean", "sum", "max", "min", "std", "var", "median"]
_RECURRENT = {
    "out_channels": PositiveInt,
    "num_layers": PositiveInt,
    "dropout": Fraction,
    "bidirectional": bool,
}
_TRANSFORMER = {
    "num_encoder_blocks": NonNegativeInt,
    "heads": PositiveInt,
    "layer_norm": bool,
    "dropout": Fraction,
}

ARGUMENTS: dict[str, dict[str, Any]] = {
    "var": {"semi_grad": bool},
    "std": {"semi_grad": bool},
    "softmax": {"t": float, "learn": bool, "semi_grad": bool, "channels": PositiveInt},
    "powermean": {"p": float, "learn": bool, "channels": PositiveInt},
    "quantile": {
        "q": Fraction | Annotated[tuple[Fraction, ...], Field(min_length=1)],
        "interpolation": Literal["linear", "lower", "higher", "midpoint", "nearest"],
    },
    "degree_scaler": {
        "aggr": _Plain | Annotated[tuple[_Plain, ...], Field(min_length=1)],
        "scaler": Annotated[
            tuple[Literal["identity", "amplification", "attenuation", "linear", "inverse_linear"], ...],
            Field(min_length=1),
        ],
        "deg": Annotated[tuple[NonNegativeInt, ...], Field(min_length=2)],
        "train_norm": bool,
    },
    "sort": {"k": PositiveInt},
    "lstm": _RECURRENT,
    "gru": _RECURRENT,
    "lcm": {"out_channels": PositiveInt, "project": bool},
    "set2set": {"processing_steps": PositiveInt, "num_layers": PositiveInt},
    "attentional": {"hidden_channels": PositiveInt, "transform": bool},
    "deep_sets": {"hidden_channels": PositiveInt, "out_channels": PositiveInt},
    "set_transformer": {
        **_TRANSFORMER,
        "num_seed_points": PositiveInt,
        "num_decoder_blocks": NonNegativeInt,
        "concat": bool,
    },
    "graph_multiset_transformer": {**_TRANSFORMER, "k": PositiveInt},
    "patch_transformer": {
        "patch_size": PositiveInt,
        "out_channels": PositiveInt,
        "hidden_channels": PositiveInt,
        "num_transformer_blocks": PositiveInt,
        "heads": PositiveInt,
        "dropout": Fraction,
        "aggr": Literal["sum", "mean", "min", "max"]
        | Annotated[tuple[Literal["sum", "mean", "min", "max"], ...], Field(min_length=1)],
    },
    "mlp": {
        "max_num_elements": PositiveInt,
        "out_channels": PositiveInt,
        "hidden_channels": PositiveInt,
        "num_layers": PositiveInt,
        "dropout": Fraction,
    },
}
"""Aggregation -> what it takes, and of which type. The names are those of PyG's classes."""

REQUIRED = {
    "quantile": ("q",),
    "sort": ("k",),
    "set2set": ("processing_steps",),
    "graph_multiset_transformer": ("k",),
    "patch_transformer": ("patch_size",),
    "mlp": ("max_num_elements",),
}


class Aggregation(Section):
    """An aggregation with the arguments of its class in `torch_geometric.nn.aggr`: {kind: quantile, args: {q: 0.9}}."""

    kind: AggrName
    args: dict[str, Any] = {}

    @model_validator(mode="after")
    def _arguments_fit(self) -> Aggregation:
        known = ARGUMENTS.get(self.kind, {})
        missing = [name for name in REQUIRED.get(self.kind, ()) if name not in self.args]
        if missing:
            raise ValueError(f"{self.kind} needs args: {', '.join(missing)}")
        for name, value in self.args.items():
            if name not in known:
                close = get_close_matches(name, known, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known) or 'none'}"
                raise ValueError(f"{self.kind} has no argument {name!r}; {hint}")
            try:
                TypeAdapter(known[name]).validate_python(value)
            except ValidationError as error:
                raise ValueError(
                    f"args.{name} of {self.kind}: {error.errors()[0]['msg'].lower()}, got {value!r}"
                ) from None
        return self


def _complete(name: Any) -> Any:
    """A plain name stands for an aggregation that needs no arguments."""
    if isinstance(name, str) and name in REQUIRED:
        needed = ", ".join(f"{argument}: ..." for argument in REQUIRED[name])
        raise ValueError(f"{name} needs arguments: {{kind: {name}, args: {{{needed}}}}}")
    return name


OneAggr = Annotated[AggrName, BeforeValidator(_complete)] | Aggregation
Aggr = OneAggr | Annotated[tuple[OneAggr, ...], Field(min_length=1)]
"""A name, `{kind: ..., args: {...}}`, or a list of these."""


_OF_GRAPHS: dict[str, Aggregation] = {
    "attention": Aggregation(kind="attentional"),
    "set2set": Aggregation(kind="set2set", args={"processing_steps": 3}),
}
"""What a plain name stands for where nodes are pooled."""


def _complete_pool(name: Any) -> Any:
    return name if isinstance(name, str) and name in _OF_GRAPHS else _complete(name)


PoolName = Annotated[
    Literal[_Names, "attention"],  # pyright: ignore[reportInvalidTypeForm]
    BeforeValidator(_complete_pool),
    BeforeValidator(_usable),
]
Pooling = PoolName | Aggregation | Annotated[tuple[PoolName | Aggregation, ...], Field(min_length=1)]
"""How nodes become a graph: as `Aggr`."""


def pools(pooling: Pooling) -> tuple[Aggregation, ...]:
    """One or several, all in the long form."""
    several = pooling if isinstance(pooling, tuple) else (pooling,)
    return tuple(aggregations(_OF_GRAPHS.get(one, one) if isinstance(one, str) else one)[0] for one in several)  # pyright: ignore[reportArgumentType]


def aggregations(aggr: Aggr) -> list[Aggregation]:
    """One or several, all in the long form."""
    several = aggr if isinstance(aggr, tuple) else (aggr,)
    return [one if isinstance(one, Aggregation) else Aggregation(kind=one) for one in several]
