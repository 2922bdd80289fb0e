"""The experiment of docs/tables.md, run on tables that fit it; MovieLens by its experiment in configs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from disttrain.config.file import parse_experiment, read_experiment
from disttrain.data import left_out_lines, load

REPOSITORY = Path(__file__).parents[2]
FILES = {
    "customers.csv": "id,age,country,joined,newsletter,segment\n"
    "007,30,FR,2020-01-01,true,new\n07,40,DE,2020-02-01,false,old\n7,,FR,2021-01-01,true,old\n8,50,US,2021-02-03,,\n"
    "9,20,US,2022-02-03,true,new\n07,1,US,2022-02-03,true,new\n",
    "products/a.csv": "brand,number,price\nacme,1,2.5\nacme,2,3.5\n",
    "products/b.csv": "brand,number,price\nzeta,1,9\n",
    "orders.csv": "order,customer,brand,number,total,placed\n"
    "1,007,acme,2,150,2023-01-01\n2,7,zeta,1,20,2023-01-02\n3,nobody,,1,30,2023-01-03\n4,8,acme,1,0,2023-01-04\n5,9,acme,1,5,\n",
    "likes.csv": "customer,brand,number,stars\n07,zeta,1,5\n9,acme,1,3\n9,acme,3,3\n",
}


def test_the_experiment_in_the_page(tmp_path: Path):
    (block,) = re.findall(
        r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "tables.md").read_text(encoding="utf-8"), re.DOTALL
    )
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    experiment = parse_experiment(block, [f"data.root={tmp_path}"])
    loaded = load(experiment.data, experiment.task)
    edges = {kind: store.edge_index.t().tolist() for kind, store in loaded.data.edge_items()}
    assert edges == {
        ("order", "customer", "customer"): [[0, 0], [1, 2]],
        ("customer", "rev_customer", "order"): [[0, 0], [2, 1]],
        ("order", "item", "product"): [[0, 1], [1, 2]],
        ("product", "rev_likes", "customer"): [[2, 1], [0, 4]],
    }
    assert loaded.keys["customer"].to_pylist() == ["007", "07", "7", "8", "9"]
    assert loaded.data["customer"].y.tolist() == [0, 1, 1, -1, 0]
    assert left_out_lines(loaded.info) == [
        "data.nodes.customer: 1 row left out for the key of an earlier row",
        "data.nodes.order: 1 row left out by `where`",
        "data.nodes.order: 1 row left out without a time",
        '"order,customer,customer": 1 edge left out for a key that no row has',
        '"customer,likes,product": 1 edge left out for a key that no row has',
        '"order,item,product": 1 row without a key (NULL), hence no edge',
        '"customer": 1 node without a label, in no split',
    ]


def test_movielens(real_data: Any):
    folder = real_data("ml-100k")
    experiment = read_experiment(REPOSITORY / "configs" / "movielens.yaml", [f"data.root={folder}"])
    loaded = load(experiment.data, experiment.task)
    counts = {name: loaded.data[name].num_nodes for name in loaded.data.node_types}
    assert (counts["film"], counts["user"]) == (1682, 943)
    assert loaded.data["user", "rates", "film"].edge_index.shape == (2, 100_000)
    assert int(loaded.data["film"].y.sum()) == 725  # as u.item has it
    areas = loaded.keys["area"].to_pylist()
    lines = (folder / "u.user").read_text(encoding="latin-1").splitlines()
    assert areas == list(dict.fromkeys(line.split("|")[4][:2] for line in lines))
    assert any(area.startswith("0") for area in areas)
    assert loaded.info["rows_left_out"] == {"nodes.area": {"duplicates": 943 - len(areas)}}
    assert left_out_lines(loaded.info)
