"""Keys of every kind, files by pattern, and rows that are left out: every number here is worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
import torch

from disttrain.config import ExperimentError, NodeClassification, NodeRegression, TablesData
from disttrain.data import LoadedGraph, fingerprint, left_out_lines, load

TASK = NodeClassification(kind="node_classification")
HALF = {"by": "ratio", "train": 0.5, "val": 0.25, "test": 0.25}


def tables(root: Path, nodes: dict[str, Any], edges: dict[str, Any] | None = None, **more: Any) -> TablesData:
    values = {"source": "tables", "root": str(root), "nodes": nodes, "edges": edges or {}, "split": HALF, **more}
    return TablesData.model_validate(values)


def refusal(data: TablesData) -> str:
    with pytest.raises(ExperimentError) as refused:
        load(data, TASK)
    return str(refused.value)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        (root / f"{name}.csv").write_text(text, encoding="utf-8")


def parquet(path: Path, query: str) -> None:
    path.parent.mkdir(exist_ok=True)
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet)")


PEOPLE = {"person": {"file": "people.csv", "key": "id", "label": "kind"}}
KNOWS = {"person,knows,person": {"file": "knows.csv", "src": "a", "dst": "b"}}


def edges_of(loaded: LoadedGraph, *edge_type: Any) -> list[tuple[int, int]]:
    return [(source, destination) for source, destination in loaded.data[edge_type].edge_index.t().tolist()]


def test_keys_with_leading_zeros_stay_text(tmp_path: Path):
    write(tmp_path, people="id,kind\n007,a\n07,b\n7,a\n", knows="a,b\n007,7\n07,007\n7,7\n")
    loaded = load(tables(tmp_path, PEOPLE, KNOWS), TASK)
    assert loaded.keys["person"].to_pylist() == ["007", "07", "7"]
    assert edges_of(loaded, "person", "knows", "person") == [(0, 2), (1, 0), (2, 2)]


def test_one_file_with_leading_zeros_decides_for_all(tmp_path: Path):
    # all that knows.csv names looks like numbers, and is compared as the text that it is
    write(tmp_path, people="id,kind\n010,a\n20,b\n30,a\n", knows="a,b\n20,30\n30,20\n")
    loaded = load(tables(tmp_path, PEOPLE, KNOWS), TASK)
    assert edges_of(loaded, "person", "knows", "person") == [(1, 2), (2, 1)]


def test_numbers_that_no_float_tells_apart(tmp_path: Path):
    one, other = "12345678901234567890123456789012345678901", "12345678901234567890123456789012345678902"
    write(tmp_path, people=f"id,kind\n{one},a\n{other},b\n", knows=f"a,b\n{other},{one}\n")
    loaded = load(tables(tmp_path, PEOPLE, KNOWS), TASK)
    assert loaded.keys["person"].to_pylist() == [one, other]
    assert edges_of(loaded, "person", "knows", "person") == [(1, 0)]
    parquet(
        tmp_path / "p.parquet",
        "SELECT * FROM (VALUES (9007199254740993::BIGINT, 'a'), (9007199254740992, 'b')) t(id, kind)",
    )
    parquet(tmp_path / "k.parquet", "SELECT 9007199254740992::DOUBLE AS a, 9007199254740993::BIGINT AS b")
    people = {"person": {**PEOPLE["person"], "file": "p.parquet"}}
    knows = {"person,knows,person": {"file": "k.parquet", "src": "a", "dst": "b"}}
    assert edges_of(load(tables(tmp_path, people, knows), TASK), "person", "knows", "person") == [(1, 0)]


def test_keys_with_odd_characters(tmp_path: Path):
    names = ["O'Neill", 'say "hi"', "a, b", "zwei\nZeilen", "Łódź 🚲", " padded ", "NULL", "a;b|c\td", "%_\\"]
    people = "".join('"{}",{}\n'.format(name.replace('"', '""'), "ab"[row % 2]) for row, name in enumerate(names))
    knows = "".join('"{}","{}"\n'.format(name.replace('"', '""'), names[0]) for name in reversed(names))
    write(tmp_path, people="id,kind\n" + people, knows="a,b\n" + knows)
    loaded = load(tables(tmp_path, PEOPLE, KNOWS), TASK)
    assert loaded.keys["person"].to_pylist() == names
    assert edges_of(loaded, "person", "knows", "person") == [(row, 0) for row in reversed(range(len(names)))]


def test_columns_and_types_with_odd_names(tmp_path: Path):
    write(tmp_path, people='"the ""id"", k.x",kind\n1,a\n2,b\n', knows="k.a,__id__\n1,2\n")
    nodes = {"Person / Ü": {"file": "people.csv", "key": 'the "id", k.x', "label": "kind"}}
    edges = {"Person / Ü,>knows,Person / Ü": {"file": "knows.csv", "src": "k.a", "dst": "__id__"}}
    loaded = load(tables(tmp_path, nodes, edges), TASK)
    assert edges_of(loaded, "Person / Ü", ">knows", "Person / Ü") == [(0, 1)]


def test_composite_keys(tmp_path: Path):
    write(
        tmp_path,
        seats="room,number,kind\nA,1,x\nA,2,y\nB,1,x\n",
        tickets="room,number,who\nB,1,ann\nA,,bob\nA,2,cyd\n",
        next="room,a,b\nA,1,2\nA,2,1\n",
    )
    nodes = {
        "seat": {"file": "seats.csv", "key": ["room", "number"], "label": "kind"},
        "ticket": {
            "file": "tickets.csv",
            "key": "who",
            "foreign_keys": {"at": {"columns": ["room", "number"], "type": "seat", "reverse": False}},
        },
    }
    edges = {"seat,beside,seat": {"file": "next.csv", "src": ["room", "a"], "dst": ["room", "b"], "reverse": "only"}}
    loaded = load(tables(tmp_path, nodes, edges), TASK)
    assert loaded.data.edge_types == [("ticket", "at", "seat"), ("seat", "rev_beside", "seat")]
    assert edges_of(loaded, "ticket", "at", "seat") == [(0, 2), (2, 1)]
    assert edges_of(loaded, "seat", "rev_beside", "seat") == [(1, 0), (0, 1)]
    assert loaded.keys["seat"].to_pylist()[1] == {"room": "A", "number": 2}
    assert loaded.info["without_key"] == {"ticket,at,seat": 1}
    write(tmp_path, tickets="room,number,who\nB,9,ann\nA,1,bob\nB,9,cyd\n")
    assert "2 rows with 1 key in room, number that no row of nodes.seat has: B, 9 (2 rows)" in refusal(
        tables(tmp_path, nodes, edges)
    )
    nodes["ticket"]["foreign_keys"] = {"number": "seat"}
    said = refusal(tables(tmp_path, nodes, edges))
    assert (
        "data.nodes.ticket.foreign_keys.number: number should hold the key of nodes.seat, which has 2 columns" in said
    )


def test_numbers_and_text_are_not_compared(tmp_path: Path):
    write(tmp_path, knows="a,b\n1,x\n")
    parquet(tmp_path / "people.parquet", "SELECT * FROM (VALUES (1, 'a'), (2, 'b')) t(id, kind)")
    people = {"person": {**PEOPLE["person"], "file": "people.parquet"}}
    said = refusal(tables(tmp_path, people, KNOWS))
    assert 'data.edges["person,knows,person"]: "b" holds VARCHAR, but the key of nodes.person, "id", is INTEGER' in said
    assert "b_as_key: CAST(b AS INTEGER)" in said
    assert '"a"' not in said
    nodes = {"person": {"file": "people.parquet", "label": "kind"}}
    assert "the key of nodes.person, the row's number, is BIGINT" in refusal(tables(tmp_path, nodes, KNOWS))
    write(tmp_path, knows="a,b\n1,2\n")
    assert edges_of(load(tables(tmp_path, people, KNOWS), TASK), "person", "knows", "person") == [(0, 1)]


def test_duplicates_are_refused_or_the_first_is_kept(tmp_path: Path):
    write(tmp_path, people="id,kind\nb,x\na,x\nb,y\nc,y\nb,y\n", knows="a,b\nb,c\n")
    said = refusal(tables(tmp_path, PEOPLE, KNOWS))
    assert "data.nodes.person.key: 1 values of id are not unique: b (3 times) (data.duplicates: drop keeps" in said
    loaded = load(tables(tmp_path, PEOPLE, KNOWS, duplicates="drop"), TASK)
    assert loaded.keys["person"].to_pylist() == ["b", "a", "c"]
    assert loaded.data["person"].y.tolist() == [0, 0, 1]
    assert edges_of(loaded, "person", "knows", "person") == [(0, 2)]
    assert loaded.info["rows_left_out"] == {"nodes.person": {"duplicates": 2}}
    assert left_out_lines(loaded.info) == ["data.nodes.person: 2 rows left out for the key of an earlier row"]


def test_rows_without_label_or_time(tmp_path: Path):
    write(
        tmp_path,
        people="id,kind,born\n1,x,2000-01-01\n2,,2000-01-02\n3,y,\n4,x,1999-12-31\n5,y,2000-01-01\n",
        knows="a,b,at\n1,4,3\n4,5,\n5,1,nan\n2,1,2\n",
    )
    people = {"person": {**PEOPLE["person"], "time": "born"}}
    knows = {"person,knows,person": {**KNOWS["person,knows,person"], "time": "at"}}
    said = refusal(tables(tmp_path, people, knows, missing_labels="refuse"))
    assert "data.nodes.person.label: 1 row without kind (data.missing_labels: keep" in said
    assert 'data.nodes.person.time: 1 row without "born" (data.missing_times: drop' in said
    assert 'data.edges["person,knows,person"].time: 2 rows without "at"' in said
    kept = load(tables(tmp_path, people, knows, missing_times="drop"), TASK)
    assert kept.keys["person"].to_pylist() == [1, 2, 4, 5]
    assert kept.info["without_label"] == {"person": 1}
    drop = tables(tmp_path, people, knows, missing_times="drop", missing_labels="drop", dangling="drop")
    loaded = load(drop, TASK)
    assert loaded.keys["person"].to_pylist() == [1, 4, 5]
    assert loaded.data["person"].time.tolist() == [946684800, 946598400, 946684800]
    assert edges_of(loaded, "person", "knows", "person") == [(0, 1)]
    assert loaded.data["person", "knows", "person"].time.tolist() == [3]
    assert loaded.info["rows_left_out"] == {
        "nodes.person": {"missing_labels": 1, "missing_times": 1},
        'edges["person,knows,person"]': {"missing_times": 2},
    }
    assert loaded.info["dangling"] == {"person,knows,person": 1}
    assert len(left_out_lines(loaded.info)) == 4


def test_files_by_pattern(tmp_path: Path):
    for part, rows in (("b", "(3, 'y', 0.5), (4, 'x', 4.0)"), ("a", "(1, 'x', 1.0), (2, 'y', 2.0)")):
        parquet(tmp_path / "people" / f"{part}.parquet", f"SELECT * FROM (VALUES {rows}) t(id, kind, size)")
    (tmp_path / "knows").mkdir()
    write(tmp_path / "knows", one="a,b\n1,4\n", two="b,a\n1,3\n")
    people = {"person": {**PEOPLE["person"], "file": "people/*.parquet", "features": {"numeric": "size"}}}
    knows = {"person,knows,person": {"file": "knows/*.csv", "src": "a", "dst": "b"}}
    data = tables(tmp_path, people, knows)
    loaded = load(data, TASK)
    assert loaded.keys["person"].to_pylist() == [1, 2, 3, 4]  # in the order of the files' names
    assert loaded.data["person"].y.tolist() == [0, 1, 1, 0]
    assert edges_of(loaded, "person", "knows", "person") == [(0, 3), (2, 0)]  # columns are found by name
    first = fingerprint(data, TASK)
    write(tmp_path / "knows", three="a,b\n2,2\n")
    assert fingerprint(data, TASK) != first
    write(tmp_path / "knows", two="b,c\n1,3\n")
    assert "two.csv has other columns than one.csv: it also has c; it lacks a" in refusal(data)
    write(tmp_path / "knows", two="b,a\n1,3\n")
    parquet(tmp_path / "people" / "c.parquet", "SELECT 'x' AS id, 'y' AS kind, 1.0 AS size")
    said = refusal(data)
    assert 'data.nodes.person.file: c.parquet has other columns than a.parquet: "id" is VARCHAR, not INTEGER' in said
    people["person"]["file"] = "peple/*.parquet"
    assert "data.nodes.person.file: no file in" in refusal(tables(tmp_path, people, knows))
    people["person"]["file"] = "*/*"
    assert "must fit either CSV or Parquet files" in refusal(tables(tmp_path, people, knows))


def test_folders_named_like_hive_partitions_add_no_column(tmp_path: Path):
    (tmp_path / "kind=z").mkdir()
    parquet(tmp_path / "kind=z" / "a.parquet", "SELECT * FROM (VALUES (1, 'x'), (2, 'y')) t(id, kind)")
    loaded = load(tables(tmp_path, {"person": {**PEOPLE["person"], "file": "*/*.parquet"}}), TASK)
    assert loaded.info["classes"] == {"person": ["x", "y"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,kind\n1,a\n2,b,c\n", "people.csv, line 3 (2,b,c): 3 values, but there are 2 columns (between ',')"),
        ("id,kind\n1,a\n2\n3,b\n", "people.csv, line 3 (2): 1 values, but there are 2 columns"),
        ("", "people.csv is empty"),
        ("id,kind,id\n1,a,2\n", "people.csv has several columns id; give all columns names of their own by csv.names"),
        ("id,\n1,a\n", "people.csv has a column without a name"),
        ("id;kid\n1;a\n", 'data.nodes.person.label: there is no column "kind"; did you mean "kid"?'),
    ],
)
def test_csv_files_that_are_none(tmp_path: Path, text: str, said: str):
    write(tmp_path, people=text)
    assert said in refusal(tables(tmp_path, PEOPLE))


def test_other_ways_to_write_a_csv(tmp_path: Path):
    (tmp_path / "people.dat").write_bytes('01::Zoë::a\n02::"x::b\n'.encode("latin-1"))
    form = {"delimiter": "::", "quote": "", "names": ["id", "name", "kind"], "encoding": "latin-1"}
    people = {"person": {"file": "people.dat", "csv": form, "key": "name", "label": "kind"}}
    assert load(tables(tmp_path, people), TASK).keys["person"].to_pylist() == ["Zoë", '"x']
    for change, said in (
        ({"encoding": "utf-8"}, "people.dat is not in utf-8; name its encoding, csv: {encoding: latin-1}"),
        ({"encoding": "klingon"}, "csv.encoding: 'klingon' is not one of utf-8, utf-16, latin-1"),
        (
            {"names": ["id", "name"]},
            "people.dat, line 1 (01::Zoë::a): 3 values (between '::'), but csv.names has 2 names",
        ),
        ({"text": ["nme"]}, 'csv.text: there is no column "nme"; did you mean "name"?'),
    ):
        people["person"]["csv"] = {**form, **change}
        assert said in refusal(tables(tmp_path, people)), change
    people["person"]["csv"] = {**form, "text": ["id"]}
    people["person"]["features"] = {"categorical": "id"}
    people["person"]["columns"] = {"both": "id || name"}
    people["person"]["key"] = "both"
    assert load(tables(tmp_path, people), TASK).keys["person"].to_pylist() == ["01Zoë", '02"x']


def test_several_labels(tmp_path: Path):
    write(tmp_path, people="id,a,b,genres\n1,1,0,x|y\n2,0,true,\n3,1,1,y|y|z\n4,,1,x\n")
    columns = {"names": "string_split(genres, '|')", "list": "[a, CAST(b AS INTEGER)]", "flag": "CAST(b AS BOOLEAN)"}
    nodes = {"person": {"file": "people.csv", "key": "id", "columns": columns, "label": ["a", "flag"]}}
    loaded = load(tables(tmp_path, nodes), TASK)
    assert loaded.data["person"].y.tolist() == [[1, 0], [0, 1], [1, 1], [-1, -1]]
    assert loaded.data["person"].y.dtype == torch.int8
    assert loaded.info["classes"] == {"person": ["a", "flag"]}
    assert loaded.info["without_label"] == {"person": 1}
    nodes["person"]["label"] = "names"
    loaded = load(tables(tmp_path, nodes), TASK)
    assert loaded.data["person"].y.tolist() == [[1, 1, 0], [-1, -1, -1], [0, 1, 1], [1, 0, 0]]
    assert loaded.info["classes"] == {"person": ["x", "y", "z"]}
    nodes["person"]["label"] = ["a", "genres"]
    assert 'zeros and ones each; "genres" holds VARCHAR' in refusal(tables(tmp_path, nodes))
    nodes["person"]["columns"]["long"] = "list_resize([1, 0, 1], id)"
    nodes["person"]["label"] = "long"
    assert 'the lists of "long" must all have one length, not 0; they have 1, 2, 3, 4' in refusal(
        tables(tmp_path, nodes)
    )


def test_zeros_and_ones_in_lists(tmp_path: Path):
    parquet(
        tmp_path / "people.parquet",
        "SELECT * FROM (VALUES (1, [true, false]), (2, NULL), (3, [false, NULL]), (4, [false, true])) t(id, y)",
    )
    loaded = load(tables(tmp_path, {"person": {"file": "people.parquet", "label": "y"}}), TASK)
    assert loaded.data["person"].y.tolist() == [[1, 0], [-1, -1], [-1, -1], [0, 1]]
    assert loaded.info["classes"] == {"person": ["y[0]", "y[1]"]}


def test_names_with_commas_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r'relations are written "src,rel,dst"'):
        tables(tmp_path, {"a,b": {"file": "people.csv"}})
    with pytest.raises(ValueError, match="no commas"):
        tables(tmp_path, {"a": {"file": "people.csv", "foreign_keys": {"x,y": "a"}}})


def test_numbers_to_learn(tmp_path: Path):
    parquet(
        tmp_path / "p.parquet",
        "SELECT id, a::FLOAT AS a, b, c FROM (VALUES (1, 0.5, -1.25, 1), (2, 'nan'::FLOAT, 2.5, 2), "
        "(3, -3.5, NULL, 3), (4, 7, 1, 4)) t(id, a, b, c)",
    )
    nodes: dict[str, Any] = {"person": {"file": "p.parquet", "key": "id", "label": "a"}}
    task = NodeRegression(kind="node_regression")
    loaded = load(tables(tmp_path, nodes), task)
    assert loaded.data["person"].y.dtype == torch.float32
    assert loaded.data["person"].y.nan_to_num(99).tolist() == [0.5, 99, -3.5, 7]
    assert loaded.info["without_label"] == {"person": 1}
    nodes["person"]["label"] = ["a", "b", "c"]
    loaded = load(tables(tmp_path, nodes, missing_labels="drop"), task)
    assert loaded.data["person"].y.tolist() == [[0.5, -1.25, 1], [7, 1, 4]]
    assert loaded.data["person"].y.dtype == torch.float64
    nodes["person"]["columns"] = {"name": "'x' || id"}
    nodes["person"]["label"] = "name"
    with pytest.raises(ExperimentError, match='node_regression learns numbers; "name" holds VARCHAR'):
        load(tables(tmp_path, nodes), task)


def test_columns_may_be_called_like_what_sql_is_made_of(tmp_path: Path):
    # rowid is DuckDB's own number of a row; the others are names that queries here give to what they compute
    write(
        tmp_path,
        people="RowId,v,key,times,named,row,end0,name\n2,1,,,,,,a\n0,2,5,5,5,5,5,b\n1,3,6,6,6,6,6,a\n",
        knows="rowid,key,end0\n2,0,9\n0,1,9\n1,1,9\n",
    )
    people = {"person": {"file": "people.csv", "key": "RowId", "label": "name", "features": {"numeric": ["v", "key"]}}}
    knows = {"person,knows,person": {"file": "knows.csv", "src": "rowid", "dst": "key"}}
    loaded = load(tables(tmp_path, people, knows), TASK)
    assert loaded.keys["person"].to_pylist() == [2, 0, 1]
    assert edges_of(loaded, "person", "knows", "person") == [(0, 1), (1, 2), (2, 2)]
    assert loaded.data["person"].y.tolist() == [0, 1, 0]

    # in what the user writes, and as one of several columns of a key, it has its own name
    people["person"] |= {"key": ["RowId", "v"], "columns": {"twice": "2 * rowid"}, "where": "RowId < 2"}
    knows["person,knows,person"] |= {
        "src": ["rowid", "two"],
        "dst": ["key", "three"],
        "columns": {"two": "2", "three": "3"},
    }
    loaded = load(tables(tmp_path, people, knows, dangling="drop"), TASK)
    assert loaded.keys["person"].to_pylist() == [{"RowId": 0, "v": 2}, {"RowId": 1, "v": 3}]
    assert edges_of(loaded, "person", "knows", "person") == [(0, 1)]

    # labels are those of the label's column, whatever another one lacks
    write(tmp_path, people="id,v,name,key\n0,,a,1\n1,1,b,2\n2,,c,3\n", knows="a,b\n0,7\n0,1\n")
    people = {"person": {"file": "people.csv", "key": "id", "label": "name", "features": {"numeric": ["v"]}}}
    loaded = load(tables(tmp_path, people, KNOWS, dangling="drop"), TASK)
    assert loaded.data["person"].y.tolist() == [0, 1, 2]
    assert "1 row with 1 key in b that no row" in refusal(tables(tmp_path, people, KNOWS))

    write(tmp_path, people="__ROW__,kind\n0,a\n1,b\n")
    people = {"person": {"file": "people.csv", "key": "__ROW__", "label": "kind"}}
    assert 'no column may be called "__ROW__"' in refusal(tables(tmp_path, people, KNOWS))


def test_a_relation_comes_from_one_place(tmp_path: Path):
    write(tmp_path, people="id,kind,boss\n0,a,1\n1,b,0\n", knows="a,b\n0,1\n")
    people = {"person": {**PEOPLE["person"], "foreign_keys": {"knows": {"columns": "boss", "type": "person"}}}}
    said = refusal(tables(tmp_path, people, KNOWS))
    assert '"person,knows,person" is made twice, by data.nodes.person and by data.edges["person,knows,person"]' in said
    own = {**KNOWS, "person,rev_knows,person": KNOWS["person,knows,person"]}
    loaded = load(tables(tmp_path, PEOPLE, own), TASK)
    assert (
        edges_of(loaded, "person", "rev_knows", "person") == edges_of(loaded, "person", "knows", "person") == [(0, 1)]
    )
    said = refusal(tables(tmp_path, PEOPLE, own, reverse="only"))
    assert 'with reverse: only, "person,knows,person" becomes "person,rev_knows,person", which data.edges' in said


def test_names_that_differ_in_case_only_are_one(tmp_path: Path):
    write(tmp_path, people="id,kind,age\n0,a,1\n1,b,2\n", knows="a,b\n0,1\n")
    people = {"person": {**PEOPLE["person"], "columns": {"AGE": "age % 20"}}}
    assert "columns.AGE: there is a column of this name already" in refusal(tables(tmp_path, people, KNOWS))
    write(tmp_path, people="id,kind,Id\n0,a,1\n1,b,2\n")
    assert "people.csv has several columns Id, id" in refusal(tables(tmp_path, PEOPLE, KNOWS))


@pytest.mark.parametrize("use", [{"time": "at"}, {"features": {"numeric": ["at"]}}, {"features": {"datetime": ["at"]}}])
def test_a_time_of_day_is_no_date_and_no_number(tmp_path: Path, use: dict[str, Any]):
    write(tmp_path, people="id,kind,at\n0,a,10:30:00\n1,b,11:00:00\n", knows="a,b\n0,1\n")
    people = {"person": {**PEOPLE["person"], **use}}
    assert '"at" (TIME) must hold' in refusal(tables(tmp_path, people, KNOWS))


def times_of(tmp_path: Path, *values: str, kind: str) -> torch.Tensor:
    rows = ", ".join(f"({row}, '{'ab'[row % 2]}', {value}::{kind})" for row, value in enumerate(values))
    parquet(tmp_path / "people.parquet", f'SELECT * FROM (VALUES {rows}) t(id, kind, "at")')
    people = {"person": {**PEOPLE["person"], "file": "people.parquet", "time": "at"}}
    return load(tables(tmp_path, people), TASK).data["person"].time


def test_times_keep_what_tells_them_apart(tmp_path: Path):
    new_year = 1577836800
    fractions = times_of(tmp_path, "'2020-01-01 00:00:00.9'", "'2020-01-01 00:00:00.123456'", kind="TIMESTAMP")
    assert fractions.dtype == torch.float64
    assert fractions.tolist() == [new_year + 0.9, new_year + 0.123456]
    whole = times_of(tmp_path, "'2020-01-01'", "'1969-12-31 23:59:59'", kind="TIMESTAMP")
    assert whole.dtype == torch.int64
    assert whole.tolist() == [new_year, -1]
    large = times_of(tmp_path, "9007199254740993", "1700000000000000001", kind="BIGINT")
    assert large.tolist() == [2**53 + 1, 1700000000000000001]
    floating = times_of(tmp_path, "1e30", "2", kind="DOUBLE")
    assert (floating.dtype, floating.tolist()) == (torch.float64, [1e30, 2.0])
    assert times_of(tmp_path, "3", "2", kind="DOUBLE").dtype == torch.int64


def test_whole_times_beyond_64_bits_are_refused(tmp_path: Path):
    with pytest.raises(ExperimentError, match="1 value beyond, 9223372036854775808 for instance"):
        times_of(tmp_path, "9223372036854775808", "5", kind="UBIGINT")


def dates_of(tmp_path: Path, *dates: str, use: str = "time") -> LoadedGraph:
    write(
        tmp_path, people="id,kind,at\n" + "".join(f"{row},{'ab'[row % 2]},{date}\n" for row, date in enumerate(dates))
    )
    used = {"time": "at"} if use == "time" else {"features": {"datetime": ["at"]}}
    return load(tables(tmp_path, {"person": {**PEOPLE["person"], **used}}), TASK)


@pytest.mark.parametrize("use", ["time", "feature"])
@pytest.mark.parametrize("dates", [("01/02/2020", "03/04/2020"), ("05/05/2020", "03/04/2020")])
def test_dates_that_can_be_read_in_two_ways_are_refused(tmp_path: Path, use: str, dates: tuple[str, ...]):
    with pytest.raises(ExperimentError, match=r'"at" holds dates that can be read in two ways, \'0') as refused:
        dates_of(tmp_path, *dates, use=use)
    assert "csv: {text: [at]}" in str(refused.value) and "strptime" in str(refused.value)


def test_dates_that_are_one_day_only_are_taken(tmp_path: Path):
    day = 86400
    for dates in (("2020-01-02", "2020-03-04"), ("02/01/2020", "31/01/2020"), ("01/02/2020", "01/31/2020")):
        first, second = dates_of(tmp_path, *dates).data["person"].time.tolist()
        assert first == 1577836800 + day
        assert second - first == (62 * day if "-" in dates[0] else 29 * day)
    # as the message says
    write(tmp_path, people="id,kind,at\n0,a,01/02/2020\n1,b,03/04/2020\n")
    said = {"csv": {"text": ["at"]}, "columns": {"day": "strptime(\"at\", '%d/%m/%Y')"}, "time": "day"}
    loaded = load(tables(tmp_path, {"person": {**PEOPLE["person"], **said}}), TASK)
    assert loaded.data["person"].time.tolist() == [1577836800 + 31 * day, 1577836800 + 93 * day]


def test_numbers_are_true_or_false_as_one_or_zero_only(tmp_path: Path):
    write(tmp_path, people="id,kind,yes\n0,a,1\n1,b,0\n2,b,\n", knows="a,b\n0,1\n")
    people = {"person": {**PEOPLE["person"], "features": {"boolean": ["yes"]}}}
    assert load(tables(tmp_path, people, KNOWS), TASK).data["person"].x[:2, 0].tolist() == [1, 0]
    write(tmp_path, people="id,kind,yes\n0,a,1\n1,b,2\n")
    assert '"yes" (BIGINT) must hold true or false, or 1 or 0: it holds 2' in refusal(tables(tmp_path, people, KNOWS))
