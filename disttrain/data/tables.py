"""Tables become a heterogeneous graph: rows are nodes, foreign keys and edge tables are edges."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch_geometric.data import HeteroData

from ..config import (
    EdgeTable,
    EdgeType,
    ExperimentError,
    NodeTable,
    SplitByColumn,
    SplitByFiles,
    SplitByFolds,
    SplitByFunction,
    SplitByMasks,
    SplitByRatio,
    SplitByTime,
    TablesData,
    Task,
    edge_type_name,
    parse_edge_type,
)
from ..config.counted import counted
from .folds import split_rows
from .loaded import LoadedGraph
from .nearest import nearest
from .scratch import Scratch
from .split import by_names, by_time, moment, other_names, set_masks
from .table_columns import Table, quoted
from .table_database import connect, room_for
from .table_edges import End, Relation
from .table_features import Features, check_features, columns_of, set_node_features
from .table_files import files_of_tables, table_files, tables_of
from .table_keys import check_keys, write_keys
from .table_labels import Labels, no_label, read_labels

__all__ = ["read_tables", "table_files"]


def read_tables(data: TablesData, task: Task, scratch_parent: str | Path | None = None) -> LoadedGraph:
    """Read all tables, join them, and build features, labels and masks.

    Attributes of the nodes: `x` and `x_cat` (see `Features`), `time`, `y`, and the three masks on the type of the
    task; of the edges: `edge_attr` likewise (numbers, and codes of categories as numbers), `time`. What standardises
    features: the training rows of the task's type; of other tables, with a split by time, the rows before validation
    where the table has a `time`; else all rows.

    Everything with a row per node or edge lies in files, memory-mapped, which are gone when nothing uses them any more.
    Memory: that of DuckDB (`data.memory_bytes`), a block of rows, and some 20 bytes a node of the task's type. Disk,
    for the time of reading: the columns that are used, two to three times, and the arrays.

    Raises:
        ExperimentError: one message for all files, columns, expressions and types that do not exist, or that do not fit
            together; then one for all keys that are not unique, one for all that name no row.
    """
    files = files_of_tables(data)
    with (
        Scratch(scratch_parent) as scratch,
        room_for(scratch, data.memory_bytes),
        connect(scratch, data.memory_bytes) as database,
    ):
        tables = {place: Table(database, place, table) for place, table in tables_of(data).items()}
        target, why_not = _target(data, task)
        for place, table in tables.items():
            keys, wanted = _columns_used(data, place, table, target)
            table.open(files[place], data.missing, scratch, keys, {*keys, *wanted})
        target = _check(data, tables, target, why_not)
        nodes = {name: tables[f"nodes.{name}"] for name in data.nodes}
        _leave_rows_out(data, tables, nodes[target])
        _raise([mistake for table in nodes.values() for mistake in check_keys(table, data.duplicates)])
        relations = _join(data, nodes, tables)

        graph, info = HeteroData(), dict[str, Any](classes={}, features={}, categories={}, without_label={})
        label = data.nodes[target].label
        assert label is not None
        labels = read_labels(nodes[target], label, _is_regression(task))
        info["classes"] = {target: labels.names} if labels.names else {}
        masks = _masks(nodes[target], data, labels, info)
        for name, table in nodes.items():
            graph[name].num_nodes = table.count()
            fit = masks[0] & labels.known if name == target else _fit_rows(table, data, scratch)
            features = Features(table, data.nodes[name].features, fit)
            set_node_features(graph[name], table, features, scratch)
            _describe(info, name, features)
            _set_time(graph[name], table, scratch)
        graph[target].y = torch.from_numpy(labels.y)
        if absent := int(np.count_nonzero(~labels.known)):
            info["without_label"][target] = absent
        set_masks(graph[target], masks, labels.known, target)
        for relation in relations:
            _add_relation(graph, info, relation, data, scratch)
        info["rows_left_out"] = {place: table.left_out for place, table in tables.items() if table.left_out}
        keys = {name: write_keys(table, scratch) for name, table in nodes.items() if data.nodes[name].key is not None}
    return LoadedGraph(graph, keys, {name: value for name, value in info.items() if value})


def _raise(mistakes: list[str]) -> None:
    if mistakes:
        raise ExperimentError("\n".join(dict.fromkeys(mistakes)))


def _is_regression(task: Any) -> bool:
    return task.kind == "node_regression"


def _columns_used(data: TablesData, place: str, table: Table, target: str | None) -> tuple[list[str], list[str]]:
    """The columns of a table that are keys, and the others that are used."""
    settings = table.settings
    keys: list[str] = []
    wanted = [column for column, _ in columns_of(settings.features)]
    if settings.time is not None:
        wanted.append(settings.time)
    if isinstance(settings, EdgeTable):
        keys += [*settings.src, *settings.dst]
    else:
        keys += settings.key or ()
        keys += [column for foreign in settings.references.values() for column in foreign.columns]
        if place == f"nodes.{target}":
            wanted += settings.label or ()
            wanted += [data.split.column] if isinstance(data.split, (SplitByColumn, SplitByTime)) else []
    return keys, wanted


# what is checked before anything is built: every name that the YAML uses
def _check(data: TablesData, tables: dict[str, Table], target: str | None, why_not: str) -> str:
    mistakes = []
    for place, table in tables.items():
        settings = table.settings
        if isinstance(settings, NodeTable):
            named = [(column, "key") for column in settings.key or ()]
            named += [(column, "label") for column in settings.label or ()]
            for name, foreign in settings.references.items():
                named += [(column, "foreign_keys") for column in foreign.columns]
                if foreign.type not in data.nodes:
                    mistakes.append(_no_type(f"data.{place}.foreign_keys.{name}", foreign.type, data))
        else:
            named = [(column, "src") for column in settings.src] + [(column, "dst") for column in settings.dst]
            source, _, destination = parse_edge_type(place.removeprefix('edges["').removesuffix('"]'))
            mistakes += [_no_type(f"data.{place}", end, data) for end in (source, destination) if end not in data.nodes]
        for column, path in [*named, (settings.time, "time"), *columns_of(settings.features)]:
            table.check(column, path)
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
    for table in tables.values():
        check_features(table, table.settings.features)
        if table.settings.time is not None:
            _check_time(table, table.settings.time)
    if isinstance(data.split, SplitByTime):
        _check_time(tables[f"nodes.{target}"], data.split.column)
        _check_clock(tables[f"nodes.{target}"], data.split)
    _raise([mistake for table in tables.values() for mistake in table.mistakes])
    return target


def _check_time(table: Table, column: str) -> None:
    meant = ("TIMESTAMP", "dates") if table.is_moment(column) else ("DOUBLE", "numbers")
    table.check_cast(column, *meant)
    table.check_range(column)


def _check_clock(table: Table, split: SplitByTime) -> None:
    """Note it as a mistake if dates are to be compared with numbers."""
    if not _same_clock(table, split.column, split):
        kind = "dates" if table.is_moment(split.column) else "numbers"
        table.mistakes.append(
            f'data.split: column "{split.column}" holds {kind} ({table.columns[split.column]}), but val and test are '
            f"{split.val} and {split.test}; give {'ISO dates such as 2013-10-01' if kind == 'dates' else 'numbers'}"
        )


def _no_type(where: str, node_type: str, data: TablesData) -> str:
    return f'{where}: there is no node type "{node_type}"{nearest(node_type, data.nodes)}'


def _target(data: TablesData, task: Task) -> tuple[str | None, str]:
    labelled = [name for name, table in data.nodes.items() if table.label]
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
        return None, f"data.nodes.{task.node_type}.label: the task needs it; which column holds what is to be learnt?"
    return task.node_type, ""


def _leave_rows_out(data: TablesData, tables: dict[str, Table], target: Table) -> None:
    """Rows without a label or a time, as the experiment says."""
    assert isinstance(target.settings, NodeTable) and target.settings.label
    absent = no_label(target, target.settings.label)
    mistakes = []
    if data.missing_labels == "drop":
        target.leave_out(absent, "missing_labels")
    elif data.missing_labels == "refuse" and (count := target.how_many(absent)):
        mistakes.append(
            f"data.{target.place}.label: {counted(count, 'row')} without {', '.join(target.settings.label)} "
            "(data.missing_labels: keep makes such rows nodes in no split, drop leaves them out)"
        )
    for table in tables.values():
        if (column := table.settings.time) is None:
            continue
        timeless = f"coalesce(NOT isfinite(CAST({table.seconds(column)} AS DOUBLE)), true)"
        if data.missing_times == "drop":
            table.leave_out(timeless, "missing_times")
        elif count := table.how_many(timeless):
            mistakes.append(
                f'data.{table.place}.time: {counted(count, "row")} without "{column}" (data.missing_times: drop '
                "leaves such rows out); or fill it in by a column computed with coalesce(...)"
            )
    _raise(mistakes)


def _join(data: TablesData, nodes: dict[str, Table], tables: dict[str, Table]) -> list[Relation]:
    """Every relation, its keys looked up."""
    _raise(_made_twice(data))
    relations = [_relation(data, nodes, tables, *named) for named in _edge_types(data)]
    _raise([mistake for relation in relations for mistake in relation.mistakes()])
    for relation in relations:
        relation.join()
    if data.dangling == "refuse":
        lost = [relation.explain_dangling() for relation in relations if relation.dangling]
        _raise([*lost, "(data.dangling: drop leaves such edges out)"] if lost else [])
    return relations


def _edge_types(data: TablesData) -> list[tuple[EdgeType, str]]:
    """Each relation and the place of the table that names its edges."""
    foreign = [
        ((name, relation, key.type), f"nodes.{name}")
        for name, table in data.nodes.items()
        for relation, key in table.references.items()
    ]
    return foreign + [(parse_edge_type(name), f'edges["{name}"]') for name in data.edges]


def _reverse_of(data: TablesData, edge_type: EdgeType, place: str) -> bool | Literal["only"]:
    """What the experiment says of the reverse of a relation that the table at `place` names."""
    named = dict(tables_of(data))[place]
    reverse = named.reverse if isinstance(named, EdgeTable) else named.references[edge_type[1]].reverse
    return data.reverse if reverse is None else reverse


def _backward(edge_type: EdgeType) -> EdgeType:
    source, name, destination = edge_type
    return destination, f"rev_{name}", source


def _made_twice(data: TablesData) -> list[str]:
    """Relations whose edges would come from two places, a line each."""
    named, found = _edge_types(data), []
    places: dict[EdgeType, str] = {}
    for edge_type, place in named:
        if edge_type in places:
            found.append(
                f'data: "{edge_type_name(edge_type)}" is made twice, by data.{places[edge_type]} and by data.{place}; '
                "give one of them another name"
            )
        places.setdefault(edge_type, place)
    for edge_type, place in named:
        backward = _backward(edge_type)
        if backward in places and _reverse_of(data, edge_type, place) == "only":
            found.append(
                f'data.{place}: with reverse: only, "{edge_type_name(edge_type)}" becomes '
                f'"{edge_type_name(backward)}", which data.{places[backward]} makes already'
            )
    return found


def _relation(
    data: TablesData, nodes: dict[str, Table], tables: dict[str, Table], edge_type: EdgeType, place: str
) -> Relation:
    table, (source, name, destination) = tables[place], edge_type
    if isinstance(table.settings, EdgeTable):
        ends = [End(table.settings.src, "src", nodes[source]), End(table.settings.dst, "dst", nodes[destination])]
    else:
        ends = [End(table.settings.references[name].columns, f"foreign_keys.{name}", nodes[destination])]
    reverse = _reverse_of(data, edge_type, place)
    if _backward(edge_type) in [other for other, _ in _edge_types(data)]:
        reverse = False  # the user's own
    return Relation(table.database, edge_type, table, ends, reverse)


# labels and masks, in the order of the ids
def _masks(table: Table, data: TablesData, labels: Labels, info: dict[str, Any]) -> tuple[np.ndarray, ...]:
    split = data.split
    if isinstance(split, (SplitByRatio, SplitByFolds, SplitByFiles, SplitByFunction)):
        return split_rows(labels.y, labels.known, split, {"num_nodes": len(labels.known)})
    if isinstance(split, SplitByColumn):
        text = f"coalesce(CAST({quoted(split.column)} AS VARCHAR), '')"
        values = [block.to_numpy(zero_copy_only=False).astype(str) for _, (block,) in table.blocks([text])]
        names = np.concatenate(values) if values else np.empty(0, dtype=str)
        if others := other_names(names, split):
            info["in_no_split"] = others
        return by_names(names, split)
    assert isinstance(split, SplitByTime)
    return by_time(table.whole(table.seconds(split.column)), split)


def _fit_rows(table: Table, data: TablesData, scratch: Scratch) -> np.ndarray | None:
    """The rows that standardise features, bool [num_rows]; None: all."""
    time = table.settings.time
    if time is None or not isinstance(data.split, SplitByTime) or not _same_clock(table, time, data.split):
        return None
    before = moment(data.split.val, "data.split.val")
    if not table.how_many(f"{table.seconds(time)} < {before!r}"):
        return None
    blocks = (values < before for _, (values,) in table.floats([table.seconds(time)]))
    return scratch.filled((table.count(),), np.bool_, blocks)


def _same_clock(table: Table, column: str, split: SplitByTime) -> bool:
    """Whether the table's times can be compared with the split's: all date-times, or all numbers."""
    return {_is_number(split.val), _is_number(split.test)} == {not table.is_moment(column)}


def _is_number(value: str | float) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


# what is put into the graph
def _describe(info: dict[str, Any], name: str, features: Features) -> None:
    if features.names:
        info["features"][name] = features.names
    if features.names or features.categories:
        info.setdefault("encoding", {})[name] = features.encoding
    if features.categories:
        info["categories"][name] = {column: len(values) + 1 for column, values in features.categories.items()}


def _set_time(store: Any, table: Table, scratch: Scratch, kept: np.ndarray | None = None, count: int = 0) -> None:
    """`time` of the rows that are `kept` (`count` of them; None: all): int64 where all are whole, else float64."""
    column = table.settings.time
    if column is None:
        return
    expression, dtype = table.time_as(column)

    def blocks() -> Any:
        for start, (block,) in table.blocks([expression]):
            values = block.to_numpy(zero_copy_only=False)
            yield values if kept is None else values[kept[start : start + len(values)]]

    rows = table.count() if kept is None else count
    store.time = torch.from_numpy(scratch.filled((rows,), dtype, blocks()))


def _add_relation(
    graph: HeteroData, info: dict[str, Any], relation: Relation, data: TablesData, scratch: Scratch
) -> None:
    table = relation.table
    ends, kept = relation.write(scratch)
    attributes = HeteroData()["edges"]
    if isinstance(table.settings, EdgeTable):
        features = Features(table, table.settings.features, _fit_rows(table, data, scratch))
        width = len(features.names) + len(features.categories)
        if width:
            blocks = (np.concatenate([x, codes], axis=1, dtype=np.float32) for x, codes in features.blocks(kept))
            attributes.edge_attr = torch.from_numpy(scratch.filled((relation.count, width), np.float32, blocks))
            info["features"][edge_type_name(relation.edge_type)] = [*features.names, *features.categories]
            info.setdefault("encoding", {})[edge_type_name(relation.edge_type)] = features.encoding
        _set_time(attributes, table, scratch, kept, relation.count)
    for why, rows in (("dangling", relation.dangling), ("without_key", relation.without_key)):
        if rows:
            info.setdefault(why, {})[edge_type_name(relation.edge_type)] = rows
    backward = _backward(relation.edge_type)
    directions = {True: (relation.edge_type, backward), False: (relation.edge_type,), "only": (backward,)}
    for row, edge_type in enumerate(directions[relation.reverse]):
        graph[edge_type].edge_index = torch.from_numpy(ends[row : row + 2])
        for attribute, value in attributes.items():
            graph[edge_type][attribute] = value
