"""Graphs as users make them: with edges that lead nowhere, numbers of NumPy, rules and names of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData

from disttrain.collection.collated import collate
from disttrain.collection.edges import wrong_edges
from disttrain.collection.graphs import Graphs
from disttrain.collection.loader import GraphLoader
from disttrain.collection.making import batches
from disttrain.collection.ondisk import OnDisk, convert
from disttrain.collection.own_class import find
from disttrain.config import ExperimentError, Sampling
from disttrain.graph.schema import GRAPH, Wants
from disttrain.train.collections import divided, prepare_collection
from disttrain.world import World
from tests.unit.test_collection_collated import same_batch
from tests.unit.test_collection_loader import experiment, opened


class Moved(Data):
    """By a rule of its own."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return 7 if key == "place" else super().__inc__(key, value, *args, **kwargs)


class Linked(Data):
    """Rows end to end along the second axis, stacked, and a number that is moved; and something of its own."""

    def __init__(self, scale: int = 10, **more: Any) -> None:
        super().__init__(**more)
        object.__setattr__(self, "scale", scale)

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return {"mates": self.num_nodes, "turn": 2}.get(key, 0) or super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return {"mates": 1, "stacked": None}.get(key, super().__cat_dim__(key, value, *args, **kwargs))

    def scaled(self) -> int:
        return int(self.num_nodes or 0) * self.__dict__["scale"]


class Demanding(Data):
    def __init__(self, needed: Any, **more: Any) -> None:
        super().__init__(**more)


def graph(n: int, edges: list[list[int]], kind: Any = Data, **more: Any) -> Any:
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(2, -1)
    return kind(x=torch.ones(n, 1), edge_index=edge_index, y=n % 2, **more)


def moved() -> list[Data]:
    return [graph(n, [[0], [n - 1]], Moved, place=torch.tensor([n])) for n in range(1, 9)]


def linked() -> list[Data]:
    return [
        graph(
            n, [[0], [n - 1]], Linked, mates=torch.arange(3 * n).reshape(3, n) % n,
            stacked=torch.full((2,), float(n)), turn=n,
        )
        for n in range(1, 9)
    ]  # fmt: skip


def hidden() -> list[Data]:
    class Hidden(Data):
        pass

    return [graph(n, [[0], [n - 1]], Hidden) for n in range(1, 9)]


def demanding() -> list[Data]:
    return [graph(n, [[0], [n - 1]], Demanding, needed=None) for n in range(1, 9)]


def by_its_method(given: Any) -> Any:
    given.length = given.scaled()
    return given


def numbered() -> list[Data]:
    """Attributes of the graphs that are indices of nodes, or of a type that NumPy lacks."""
    more = [
        {"root_index": torch.tensor([n - 1]), "last_index": n - 1, "u": torch.tensor([[n / 2]], dtype=torch.bfloat16)}
        for n in range(1, 9)
    ]
    return [graph(n, [[0], [n - 1]], **found) for n, found in enumerate(more, 1)]


def of_numpy(n: int = 8) -> list[Data]:
    values = np.arange(n) % 2
    return [graph(3, [[0], [1]], z=values[i], w=np.float64(i), name=np.array(["a"])[0]) for i in range(n)]


def same_place(given: Data) -> Data:
    return given


def one_edge_more(given: Data) -> Data:
    assert given.edge_index is not None and given.x is not None
    given.edge_index = torch.cat([given.edge_index, torch.tensor([[0], [given.x.size(0) // 5]])], dim=1)
    given.edge_index[0, -1] = given.x.size(0) // 5 * 8
    return given


def test_an_edge_to_no_node_of_its_graph_is_refused_by_the_graphs_number() -> None:
    good = [graph(3, [[0, 2], [1, 0]]), graph(2, [[0], [1]]), graph(0, [[], []])]
    assert wrong_edges(collate(good, "here")) is None
    for edges, said in (
        ([[0, 2], [0, 1]], "`edge_index` has node 2 as a source, of 2 nodes"),
        ([[0, 1], [0, -1]], "`edge_index` has node -1 as a destination, of 2 nodes"),
    ):
        numbers = enumerate([*good, graph(2, edges), graph(9, [[0], [0]])], 10)
        with pytest.raises(ExperimentError, match=f"^here: graph 13: {said}"):
            list(batches(numbers, "here"))
    flat = [Data(x=torch.ones(3, 1), edge_index=torch.zeros(4, 2, dtype=torch.int64)) for _ in range(2)]
    with pytest.raises(ExperimentError, match=r"graph 0: `edge_index` is int64 \[4, ...\]; expected whole numbers \[2"):
        list(batches(enumerate(flat), "here"))


def test_the_ends_of_heterogeneous_edges_are_of_two_types() -> None:
    def made(source: int, destination: int) -> HeteroData:
        found: Any = HeteroData()
        found["a"].x, found["b"].x = torch.ones(2, 1), torch.ones(5, 1)
        found["a", "to", "b"].edge_index = torch.tensor([[0, source], [0, destination]])
        return found

    assert wrong_edges(collate([made(1, 4), made(0, 0)], "here")) is None
    assert wrong_edges(collate([made(1, 4), made(2, 0)], "here")) == (
        1, '`edge_index` of relation "a,to,b" has node 2 as a source, of 2 nodes (from 0 on)',
    )  # fmt: skip


def test_edges_of_transforms_too(tmp_path: Path) -> None:
    here = "tests.unit.test_collection_own_graphs"
    graphs = opened(tmp_path, function="rings", transforms=[f"{here}:one_edge_more"])
    assert graphs.batch(np.array([0, 1]), Wants(edges={("node", "edge", "node"): ()})).num_nodes == 9
    with pytest.raises(ExperimentError, match="data.transforms: after them, graph 2: .* has node 8 as a source, of 5"):
        graphs.batch(np.array([0, 2]), Wants(edges={("node", "edge", "node"): ()}))


def own(directory: Path, function: str, **data: Any) -> Graphs:
    found = experiment(directory, **data)
    source = found.data.model_copy(update={"function": f"tests.unit.test_collection_own_graphs:{function}"})
    with World.start(device="cpu", timeout=30) as world:
        return prepare_collection(found.model_copy(update={"data": source}), world)


def test_indices_and_short_floats_of_the_graphs_are_those_of_pyg(tmp_path: Path) -> None:
    graphs, ids = own(tmp_path, "numbered"), [3, 1, 2]
    names = ("root_index", "last_index", "u")
    ours = graphs.batch(np.array(ids), Wants(nodes={GRAPH: names}))[GRAPH]
    theirs: Any = Batch.from_data_list([numbered()[i] for i in ids])
    assert ours.root_index.tolist() == [3, 5, 8]
    for name in names:
        assert torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype, name


def test_what_attributes_belong_to_is_as_in_training_where_sizes_do_not_tell(tmp_path: Path) -> None:
    def made(n: int, m: int) -> Data:
        return graph(n, [[0] * m, [0] * m], w=torch.ones(m), walks=torch.ones(n, 3), u=torch.ones(1, 2))

    def owners(found: Graphs) -> dict[str, Any]:
        schema = found.schema
        return {
            name: next(key for key, its in {**schema.nodes, **schema.edges}.items() if name in its.attributes)
            for name in ("w", "walks", "u")
        }

    manifest: dict[str, Any] = {"stores": []}
    training = Graphs(collate([made(2, 3), made(3, 5)], "here"), manifest)
    expected = {"w": ("node", "edge", "node"), "walks": "node", "u": GRAPH}
    assert owners(training) == expected
    for n, m in ((1, 3), (4, 4), (4, 1), (1, 1)):
        assert owners(Graphs(collate([made(n, m)], "here"), manifest, known=training.schema)) == expected, (n, m)


def test_rules_of_the_users_own_are_not_lost_in_transforms(tmp_path: Path) -> None:
    for number, (function, names) in enumerate({"moved": ("place",), "linked": ("mates", "stacked", "turn")}.items()):
        graphs: list[Any] = globals()[function]()
        expected: Any = Batch.from_data_list([graphs[i] for i in (3, 1, 2)])
        same_batch(own(tmp_path / str(number), function).collated.batch(np.array([3, 1, 2])), expected)
        transforms = ["tests.unit.test_collection_own_graphs:same_place"]
        for setting in ("transforms", "pre_transforms"):
            found = own(tmp_path / str(number), function, **{setting: transforms})
            picked, places = found.stored.pick(np.array([3, 1, 2]))
            same_batch(picked.batch(places), expected)
            batch = found.batch(np.array([3, 1, 2]), Wants(nodes={GRAPH: names}))
            for name in names:
                assert torch.equal(batch[GRAPH][name], expected[name]), (function, setting, name)
                assert batch[GRAPH][name].dtype == expected[name].dtype
            assert found.manifest["own_class"].startswith(f"{__name__}:")


def test_a_transform_gets_objects_of_the_users_own_class(tmp_path: Path) -> None:
    found = own(tmp_path, "linked", transforms=["tests.unit.test_collection_own_graphs:by_its_method"])
    batch = found.batch(np.array([1, 4]), Wants(nodes={GRAPH: ("length",)}))
    assert batch[GRAPH].length.tolist() == [2 * 10, 5 * 10], "what its `__init__` sets, and a method of it"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("hidden", "Hidden, which no other process can import; move it to the top of a module"),
        ("demanding", r"Demanding, and Demanding\(\) fails \(TypeError: .*: for transforms at each access"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused_with_the_reason(tmp_path: Path, function: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        own(tmp_path, function, transforms=["tests.unit.test_collection_own_graphs:same_place"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64])
def test_labels_of_a_type_that_is_not_learnt_are_called_so(tmp_path: Path, dtype: torch.dtype) -> None:
    labelled = [graph(3, [[0], [1]], z=torch.ones(1, dtype=dtype)) for _ in range(8)]
    graphs = Graphs(collate(labelled, "here"), {"stores": [], "history": [{"num_graphs": 8}]})
    with pytest.raises(ExperimentError, match=f'"z" of the graphs is {str(dtype)[6:]}; expected whole numbers, true'):
        divided(graphs, experiment(tmp_path, label="z"))


def test_code_is_not_imported_on_the_word_of_a_file() -> None:
    with pytest.raises(ExperimentError, match="of the class antigravity:Fly. Code is imported from packages that the"):
        find("antigravity:Fly", {"tests"})
    assert "antigravity" not in sys.modules
    with pytest.raises(ExperimentError, match="which is no class of graphs any more"):
        find("tests.unit.test_collection_own_graphs:moved", {"tests"})


def test_numbers_and_text_of_numpy_are_like_others(tmp_path: Path) -> None:
    graphs = own(tmp_path, "of_numpy", split={"by": "ratio", "train": 1, "val": 0, "test": 0})
    assert graphs.collated.left_out == ()
    batch = graphs.collated.batch(np.array([1, 2]))
    assert batch.z.tolist() == [1, 0] and batch.w.tolist() == [1.0, 2.0] and batch.name == ["a", "a"]
    assert (batch.z.dtype, batch.w.dtype) == (torch.int64, torch.float32)


def test_names_that_hold_what_divides_paths(tmp_path: Path) -> None:
    graphs: list[Any] = [graph(2, [[0], [1]]) for _ in range(3)]
    for number, each in enumerate(graphs):
        each["a/b"], each["a"] = torch.tensor([number]), {"b": torch.tensor([-number])}
    collated = collate(graphs, "here")
    convert(collated, tmp_path / "database", "its fingerprint", "sqlite")
    picked, places = OnDisk(tmp_path / "database", collated, "its fingerprint", "sqlite", 0).pick(np.array([1, 2]))
    same_batch(picked.batch(places), Batch.from_data_list(graphs[1:]))


def test_a_transform_of_pygs_that_fails_is_a_mistake_of_the_experiment(tmp_path: Path) -> None:
    for settings, said in (
        ({"OneHotDegree": {"max_degree": 1}}, r"OneHotDegree failed on .*; look at its arguments"),
        ("BaseTransform", r"data.pre_transforms\[0\] BaseTransform cannot be made: TypeError"),
    ):
        with pytest.raises(ExperimentError, match=said):
            opened(tmp_path, pre_transforms=[settings])
    with pytest.raises(ExperimentError, match="expected package.module:name, got ':x'"):
        opened(tmp_path, pre_filter=":x")
    assert not list((tmp_path / "store").glob(".making-*"))


def test_batches_larger_than_any_number_of_graphs_hold_all(tmp_path: Path) -> None:
    with World.start(device="cpu", timeout=30) as world:
        graphs = opened(tmp_path, world=world)
        for sizes in ({"batch_size": 10**30, "eval_batch_size": 10**30}, {"max_nodes": 10**30, "max_edges": 2**63}):
            for split in ("train_mask", "test_mask"):
                loader = GraphLoader(
                    world, graphs, split, sampling=Sampling(workers=0, **sizes), run_seed=0, wants=Wants(),
                    training=split == "train_mask",
                )  # fmt: skip
                (batch,) = loader.batches(0)
                assert sorted(batch[GRAPH].n_id.tolist()) == np.flatnonzero(graphs.masks[split]).tolist()


def test_what_splits_refuse(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("1 99999999999999999999999")
    with pytest.raises(ExperimentError, match="rows.txt holds no row numbers"):
        opened(tmp_path, split={"by": "files", "train": str(tmp_path / "rows.txt")})
