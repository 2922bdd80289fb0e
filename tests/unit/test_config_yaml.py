"""Values as YAML 1.2 has them, and what is written is read back equal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disttrain.config import (
    SplitByTime,
)
from disttrain.config.file import parse_experiment
from disttrain.config.yaml import dump_yaml, parse_yaml

from .test_config_file import SMALL


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E3", 1e3),
        ("-1.5e+2", -150.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2013-10-01", "2013-10-01"),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
        ("'1'", "1"),
        ("e5", "e5"),
        ("[10, 5]", [10, 5]),
    ],
)
def test_plain_values_are_those_of_yaml_1_2(text: str, value: object) -> None:
    read = parse_yaml(f"a: {text}").value["a"]
    assert read == value
    assert type(read) is type(value)


def test_anchors_and_merge_keys() -> None:
    assert parse_yaml("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}").value["b"] == {"p": 1, "q": 3}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4))
def test_what_is_written_is_read_back_equal(value: dict[str, object]) -> None:
    assert parse_yaml(dump_yaml(value)).value == value


@pytest.mark.parametrize(
    "text", ["1e-3", "yes", "no", "null", "~", "", "010", "2013-10-01", "12:30", "<<", "true", "0o7", "1.", "1_000"]
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert parse_yaml(dump_yaml({"a": text})).value == {"a": text}


def test_whole_floats_are_whole_numbers_and_words_are_booleans_where_asked() -> None:
    assert parse_experiment(SMALL, ["sampling.batch_size=1e3"]).sampling.batch_size == 1000
    assert parse_experiment(SMALL, ["sampling.replace=yes"]).sampling.replace is True


def test_sections_whose_entries_are_all_commented_out() -> None:
    experiment = parse_experiment(SMALL.replace("  lr: 1e-3", "  # lr: 1e-3") + "launch:\npartition:\n")
    assert experiment.train.lr == 0.005


def test_dates_of_a_split_stay_text() -> None:
    experiment = parse_experiment(SMALL, ["data.split={by: time, column: when, val: 2013-10-01, test: 2013-11-01}"])
    assert isinstance(experiment.data.split, SplitByTime)
    assert experiment.data.split.val == "2013-10-01"


# Overrides
