"""Tables become graphs: every number here is worked out by hand."""

from __future__ import annotations

import datetime
import zipfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch

from disttrain.config import ExperimentError, NodeClassification, TablesData
from disttrain.data import fingerprint, load

TASK = NodeClassification(kind="node_classification")

USERS = """\
name,age,member,joined,country,group,part
ann,20,true,2020-01-01,FR,a,train
bob,,false,2020-02-01,DE,b,train
cyd,40,,2021-01-01,FR,a,train
dan,60,true,2021-06-01,US,,train
eve,90,false,2022-01-01,IT,b,val
fay,30,true,2022-02-01,,c,test
"""
ORDERS = """\
id,user,price,when
7,ann,1.5,2020-03-01T00:00:10
9,bob,2.5,2020-03-01T00:00:20
8,,4.5,2020-03-01T00:00:30
6,ann,8.5,2023-03-01T00:00:40
"""
FOLLOWS = """\
who,whom,weight,kind
ann,bob,1,x
bob,ann,3,y
eve,ann,2,x
fay,,5,x
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "users.csv").write_text(USERS)
    (tmp_path / "orders.csv").write_text(ORDERS)
    (tmp_path / "follows.csv").write_text(FOLLOWS)
    return tmp_path


def section(folder: Path, **changes: Any) -> TablesData:
    values: dict[str, Any] = {
        "source": "tables",
        "root": str(folder),
        "nodes": {
            "user": {
                "file": "users.csv",
                "key": "name",
                "features": {"numeric": ["age"], "boolean": ["member"], "categorical": ["country"]},
                "label": "group",
            },
            "order": {
                "file": "orders.csv",
                "key": "id",
                "features": {"numeric": ["price"]},
                "time": "when",
                "foreign_keys": {"user": "user"},
            },
        },
        "edges": {
            "user,follows,user": {
                "file": "follows.csv",
                "src": "who",
                "dst": "whom",
                "features": {"numeric": ["weight"], "categorical": ["kind"]},
            }
        },
        "split": {"by": "column", "column": "part"},
    }
    return TablesData.model_validate({**values, **changes})


def user_section(folder: Path, split: dict[str, Any] | None = None, **table: Any) -> TablesData:
    nodes = {"user": {"file": "users.csv", "key": "name", "label": "group", **table}}
    return section(folder, nodes=nodes, edges={}, split=split or {"by": "column", "column": "part"})


def test_labels_and_masks(folder: Path):
    loaded = load(section(folder), TASK)
    user = loaded.data["user"]
    assert user.y.tolist() == [0, 1, 0, -1, 1, 2]
    assert loaded.info["classes"] == {"user": ["a", "b", "c"]}
    assert user.train_mask.tolist() == [True, True, True, False, False, False]  # dan has no label
    assert user.val_mask.tolist() == [False, False, False, False, True, False]
    assert user.test_mask.tolist() == [False, False, False, False, False, True]


def test_features_are_fitted_on_training_rows(folder: Path):
    loaded = load(section(folder), TASK)
    # ages of the training rows with a label: 20, 40 (bob's is missing): mean 30, standard deviation 10
    assert loaded.info["features"]["user"] == ["age", "age is missing", "member", "member is missing"]
    assert loaded.data["user"].x.dtype == torch.float32
    assert loaded.data["user"].x.tolist() == [
        [-1, 0, 1, 0],
        [0, 1, 0, 0],
        [1, 0, 0, 1],
        [3, 0, 1, 0],
        [6, 0, 0, 0],
        [0, 0, 1, 0],
    ]
    # training rows know DE (1) and FR (2); US, IT and a missing one are 0
    assert loaded.data["user"].x_cat.tolist() == [[2], [1], [2], [0], [0], [0]]
    assert loaded.info["categories"] == {"user": {"country": 3}}


def test_other_tables_are_fitted_on_all_rows(folder: Path):
    price = np.array([1.5, 2.5, 4.5, 8.5])
    x = load(section(folder), TASK).data["order"].x[:, 0].numpy()
    assert x == pytest.approx((price - price.mean()) / price.std(), rel=1e-6)


@pytest.mark.parametrize(("column", "val", "test"), [("age", "2020-01-01", "2021-01-01"), ("joined", 2020, 2021)])
def test_dates_and_numbers_are_not_compared(folder: Path, column: str, val: Any, test: Any):
    with pytest.raises(ExperimentError, match=f'split: column "{column}" holds (dates|numbers)'):
        load(user_section(folder, split={"by": "time", "column": column, "val": val, "test": test}), TASK)


def test_with_a_split_by_time_they_are_fitted_on_rows_before_validation(folder: Path):
    split = {"by": "time", "column": "joined", "val": "2021-06-01", "test": "2022-02-01"}
    data = load(section(folder, split=split), TASK).data
    assert data["user"].train_mask.tolist() == [True, True, True, False, False, False]
    assert data["user"].val_mask.tolist() == [False, False, False, False, True, False]  # dan has no label
    assert data["user"].test_mask.tolist() == [False, False, False, False, False, True]
    known = np.array([1.5, 2.5, 4.5])  # the fourth order is of 2023
    expected = (np.array([1.5, 2.5, 4.5, 8.5]) - known.mean()) / known.std()
    assert data["order"].x[:, 0].numpy() == pytest.approx(expected, rel=1e-6)


def test_edges_keys_and_time(folder: Path):
    loaded = load(section(folder), TASK)
    data = loaded.data
    assert data.node_types == ["user", "order"]
    assert data["order", "user", "user"].edge_index.tolist() == [[0, 1, 3], [0, 1, 0]]  # the third names nobody
    assert data["user", "rev_user", "order"].edge_index.tolist() == [[0, 1, 0], [0, 1, 3]]
    follows = data["user", "follows", "user"]
    assert follows.edge_index.tolist() == [[0, 1, 4], [1, 0, 0]]
    weight = np.array([1.0, 3.0, 2.0, 5.0])
    weight = (weight - weight.mean()) / weight.std()
    assert follows.edge_attr[:, 0].numpy() == pytest.approx(weight[:3], rel=1e-6)
    assert follows.edge_attr[:, 1].tolist() == [1, 2, 1]
    backward = data["user", "rev_follows", "user"]
    assert backward.edge_index.tolist() == [[1, 0, 0], [0, 1, 4]]
    assert torch.equal(backward.edge_attr, follows.edge_attr)
    assert loaded.keys["user"].to_pylist() == ["ann", "bob", "cyd", "dan", "eve", "fay"]
    assert loaded.keys["order"].to_pylist() == [7, 9, 8, 6]
    start = datetime.datetime(2020, 3, 1, tzinfo=datetime.timezone.utc).timestamp()
    assert data["order"].time.tolist()[:3] == [start + 10, start + 20, start + 30]
    assert data["order"].time.dtype == torch.int64


def test_no_reverse(folder: Path):
    data = load(section(folder, reverse=False), TASK).data
    assert data.edge_types == [("order", "user", "user"), ("user", "follows", "user")]
    data = load(section(folder, reverse="only"), TASK).data
    assert data.edge_types == [("user", "rev_user", "order"), ("user", "rev_follows", "user")]
    assert data["user", "rev_follows", "user"].edge_index.tolist() == [[1, 0, 0], [0, 1, 4]]


def test_parquet_and_zip_give_the_same_graph(folder: Path):
    expected = load(section(folder), TASK)
    duckdb.sql(f"COPY (SELECT * FROM '{folder}/users.csv') TO '{folder}/users.parquet'")
    with zipfile.ZipFile(folder / "orders.csv.zip", "w") as archive:
        archive.writestr("inside/any.csv", ORDERS)
    nodes = section(folder).model_dump()["nodes"]
    nodes["user"]["file"], nodes["order"]["file"] = "users.parquet", "orders.csv.zip"
    loaded = load(section(folder, nodes=nodes), TASK)
    assert loaded.info == expected.info
    for one, other in zip(loaded.data.stores, expected.data.stores):
        assert list(one.keys()) == list(other.keys())
        assert all(torch.equal(one[name], value) for name, value in other.items() if isinstance(value, torch.Tensor))


def test_computed_columns_and_where(folder: Path):
    loaded = load(
        user_section(
            folder,
            where="age IS NULL OR old < 80",
            columns={"old": "age + 1", "double": "old * 2", "peers": "count(*) OVER (PARTITION BY country)"},
            features={"numeric": ["double", "peers"]},
        ),
        TASK,
    )
    # the order of the file stays, whatever order the window function needs
    assert loaded.keys["user"].to_pylist() == ["ann", "bob", "cyd", "dan", "fay"]
    # training rows: 42 and 82 (and bob's, missing)
    assert loaded.data["user"].x[:, 0].tolist() == [-1, 0, 1, 3, pytest.approx(0, abs=1e-6)]
    # counted before `where`: FR 2, DE 1, FR 2 are the training rows
    peers = np.array([2, 1, 2, 1, 1])
    expected = (peers - 5 / 3) / np.std([2, 1, 2])
    assert loaded.data["user"].x[:, 2].numpy() == pytest.approx(expected, rel=1e-6)


def test_without_a_key_rows_count_before_where(folder: Path):
    (folder / "items.csv").write_text("owner\n0\n2\n5\n")
    nodes = {
        "user": {"file": "users.csv", "label": "group", "where": "name <> 'bob'"},
        "item": {"file": "items.csv", "foreign_keys": {"owner": "user"}},
    }
    loaded = load(section(folder, nodes=nodes, edges={}), TASK)
    assert loaded.data["item", "owner", "user"].edge_index.tolist() == [[0, 1, 2], [0, 1, 4]]
    assert loaded.keys == {}


def test_keys_may_be_dates_and_foreign_keys_text(folder: Path):
    (folder / "days.csv").write_text("day,kind\n2020-01-01,w\n2020-02-01,w\n")
    (folder / "visits.csv").write_text("day,who,late\n2020-02-01,1,true\nNA,2,false\n2020-01-01,x,true\n")
    nodes = {
        "day": {"file": "days.csv", "key": "day"},
        "visit": {"file": "visits.csv", "label": "late", "foreign_keys": {"day": "day"}},
    }
    split = {"by": "ratio", "train": 1.0, "val": 0.0, "test": 0.0}
    loaded = load(section(folder, nodes=nodes, edges={}, split=split, missing=["", "NA"]), TASK)
    assert loaded.data["visit", "day", "day"].edge_index.tolist() == [[0, 2], [1, 0]]
    assert loaded.keys["day"].to_pylist() == [datetime.date(2020, 1, 1), datetime.date(2020, 2, 1)]
    assert loaded.info["classes"] == {"visit": ["false", "true"]}
    assert loaded.data["visit"].y.tolist() == [1, 0, 1]


def test_parts_of_date_times(folder: Path):
    loaded = load(user_section(folder, features={"datetime": ["joined"]}), TASK)
    # training rows: 2020-01-01, 2020-02-01, 2021-01-01; the day and the hour are constant there
    names = loaded.info["features"]["user"]
    parts = ("year", "month", "sin month", "cos month", "weekday", "sin weekday", "cos weekday")
    assert names == [f"joined {part}" for part in parts]
    x = dict(zip(names, loaded.data["user"].x.double().numpy().T))
    years = np.array([2020, 2020, 2021, 2021, 2022, 2022])
    assert x["joined year"] == pytest.approx((years - 2020 - 1 / 3) / np.std([0, 0, 1]), rel=1e-6)
    months = np.array([1, 2, 1, 6, 1, 2])
    assert x["joined sin month"] == pytest.approx(np.sin(2 * np.pi * months / 12), abs=1e-7)
    weekdays = np.array([datetime.date(y, m, 1).isoweekday() for y, m in zip(years, months)])
    assert x["joined cos weekday"] == pytest.approx(np.cos(2 * np.pi * weekdays / 7), abs=1e-7)


def test_constant_and_empty_columns_become_zero(folder: Path):
    columns = {"same": "0.1 + 0.2", "later": "CASE WHEN part = 'train' THEN 5 ELSE 500 END", "none": "NULL::DOUBLE"}
    loaded = load(user_section(folder, columns=columns, features={"numeric": list(columns)}), TASK)
    assert loaded.info["features"]["user"] == ["same", "later", "none", "none is missing"]
    assert loaded.data["user"].x.tolist() == [[0, 0, 0, 1]] * 6


def test_infinite_numbers_are_missing(folder: Path):
    columns = {"ratio": "CASE WHEN name = 'ann' THEN 'inf'::DOUBLE WHEN name = 'bob' THEN 'nan'::DOUBLE ELSE age END"}
    loaded = load(user_section(folder, columns=columns, features={"numeric": ["ratio"]}), TASK)
    assert loaded.data["user"].x[:3].tolist() == [[0, 1], [0, 1], [0, 0]]


def test_ratio_split_has_exact_shares(folder: Path):
    split = {"by": "ratio", "train": 0.6, "val": 0.2, "test": 0.2}
    user = load(user_section(folder, split=split), TASK).data["user"]
    counts = [int(user[mask].sum()) for mask in ("train_mask", "val_mask", "test_mask")]
    assert counts == [3, 1, 1]  # of five that have a label
    assert not user.train_mask[3]


def test_all_wrong_names_in_one_message(folder: Path):
    nodes = section(folder).model_dump()["nodes"]
    nodes["user"]["features"]["numeric"] = ["agee", "ag"]
    nodes["user"]["columns"] = {"bad": "agge + 1", "worse": "1 +", "age": "3"}
    nodes["user"]["where"] = "nme = 'ann'"
    nodes["user"]["time"] = "join"
    nodes["order"]["foreign_keys"] = {"usr": "user", "user": "usr"}
    edges = section(folder).model_dump()["edges"]
    edges["user,follows,user"]["src"] = "hwo"
    split = {"by": "column", "column": "prt"}
    with pytest.raises(ExperimentError) as refused:
        load(section(folder, nodes=nodes, edges=edges, split=split), TASK)
    message = str(refused.value)
    for said in (
        'data.nodes.user.features.numeric: there is no column "agee"; did you mean "age"?',
        'data.nodes.user.features.numeric: there is no column "ag"; did you mean "age"?',
        'data.nodes.user.columns.bad: agge + 1: Binder Error: Referenced column "agge" not found',
        "data.nodes.user.columns.worse: 1 +: Parser Error",
        "data.nodes.user.columns.age: there is a column of this name already",
        "data.nodes.user.where: nme = 'ann'",
        'data.nodes.user.time: there is no column "join"; did you mean "joined"?',
        'data.nodes.order.foreign_keys: there is no column "usr"; did you mean "user"?',
        'data.nodes.order.foreign_keys.user: there is no node type "usr"; did you mean "user"?',
        'data.edges["user,follows,user"].src: there is no column "hwo"; did you mean "who"?',
        'data.split.column: the table of "user" has no column "prt"; did you mean "part"?',
    ):
        assert said in message, message
    assert len(message.splitlines()) == 11


def test_missing_files_in_one_message(folder: Path):
    nodes = section(folder).model_dump()["nodes"]
    nodes["user"]["file"], nodes["order"]["file"] = "user.csv", "orders.xls"
    (folder / "orders.xls").write_text("")
    with pytest.raises(ExperimentError) as refused:
        load(section(folder, nodes=nodes), TASK)
    assert "there is no user.csv in " in str(refused.value)
    assert 'did you mean "users.csv"?' in str(refused.value)
    assert "data.nodes.order.file: orders.xls is neither" in str(refused.value)


def test_a_damaged_zip(folder: Path):
    (folder / "users.zip").write_bytes(b"PK")
    with pytest.raises(ExperimentError, match=r"users.zip is no zip file, or a damaged one"):
        load(user_section(folder, file="users.zip"), TASK)


def test_missing_package():
    data = TablesData.model_validate(
        {"source": "tables", "root": "package:no_such_package/data", "nodes": {"user": {"file": "users.csv"}}}
    )
    with pytest.raises(ExperimentError, match='"no_such_package" is not installed'):
        load(data, TASK)


def test_duplicate_and_absent_keys(folder: Path):
    (folder / "users.csv").write_text(USERS + "ann,1,true,2020-01-01,FR,a,train\n,1,true,2020-01-01,FR,a,train\n")
    with pytest.raises(ExperimentError) as refused:
        load(section(folder), TASK)
    assert "data.nodes.user.key: 1 row without name" in str(refused.value)
    assert "data.nodes.user.key: 1 values of name are not unique: ann (2 times)" in str(refused.value)


def test_dangling_keys_are_refused_or_dropped(folder: Path):
    with (folder / "orders.csv").open("a") as file:
        file.write("10,zed,1,2020-01-01T00:00:00\n11,zed,1,2020-01-01T00:00:00\n12,kim,1,2020-01-01T00:00:00\n")
    with pytest.raises(ExperimentError) as refused:
        load(section(folder), TASK)
    assert (
        '"order,user,user": 3 rows with 2 keys in user that no row of nodes.user has: zed (2 rows), kim (1 row)'
        in str(refused.value)
    )
    loaded = load(section(folder, dangling="drop"), TASK)
    assert loaded.data["order", "user", "user"].edge_index.tolist() == [[0, 1, 3], [0, 1, 0]]
    assert loaded.info["dangling"] == {"order,user,user": 3}


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"label": "half", "columns": {"half": "age / 3"}}, "holds numbers with fractions"),
        ({"features": {"numeric": ["country"]}}, '"country" (VARCHAR) must hold numbers'),
        ({"features": {"boolean": ["country"]}}, '"country" (VARCHAR) must hold true or false'),
        ({"label": "one", "columns": {"one": "1"}}, "at least two classes"),
        ({"time": "age"}, '1 row without "age"'),
        ({"features": {"datetime": ["country"]}}, '"country" (VARCHAR) must hold dates'),
        (
            {"label": "several", "columns": {"several": "[age, 1]"}},
            'are zeros and ones each; "several[0]" holds 20 in row 0',
        ),
        ({"label": "several", "columns": {"several": "{'a': age}"}}, "a label is a class"),
    ],
)
def test_columns_that_do_not_fit_their_use(folder: Path, table: dict[str, Any], said: str):
    with pytest.raises(ExperimentError) as refused:
        load(user_section(folder, **table), TASK)
    assert said in str(refused.value)


def test_a_header_of_text_over_text(folder: Path):
    (folder / "tags.csv").write_text("tag,note\nred,warm\nblue,cold\n")
    nodes = {**section(folder).model_dump()["nodes"], "tag": {"file": "tags.csv", "key": "tag"}}
    assert load(section(folder, nodes=nodes), TASK).keys["tag"].to_pylist() == ["red", "blue"]


def test_transforms_may_not_take_away_rows_with_keys(folder: Path):
    with pytest.raises(ExperimentError, match='which nodes of "user" there are'):
        load(section(folder, transforms=["RemoveIsolatedNodes"]), TASK)
    data = load(section(folder, transforms=[{"Constant": {"value": 2.0, "node_types": "order"}}]), TASK).data
    assert data["order"].x[:, 1].tolist() == [2, 2, 2, 2]


def test_no_masks_in_tables(folder: Path):
    with pytest.raises(ExperimentError, match="tables have no masks"):
        load(user_section(folder, split={"by": "masks"}), TASK)


def test_fingerprint_follows_bytes_and_settings_but_not_places(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    first = fingerprint(section(folder), TASK)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for name in ("users.csv", "orders.csv", "follows.csv"):
        (elsewhere / name).write_bytes((folder / name).read_bytes())
    assert fingerprint(section(elsewhere), TASK) == first
    assert fingerprint(section(folder, reverse=False), TASK) != first
    (folder / "users.csv").write_text(USERS.replace("90", "91"))
    assert fingerprint(section(folder), TASK) != first
