"""The graphs of a collection by number, for functions of the user's own that look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
from torch_geometric.data import Data, HeteroData

from .access import Access
from .objects import graphs_of, values_of


class NumberedGraphs(Sequence[Any]):
    """`graphs[i]` is graph i as it is stored, `Data` or `HeteroData`; made when it is asked for."""

    def __init__(self, source: Access, num_graphs: int) -> None:
        self._source, self._num_graphs = source, num_graphs

    def __len__(self) -> int:
        return self._num_graphs

    @overload
    def __getitem__(self, number: int) -> Data | HeteroData: ...
    @overload
    def __getitem__(self, number: slice) -> list[Data | HeteroData]: ...
    def __getitem__(self, number: Any) -> Any:
        numbers = np.arange(self._num_graphs)[number]
        picked, places = self._source.pick(np.atleast_1d(numbers))
        graphs = graphs_of(picked, places)
        return graphs if isinstance(number, slice) else graphs[0]

    def attribute(self, name: str) -> list[Any]:
        """What each graph has under a name, e.g. `smiles`; the values of all graphs, without making these.

        Raises:
            AttributeError: they have nothing of that name.
        """
        picked, places = self._source.pick(np.arange(self._num_graphs))
        for store in picked.stores.values():
            if name in store.columns:
                return list(values_of(store.columns[name], places))
        raise AttributeError(f"the graphs have no attribute {name!r}")
