"""What the documentation says is what the code does."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import get_args

import yaml

from disttrain.config import AggrName, Conv, HeteroConvModel
from disttrain.config.aggregation import ARGUMENTS
from disttrain.config.schema import schema_text
from disttrain.train.identity import MAY_CHANGE

REPOSITORY = Path(__file__).parents[2]


def test_the_page_of_all_keys_is_up_to_date():
    place = REPOSITORY / "docs" / "write_experiment_page.py"
    spec = importlib.util.spec_from_file_location("write_experiment_page", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"run python {place.relative_to(REPOSITORY)}"
    assert module.SCHEMA.read_text(encoding="utf-8") == schema_text(), f"run python {place.relative_to(REPOSITORY)}"


def test_links_lead_somewhere():
    pages = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *(REPOSITORY / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_page_of_models_names_every_kind_convolution_and_aggregation():
    text = (REPOSITORY / "docs" / "models.md").read_text(encoding="utf-8")
    arguments = {name for of_kind in ARGUMENTS.values() for name in of_kind}
    names = {*get_args(get_args(AggrName)[0]), *get_args(Conv), *arguments, "rgcn", "rgat", "hgt", "custom"}
    assert not [name for name in sorted(names) if f"`{name}`" not in text]
    forms = re.findall(r"^    (aggr: .*)$", text, re.MULTILINE)
    assert forms
    for form in forms:
        HeteroConvModel.model_validate({"kind": "hetero_conv", **yaml.safe_load(form)})


def test_the_settings_that_may_change_between_two_pieces_of_a_run_are_listed():
    text = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
    section = text.partition("## Going on with a run")[2]
    listed = re.findall(r"`([a-z_.]+)`", section.partition("but for these:")[2].partition("So a run")[0])
    assert listed == list(MAY_CHANGE)


def test_experiments_say_what_they_are_for_and_where_their_schema_is():
    for file in [*(REPOSITORY / "configs").glob("*.yaml"), *(REPOSITORY / "examples").glob("*.yaml")]:
        text = file.read_text(encoding="utf-8")
        hints = re.findall(r"^# yaml-language-server: \$schema=(.*)$", text, re.MULTILINE)
        assert hints == ["../docs/experiment.schema.json"], f"{file.name} needs the editors' hint that the others have"
        assert not text.startswith("# yaml-language-server"), f"the first line of {file.name} says what it is for"
