"""A partition directory, opened: memory-mapped arrays in partition order, and who owns what.

All ranks of a machine map the same files, so the page cache holds each of them once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from ..config import EdgeType, ExperimentError
from ..config.counted import counted
from .book import PartitionBook
from .files import read_manifest
from .holds import Holds, refuse_part
from .schema import Attribute, Edges, Nodes, Schema

Topology = Literal["partitioned", "replicated"]
"""Whether a machine reads the edges that lead to its own nodes, or all."""

T = TypeVar("T")


class Csc(NamedTuple):
    """The edges of one relation, by destination: those of node v are at `colptr[v]` to `colptr[v + 1] - 1`."""

    colptr: np.ndarray
    """int64 [num destinations + 1]"""
    row: np.ndarray
    """int32 or int64 [num_edges], the sources"""
    edge_id: np.ndarray
    """int64 [num_edges], the place of each edge in the user's own edge list"""


def _schema(manifest: dict[str, Any]) -> Schema:
    def attributes(entry: dict[str, Any]) -> dict[str, Attribute]:
        return {
            name: Attribute(a["dtype"], tuple(a["shape"]), a["low"], a["high"], a["missing"])
            for name, a in entry["attributes"].items()
        }

    return Schema(
        nodes={e["type"]: Nodes(e["num_nodes"], attributes(e)) for e in manifest["node_types"]},
        edges={tuple(e["type"]): Edges(e["num_edges"], attributes(e)) for e in manifest["edge_types"]},
        info=manifest["info"],
    )


@dataclass(frozen=True)
class Graph:
    """One machine's view of a partitioned graph.

    Ids are in partition order, int64, global per type. A machine reads rows of its own ranges only; others' are
    fetched through `disttrain.sampling`. Where the topology is replicated it reads all edges and original ids (see
    `needed.needed_rows`). Opening costs milliseconds: nothing is read until it is touched.
    """

    directory: Path
    manifest: dict[str, Any]
    machine: int
    num_machines: int
    _arrays: dict[str, np.ndarray]
    topology: Topology = "partitioned"

    @staticmethod
    def open(
        directory: str | Path,
        machine: int = 0,
        num_machines: int = 1,
        topology: Topology = "partitioned",
        *,
        part: bool = False,
    ) -> Graph:
        """Open a partition directory as `machine` of `num_machines`.

        Args:
            part: also one that holds only what this machine was sent, see `holds.Holds`.

        Raises:
            ExperimentError: if it is missing or torn, or has fewer partitions than there are machines.
        """
        manifest = read_manifest(Path(directory))
        if not part and (holds := Holds.read(Path(directory))) is not None:
            raise refuse_part(Path(directory), holds)
        if manifest["parts"] < num_machines:
            raise ExperimentError(
                f"{directory} holds {counted(manifest['parts'], 'partition')}, fewer than this job's "
                f"{counted(num_machines, 'machine')}; "
                f"partition again with partition.parts={num_machines} or more"
            )
        return Graph(Path(directory), manifest, machine, num_machines, {}, topology)

    def seen_by(self, machine: int, num_machines: int) -> Graph:
        """The view of another machine, on the same files."""
        return replace(self, machine=machine, num_machines=num_machines)

    @cached_property
    def schema(self) -> Schema:
        return _schema(self.manifest)

    @property
    def parts(self) -> int:
        return self.manifest["parts"]

    @property
    def fingerprint(self) -> str:
        return self.manifest["fingerprint"]

    @cached_property
    def _node_entries(self) -> dict[str, dict[str, Any]]:
        return {entry["type"]: entry for entry in self.manifest["node_types"]}

    @cached_property
    def _edge_entries(self) -> dict[EdgeType, dict[str, Any]]:
        return {tuple(entry["type"]): entry for entry in self.manifest["edge_types"]}

    def _array(self, file: str) -> np.ndarray:
        if file not in self._arrays:
            self._arrays[file] = np.load(self.directory / file, mmap_mode="r", allow_pickle=False)
        return self._arrays[file]

    @cached_property
    def _derived(self) -> dict[Any, Any]:
        return {}

    def derived(self, key: Any, make: Callable[[], T]) -> T:
        """What `make` returns, made once for this graph: tables that all samplers of a process share."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def num_nodes(self, node_type: str) -> int:
        return self.schema.nodes[node_type].count

    @cached_property
    def node_books(self) -> dict[str, PartitionBook]:
        """Who owns which nodes, by machine."""
        return {
            node_type: PartitionBook(np.asarray(entry["bounds"], dtype=np.int64)).by_machine(self.num_machines)
            for node_type, entry in self._node_entries.items()
        }

    @property
    def draws_alone(self) -> bool:
        """Whether this machine reads all edges, so that drawing neighbours needs no other."""
        return self.num_machines == 1 or self.topology == "replicated"

    @cached_property
    def topology_books(self) -> dict[str, PartitionBook]:
        """Who draws the neighbours of which nodes: their owners; where it reads all edges, this machine for all."""
        if not self.draws_alone:
            return self.node_books
        return {
            node_type: PartitionBook(
                np.asarray([0] * (self.machine + 1) + [book.num_ids] * (self.num_machines - self.machine))
            )
            for node_type, book in self.node_books.items()
        }

    @cached_property
    def edge_books(self) -> dict[EdgeType, PartitionBook]:
        """Who owns which edges (places in the CSC), by machine: an edge lives with its destination."""
        return {
            edge_type: PartitionBook(np.asarray(self.csc(edge_type).colptr[self.node_books[edge_type[2]].bounds]))
            for edge_type in self.schema.edges
        }

    def node_attribute(self, node_type: str, name: str) -> np.ndarray:
        """[num_nodes, ...], memory-mapped, in partition order."""
        return self._array(self._node_entries[node_type]["attributes"][name]["file"])

    def original_ids(self, node_type: str) -> np.ndarray:
        """int64 [num_nodes]: the user's own row of each node."""
        return self._array(f"nodes/{list(self.schema.nodes).index(node_type)}/original_id.npy")

    def edge_attribute(self, edge_type: EdgeType, name: str) -> np.ndarray:
        """[num_edges, ...], memory-mapped, in the order of the CSC."""
        return self._array(self._edge_entries[edge_type]["attributes"][name]["file"])

    def csc(self, edge_type: EdgeType) -> Csc:
        files = self._edge_entries[edge_type]["files"]
        return Csc(self._array(files["colptr"]), self._array(files["row"]), self._array(files["edge_id"]))

    def source_degrees(self, edge_type: EdgeType) -> np.ndarray:
        """int32 [num source nodes]: how many edges of this relation leave each source node, in the whole graph."""
        return self._array(self._edge_entries[edge_type]["files"]["src_degree"])

    def statistics(self, node_type: str, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation of each column over all nodes, float64; None where the attribute has none."""
        entry = self._node_entries[node_type]["attributes"].get(name)
        if entry is None or not entry.get("mean"):
            return None
        return self._array(entry["mean"]), self._array(entry["std"])
