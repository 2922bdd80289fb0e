"""Tables become a heterogeneous graph: rows are nodes, foreign keys and edge tables are edges."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch_geometric.data import HeteroData

from ..config import (
    EdgeTable,
    EdgeType,
    ExperimentError,
    NodeTable,
    SplitByColumn,
    SplitByMasks,
    SplitByRatio,
    SplitByTime,
    TablesData,
    Task,
    parse_edge_type,
)
from .loaded import LoadedGraph
from .nearest import nearest
from .split import by_names, by_ratio, by_time, moment, set_masks
from .table_columns import Table, connect, quoted
from .table_edges import Relation, index_keys, key_column
from .table_features import Features, codes_of, columns_of, read_features
from .table_files import table_files, tables_of

__all__ = ["read_tables", "table_files"]


def read_tables(data: TablesData, task: Task) -> LoadedGraph:
    """Read all tables, join them, and build features, labels and masks.

    Attributes of the nodes: `x` and `x_cat` (see `read_features`), `time`, `y`, and the three masks on the type of the
    task; of the edges: `edge_attr` likewise (numbers, and codes of categories as numbers), `time`. What standardises
    features: the training rows of the task's type; of other tables, with a split by time, the rows before validation
    where the table has a `time`; else all rows. Cost: each CSV is parsed twice, tables are held in memory once.

    Raises:
        ExperimentError: one message for all files, columns, expressions and types that do not exist, or that do not fit
            together; then one for all keys that are not unique or name no row.
    """
    paths = table_files(data)
    with tempfile.TemporaryDirectory(prefix="disttrain-tables-") as scratch, connect(scratch) as database:
        tables = {place: Table(database, place, table) for place, table in tables_of(data).items()}
        by_name = dict(zip(tables, _path_of_each(data, paths)))
        for place, table in tables.items():
            table.open(by_name[place], data.missing, scratch)
        target = _check(data, task, tables)
        nodes = {name: tables[f"nodes.{name}"] for name in data.nodes}
        _raise([mistake for table in nodes.values() for mistake in index_keys(database, table)])

        graph, info = HeteroData(), dict[str, Any](classes={}, features={}, categories={})
        labels, info["classes"][target] = _labels(nodes[target], data.nodes[target])
        masks = _masks(nodes[target], data, labels)
        for name, table in nodes.items():
            graph[name].num_nodes = table.count()
            fit = masks[0] & (labels >= 0) if name == target else _fit_rows(table, data)
            features = read_features(table, data.nodes[name].features, fit)
            _set_features(graph[name], features)
            _describe(info, name, features)
            _set_time(graph[name], table)
        graph[target].y = torch.from_numpy(labels)
        set_masks(graph[target], masks, labels >= 0, target)

        relations = [_relation(database, data, nodes, tables, *named) for named in _edge_types(data)]
        if data.dangling == "refuse":
            lost = [relation.explain_dangling() for relation, _ in relations if relation.dangling]
            _raise([*lost, "(data.dangling: drop leaves such edges out)"] if lost else [])
        _add_relations(graph, info, relations, data)
        keys = {name: _keys(table) for name, table in nodes.items() if data.nodes[name].key is not None}
    return LoadedGraph(graph, keys, {name: value for name, value in info.items() if value})


def _path_of_each(data: TablesData, paths: list[str]) -> list[str]:
    files = [table.file for table in tables_of(data).values()]
    path_of = dict(zip(dict.fromkeys(files), paths))
    return [path_of[file] for file in files]


def _raise(mistakes: list[str]) -> None:
    if mistakes:
        raise ExperimentError("\n".join(mistakes))


# what is checked before anything is built: every name that the YAML uses
def _check(data: TablesData, task: Task, tables: dict[str, Table]) -> str:
    mistakes = []
    for place, table in tables.items():
        settings = table.settings
        if isinstance(settings, NodeTable):
            named: list[tuple[str | None, str]] = [(settings.key, "key"), (settings.label, "label")]
            for column, node_type in settings.foreign_keys.items():
                named.append((column, "foreign_keys"))
                if node_type not in data.nodes:
                    mistakes.append(_no_type(f"data.{place}.foreign_keys.{column}", node_type, data))
        else:
            named = [(settings.src, "src"), (settings.dst, "dst")]
            source, _, destination = parse_edge_type(place.removeprefix('edges["').removesuffix('"]'))
            mistakes += [_no_type(f"data.{place}", end, data) for end in (source, destination) if end not in data.nodes]
        for column, path in [*named, (settings.time, "time"), *columns_of(settings.features)]:
            table.check(column, path)
    target, why_not = _target(data, task)
    if target is None:
        mistakes.append(why_not)
    elif isinstance(data.split, (SplitByColumn, SplitByTime)):
        columns = tables[f"nodes.{target}"].columns
        if columns and data.split.column not in columns:
            mistakes.append(
                f'data.split.column: the table of "{target}" has no column "{data.split.column}"'
                f"{nearest(data.split.column, columns)}"
            )
    elif isinstance(data.split, SplitByMasks):
        mistakes.append(
            "data.split: tables have no masks; choose {by: ratio, ...}, {by: column, ...} or {by: time, ...}"
        )
    _raise([*(mistake for table in tables.values() for mistake in table.mistakes), *mistakes])
    assert target is not None
    return target


def _no_type(where: str, node_type: str, data: TablesData) -> str:
    return f'{where}: there is no node type "{node_type}"{nearest(node_type, data.nodes)}'


def _target(data: TablesData, task: Task) -> tuple[str | None, str]:
    labelled = [name for name, table in data.nodes.items() if table.label is not None]
    if task.label != "y":
        return None, f'task.label: tables call it "y", not "{task.label}"; data.nodes.<type>.label names the column'
    if task.node_type is None:
        if len(labelled) == 1:
            return labelled[0], ""
        came = f"{', '.join(labelled)} have one, name one" if labelled else "set data.nodes.<type>.label"
        return None, f"task.node_type: the task needs a type with a label: {came}"
    if task.node_type not in data.nodes:
        return None, _no_type("task.node_type", task.node_type, data)
    if task.node_type not in labelled:
        return None, f"data.nodes.{task.node_type}.label: the task needs it; which column holds the classes?"
    return task.node_type, ""


# labels and masks, in the order of the ids
def _labels(table: Table, settings: NodeTable) -> tuple[np.ndarray, list[str]]:
    """`y` int64 [num_rows], -1 where there is none, and the name of each class."""
    assert settings.label is not None
    column = quoted(settings.label)
    kind = table.columns[settings.label]
    if kind.endswith("]") or kind.startswith(("STRUCT", "MAP", "UNION")):
        raise ExperimentError(
            f'data.{table.place}.label: "{settings.label}" holds {kind}; a label is a class: integers, booleans or text'
        )
    if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
        values = table.numbers(settings.label)
        known = values[~np.isnan(values)]
        if (known != np.round(known)).any():
            raise ExperimentError(
                f'data.{table.place}.label: "{settings.label}" holds numbers with fractions; a label is a class: '
                "integers, booleans or text (compute one in `columns`, for instance by a threshold)"
            )
        column = f"CAST({column} AS BIGINT)"
    values = table.arrow(column)
    y, classes = codes_of(values, np.ones(len(values), dtype=bool))
    if len(classes) < 2:
        raise ExperimentError(
            f'data.{table.place}.label: "{settings.label}" must have at least two classes, it has {classes}'
        )
    return y, [str(name).lower() if isinstance(name, bool) else str(name) for name in classes]


def _masks(table: Table, data: TablesData, labels: np.ndarray) -> tuple[np.ndarray, ...]:
    split = data.split
    if isinstance(split, SplitByRatio):
        return by_ratio(labels >= 0, split)
    if isinstance(split, SplitByColumn):
        text = table.arrow(f"coalesce(CAST({quoted(split.column)} AS VARCHAR), '')")
        return by_names(text.to_numpy(zero_copy_only=False).astype(str), split)
    assert isinstance(split, SplitByTime)
    return by_time(table.seconds(split.column), split)


def _fit_rows(table: Table, data: TablesData) -> np.ndarray:
    time = table.settings.time
    if time is not None and isinstance(data.split, SplitByTime) and _same_clock(table, time, data.split):
        fit = table.seconds(time) < moment(data.split.val, "data.split.val")
        if fit.any():
            return fit
    return np.ones(table.count(), dtype=bool)


def _same_clock(table: Table, column: str, split: SplitByTime) -> bool:
    """Whether the table's `time` can be compared with the split's: both date-times, or both numbers."""
    try:
        float(split.val)
    except ValueError:
        return table.is_moment(column)
    return not table.is_moment(column)


# what is put into the graph
def _set_features(store: Any, features: Features) -> None:
    if features.x.shape[1]:
        store.x = torch.from_numpy(features.x)
    if features.codes.shape[1]:
        store.x_cat = torch.from_numpy(features.codes)


def _describe(info: dict[str, Any], name: str, features: Features) -> None:
    if features.names:
        info["features"][name] = features.names
    if features.categories:
        info["categories"][name] = {column: len(values) + 1 for column, values in features.categories.items()}


def _set_time(store: Any, table: Table, rows: np.ndarray | None = None) -> None:
    column = table.settings.time
    if column is None:
        return
    values = table.seconds(column)
    if absent := int(np.isnan(values).sum()):
        raise ExperimentError(
            f'data.{table.place}.time: {absent} rows have no "{column}"; leave them out by `where`, or fill them in '
            "by a column computed with coalesce(...)"
        )
    values = values if rows is None else values[rows]
    whole = bool((values == np.floor(values)).all()) or table.columns[column].startswith(("TIMESTAMP", "DATE"))
    store.time = torch.from_numpy(np.floor(values).astype(np.int64) if whole else values)


def _edge_types(data: TablesData) -> list[tuple[EdgeType, str]]:
    """Each relation and the place of the table that names its edges."""
    foreign = [
        ((name, column, node_type), f"nodes.{name}")
        for name, table in data.nodes.items()
        for column, node_type in table.foreign_keys.items()
    ]
    return foreign + [(parse_edge_type(name), f'edges["{name}"]') for name in data.edges]


def _relation(
    database: Any, data: TablesData, nodes: dict[str, Table], tables: dict[str, Table], edge_type: EdgeType, place: str
) -> tuple[Relation, Table]:
    table = tables[place]
    if isinstance(table.settings, EdgeTable):
        ends = [(table.settings.src, nodes[edge_type[0]]), (table.settings.dst, nodes[edge_type[2]])]
    else:
        ends = [(edge_type[1], nodes[edge_type[2]])]
    return Relation(database, edge_type, table, ends), table


def _add_relations(
    graph: HeteroData, info: dict[str, Any], relations: list[tuple[Relation, Table]], data: TablesData
) -> None:
    for relation, table in relations:
        store = graph[relation.edge_type]
        store.edge_index = torch.from_numpy(np.stack([relation.source, relation.destination]))
        if isinstance(table.settings, EdgeTable):
            fit = _fit_rows(table, data)
            features = read_features(table, table.settings.features, fit)
            both = np.concatenate([features.x, features.codes.astype(np.float32)], axis=1)
            if both.shape[1]:
                store.edge_attr = torch.from_numpy(both[relation.rows])
                info["features"][",".join(relation.edge_type)] = [*features.names, *features.categories]
            _set_time(store, table, relation.rows)
        if relation.dangling:
            info.setdefault("dangling", {})[",".join(relation.edge_type)] = relation.dangling
        source, name, destination = relation.edge_type
        backward = (destination, f"rev_{name}", source)
        if data.reverse and backward not in graph.edge_types and ",".join(backward) not in data.edges:
            for attribute, value in store.items():
                graph[backward][attribute] = value.flip(0).contiguous() if attribute == "edge_index" else value
            if data.reverse == "only":
                del graph[relation.edge_type]


def _keys(table: Table) -> pa.Array:
    keys = table.arrow(quoted(key_column(table))).combine_chunks()
    return keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
