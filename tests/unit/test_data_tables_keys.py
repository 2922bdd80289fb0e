"""Keys of every kind, files by pattern, and rows that are left out: every number here is worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config import ExperimentError, NodeRegression
from disttrain.data import fingerprint, left_out_lines, load

from .small_tables import KNOWS, PEOPLE, TASK, edges_of, parquet, refusal, tables, write


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
    assert loaded.data["person"].y.tolist() == [[1, 0], [0, 1], [1, 1], [-1, 1]]
    assert loaded.data["person"].y.dtype == torch.int8
    assert loaded.info["classes"] == {"person": ["a", "flag"]}
    assert "without_label" not in loaded.info, "one of several is there"
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
    assert loaded.data["person"].y.tolist() == [[1, 0], [-1, -1], [0, -1], [0, 1]]
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
    assert loaded.data["person"].y.nan_to_num(99).tolist() == [[0.5, -1.25, 1], [99, 2.5, 2], [-3.5, 99, 3], [7, 1, 4]]
    assert loaded.data["person"].y.dtype == torch.float64
    nodes["person"]["columns"] = {"name": "'x' || id"}
    nodes["person"]["label"] = "name"
    with pytest.raises(ExperimentError, match='node_regression learns numbers; "name" holds VARCHAR'):
        load(tables(tmp_path, nodes), task)
