"""The values of one attribute, graph after graph, until they become a column."""

from __future__ import annotations

import json
from collections.abc import Callable
from collections.abc import Mapping as AnyMapping
from collections.abc import Sequence as AnySequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.utils import is_sparse

from ..config import ExperimentError
from .columns import Column, Mapping, Numbers, Objects, Sequence, Sparse
from .ragged import Ragged, bits_of, offsets_of


class Place(NamedTuple):
    """Where a value stands: what PyG's rules are asked with, and what messages say."""

    data: Any
    store: Any
    graph: int
    name: str
    """Of the attribute, as messages have it."""

    def refuse(self, text: str) -> ExperimentError:
        return ExperimentError(f"graph {self.graph}: {self.name} {text}")


class Left(Exception):
    """An attribute that cannot be kept; the message says why."""


def gather_like(key: str, value: Any, place: Place) -> Gathering:
    """What gathers values like the first graph's.

    Raises:
        Left: there is no room in a collection for such values.
    """
    return _KINDS[_kind(value)](str(key), value, place)


def _kind(value: Any) -> str:
    """As PyG's `collate` tells values apart."""
    if isinstance(value, Tensor) and not is_sparse(value):
        return "a tensor"
    if is_sparse(value):
        return "a sparse matrix"
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        return "a number"
    if isinstance(value, AnyMapping):
        return "a mapping"
    if isinstance(value, str) or not isinstance(value, AnySequence) or not value:
        return "an object"
    return "a list of tensors" if isinstance(value[0], Tensor) or is_sparse(value[0]) else "an object"


class Gathering:
    """Takes one value of each graph, in order; a batch of them at a time becomes a column."""

    kind = ""

    def __init__(self, key: str, value: Any, place: Place) -> None:
        self.key, self.first = key, place.graph
        self.num_bytes = 0
        """About what the values take that have been added since the last batch."""

    def add(self, value: Any, place: Place) -> None:
        """Take a graph's value.

        Raises:
            ExperimentError: it does not go together with those before; names the graph.
            Left: as `gather_like`.
        """
        if _kind(value) != self.kind:
            raise place.refuse(f"is {_kind(value)}, and {self.kind} in graph {self.first}")
        self._add(value, place)

    def _add(self, value: Any, place: Place) -> None:
        raise NotImplementedError

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Column:
        """The values since the last call; they are not kept here any longer.

        Args:
            share: gives an equal array that is there already for one, so that equal ones are kept once.
        """
        raise NotImplementedError

    def _increment(self, value: Any, place: Place) -> Any:
        try:
            return place.data.__inc__(self.key, value, place.store)
        except Exception as error:
            raise place.refuse(f"has no increment for batches ({type(error).__name__}: {error})") from error


class _Tensors(Gathering):
    kind = "a tensor"

    def __init__(self, key: str, value: Tensor, place: Place) -> None:
        super().__init__(key, value, place)
        if value.is_nested or value.is_quantized:
            raise Left("nested and quantized tensors are not kept")
        axis = place.data.__cat_dim__(key, value, place.store)
        self.stacked = axis is None or value.dim() == 0
        first = value.unsqueeze(0) if self.stacked else value
        self.axis = (axis or 0) % first.dim()
        self.dtype, self.shape = value.dtype, self._but_rows(first)
        self.parts: list[Tensor] = []
        self.increments: list[np.ndarray] = []
        self.increment_shape: tuple[int, ...] | None = None

    def _but_rows(self, value: Tensor) -> tuple[int, ...]:
        return (*value.shape[: self.axis], *value.shape[self.axis + 1 :])

    def _add(self, value: Tensor, place: Place) -> None:
        if value.dtype != self.dtype:
            raise place.refuse(
                f"is {_name(value.dtype)}, and {_name(self.dtype)} in graph {self.first}; give all the same type"
            )
        value = value.detach().cpu()
        if self.stacked:
            value = value.unsqueeze(0)
        if value.dim() != len(self.shape) + 1 or self._but_rows(value) != self.shape:
            raise place.refuse(
                f"has shape {list(value.shape)}; it has to be {self._expected()}, as in graph {self.first}, to be put "
                f"together along axis {self.axis}"
            )
        increment = np.asarray(self._increment(value, place))
        if increment.dtype.kind not in "iub":
            raise place.refuse(f"has the increment {increment.tolist()}; expected whole numbers")
        if increment.ndim > value.dim():
            raise place.refuse(
                f"has {value.dim()} axes and the increment of an index of edges; call it something without `index`"
            )
        if self.increment_shape is None:
            self.increment_shape = increment.shape
        if increment.shape != self.increment_shape:
            raise place.refuse(
                f"has an increment of shape {list(increment.shape)}, other than that of graph {self.first}"
            )
        self.num_bytes += value.nbytes
        self.increments.append(increment.astype(np.int64))
        self.parts.append(value if type(value) is Tensor else value.as_subclass(Tensor))

    def _expected(self) -> str:
        shape = [str(size) for size in self.shape]
        return f"[{', '.join([*shape[: self.axis], '...', *shape[self.axis :]])}]"

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Ragged:
        slices = offsets_of(np.array([part.size(self.axis) for part in self.parts], np.int64))
        whole = torch.cat(self.parts, dim=self.axis).movedim(self.axis, 0).contiguous()
        increments = np.stack(self.increments)
        self.parts, self.increments, self.num_bytes = [], [], 0
        kept = share(increments) if increments.any() or increments.ndim > 1 else None
        return Ragged(bits_of(whole), share(slices), self.axis, _name(self.dtype), kept)


class _Numbers(Gathering):
    kind = "a number"

    def __init__(self, key: str, value: Any, place: Place) -> None:
        super().__init__(key, value, place)
        self.values: list[Any] = []
        self.increments: list[int] = []

    def _add(self, value: Any, place: Place) -> None:
        increment = self._increment(value, place)
        if not isinstance(increment, int):
            raise place.refuse("is one number, and the increment of an index of edges several; call it otherwise")
        if isinstance(value, (int, np.integer)) and not -(2**63) <= value < 2**63:
            raise place.refuse(f"is {value}; expected a number of at most 64 bits")
        self.values.append(_plain(value))
        self.increments.append(increment)

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Column:
        increments, values = np.array(self.increments, np.int64), self.values
        self.values, self.increments = [], []
        types = {type(value) for value in values}
        if len(types) == 1 and types <= set(_NUMBERS):
            array = np.array(values, _NUMBERS[types.pop()])
            return Numbers(array, share(increments) if increments.any() else None)
        if increments.any():
            raise Left(MIXED)
        return as_json([json.dumps(value) for value in values], mixed=True)


def _plain(value: Any) -> bool | int | float:
    """Python's number for one of NumPy, of an enumeration, ...: what a data frame gives is a number like others."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return int(value) if isinstance(value, (int, np.integer)) else float(value)


MIXED = "numbers of several types with an increment for batches are not kept"
_NUMBERS: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}


class _Objects(Gathering):
    kind = "an object"

    def __init__(self, key: str, value: Any, place: Place) -> None:
        super().__init__(key, value, place)
        self.texts: list[str] = []

    def _add(self, value: Any, place: Place) -> None:
        if isinstance(value, str):
            value = str.__str__(value)  # of NumPy, or of an enumeration
        try:
            text = json.dumps(value)
            same = repr(json.loads(text)) == repr(value)
        except (TypeError, ValueError):
            same, text = False, ""
        if not same:
            raise Left(f"{_described(value)} cannot be written as JSON; make it a tensor, text, or a list of numbers")
        self.num_bytes += len(text)
        self.texts.append(text)

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Objects:
        texts, self.texts, self.num_bytes = self.texts, [], 0
        return as_json(texts)


def as_json(texts: list[str], mixed: bool = False) -> Objects:
    encoded = [text.encode() for text in texts]
    slices = offsets_of(np.array([len(text) for text in encoded], np.int64))
    return Objects(np.frombuffer(b"".join(encoded), np.uint8), slices, mixed)


class _Sparse(Gathering):
    kind = "a sparse matrix"

    def __init__(self, key: str, value: Any, place: Place) -> None:
        super().__init__(key, value, place)
        layouts = {torch.sparse_coo: "coo", torch.sparse_csr: "csr"}
        axis = place.data.__cat_dim__(key, value, place.store)
        if not isinstance(value, Tensor) or value.layout not in layouts or value.dim() != 2 or axis not in (0, (0, 1)):
            raise Left("of sparse matrices only torch's own in COO and CSR are kept")
        self.layout, self.diagonal, self.dtype = layouts[value.layout], axis == (0, 1), value.dtype
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []
        self.shapes: list[tuple[int, int]] = []
        self.coalesced: list[bool] = []

    def _add(self, value: Tensor, place: Place) -> None:
        value = value.detach().cpu()
        coo = self.layout == "coo"
        if value.dim() != 2 or (value.layout == torch.sparse_coo) != coo or value.dtype != self.dtype:
            raise place.refuse(
                f"is another kind of sparse matrix than in graph {self.first}; give all the same layout and type"
            )
        if coo:
            rows, columns = value._indices()
            self.parts.append((rows, columns, value._values()))
        else:
            self.parts.append((value.crow_indices().long().diff(), value.col_indices().long(), value.values()))
        self.num_bytes += sum(part.nbytes for part in self.parts[-1])
        self.shapes.append((value.size(0), value.size(1)))
        self.coalesced.append(coo and value.is_coalesced())

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Sparse:
        rows, columns, values = (self._ragged([part[n] for part in self.parts], share) for n in range(3))
        shapes, coalesced = np.array(self.shapes, np.int64), np.array(self.coalesced)
        self.parts, self.shapes, self.coalesced, self.num_bytes = [], [], [], 0
        return Sparse(self.layout, self.diagonal, rows, columns, values, shapes, coalesced)

    def _ragged(self, parts: list[Tensor], share: Callable[[np.ndarray], np.ndarray]) -> Ragged:
        slices = offsets_of(np.array([len(part) for part in parts], np.int64))
        whole = torch.cat(parts)
        return Ragged(bits_of(whole), share(slices), 0, _name(whole.dtype))


class _Mappings(Gathering):
    kind = "a mapping"

    def __init__(self, key: str, value: Any, place: Place) -> None:
        super().__init__(key, value, place)
        if not all(isinstance(name, str) for name in value):
            raise Left("mappings are kept where their keys are text")
        self.inner = {name: gather_like(name, item, place) for name, item in value.items()}

    def _add(self, value: Any, place: Place) -> None:
        for name, gathering in self.inner.items():
            if name not in value:
                raise place.refuse(f"has no key {name!r}, as in graph {self.first}")
            gathering.add(value[name], place._replace(name=f"{place.name}[{name!r}]"))
        self.num_bytes = sum(gathering.num_bytes for gathering in self.inner.values())

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Mapping:
        self.num_bytes = 0
        return Mapping({name: gathering.finished(share) for name, gathering in self.inner.items()})


class _Lists(Gathering):
    kind = "a list of tensors"

    def __init__(self, key: str, value: Any, place: Place) -> None:
        super().__init__(key, value, place)
        self.inner = [gather_like(key, item, place) for item in value]

    def _add(self, value: Any, place: Place) -> None:
        if len(value) != len(self.inner):
            raise place.refuse(f"is a list of {len(value)}, and of {len(self.inner)} in graph {self.first}")
        for number, (gathering, item) in enumerate(zip(self.inner, value)):
            gathering.add(item, place._replace(name=f"{place.name}[{number}]"))
        self.num_bytes = sum(gathering.num_bytes for gathering in self.inner)

    def finished(self, share: Callable[[np.ndarray], np.ndarray]) -> Sequence:
        self.num_bytes = 0
        return Sequence([gathering.finished(share) for gathering in self.inner])


_KINDS: dict[str, Callable[[str, Any, Place], Gathering]] = {
    made.kind: made for made in (_Tensors, _Numbers, _Objects, _Sparse, _Mappings, _Lists)
}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(value: Any) -> str:
    return f"a value of type {type(value).__name__}"
