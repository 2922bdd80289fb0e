"""Seeds -> neighbours -> features: the mini-batches of a graph that is spread over machines."""

from .exchange import RowExchange
from .features import FeatureFetcher
from .loader import NodeLoader
from .neighbors import NeighborSampler
from .route import Route
from .seeds import Seeds, gather_seeds, split_seeds
from .subgraph import Subgraph

__all__ = [
    "FeatureFetcher",
    "NeighborSampler",
    "NodeLoader",
    "Route",
    "RowExchange",
    "Seeds",
    "Subgraph",
    "gather_seeds",
    "split_seeds",
]
