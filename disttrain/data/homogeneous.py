"""A homogeneous graph is a heterogeneous one with one node type and one edge type."""

from __future__ import annotations

import copy
import warnings

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ..config import EdgeType
from .attributes import MASK_OF_INDEX, rows_of

NODE_TYPE = "node"
EDGE_TYPE: EdgeType = ("node", "edge", "node")
_OF_EDGES = ("edge_index", "adj_t", "edge_attr", "edge_weight")


def to_heterogeneous(data: Data) -> HeteroData:
    """`Data` as a `HeteroData` with the types `node` and `("node", "edge", "node")`.

    Every attribute that belongs to nodes or edges is kept, under its own name and as the same tensor; the others
    become attributes of the graph. (PyG's `Data.to_heterogeneous` splits by `node_type` attributes instead.)
    """
    result = HeteroData()
    with warnings.catch_warnings():
        # PyG warns where it has to infer the number from the edges; that is what is wanted here
        warnings.simplefilter("ignore", UserWarning)
        result[NODE_TYPE].num_nodes = data.num_nodes
        data = copy.copy(data)
        data.num_nodes = num_nodes = result[NODE_TYPE].num_nodes
    for name, value in data.to_dict().items():
        if name == "num_nodes":
            continue
        if name in _OF_EDGES:
            result[EDGE_TYPE][name] = value
        elif name in MASK_OF_INDEX or name.endswith("_mask"):
            result[NODE_TYPE][name] = value
        elif rows_of(value) is None:
            result[name] = value
        elif data.is_node_attr(name) if isinstance(value, Tensor) else rows_of(value) == num_nodes:
            result[NODE_TYPE][name] = value
        elif data.is_edge_attr(name) if isinstance(value, Tensor) else rows_of(value) == data.num_edges:
            result[EDGE_TYPE][name] = value
        else:
            result[name] = value
    return result
