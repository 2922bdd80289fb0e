"""What stands in columns: names that SQL takes for its own, times, dates, labels, truth; all worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from disttrain.config import ExperimentError
from disttrain.data import LoadedGraph, load

from .small_tables import KNOWS, PEOPLE, TASK, edges_of, parquet, refusal, tables, write


def test_columns_may_be_called_like_what_sql_is_made_of(tmp_path: Path):
    # rowid is DuckDB's own number of a row; the others are names that queries here give to what they compute
    write(
        tmp_path,
        people="RowId,v,key,times,named,row,end0,name\n2,1,,,,,,a\n0,2,5,5,5,5,5,b\n1,3,6,6,6,6,6,a\n",
        knows="rowid,key,end0\n2,0,9\n0,1,9\n1,1,9\n",
    )
    people: dict[str, Any] = {
        "person": {"file": "people.csv", "key": "RowId", "label": "name", "features": {"numeric": ["v", "key"]}}
    }
    knows: dict[str, Any] = {"person,knows,person": {"file": "knows.csv", "src": "rowid", "dst": "key"}}
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


def test_lines_that_end_in_two_ways_are_told(tmp_path: Path):
    lines = b"".join(b"%d,%d\r\n" % (row, row % 2) for row in range(2000))
    (tmp_path / "people.csv").write_bytes(b"id,kind\r\n" + lines)
    assert load(tables(tmp_path, PEOPLE), TASK).data["person"].num_nodes == 2000
    (tmp_path / "people.csv").write_bytes(b"id,kind\r\n" + lines + b"2000,1\n")
    assert "people.csv has lines that end in CR LF (Windows) and lines that end in LF alone" in refusal(
        tables(tmp_path, PEOPLE)
    )


def test_what_probably_stands_for_missing_is_told_how_to_be(tmp_path: Path):
    write(tmp_path, people="id,kind,age\n0,a,1\n1,b,NA\n")
    people = {"person": {**PEOPLE["person"], "features": {"numeric": ["age"]}}}
    said = refusal(tables(tmp_path, people))
    assert said.endswith("""1 value does not, 'NA' for instance; if that means missing, data.missing: ["", "NA"]""")
    assert load(tables(tmp_path, people, missing=["", "NA"]), TASK).data["person"].x.shape == (2, 2)
