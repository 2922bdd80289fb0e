"""`key.path=value` on the command line."""

from __future__ import annotations

import pytest

from disttrain.config import (
    CustomModel,
)
from disttrain.config.file import parse_experiment
from disttrain.config.yaml import YamlError, parse_path, path_text

from .test_config_file import SMALL, hetero, mistakes


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("train.lr=1e-2", lambda e: e.train.lr, 0.01),
        ("train.epochs=3", lambda e: e.train.epochs, 3),
        ("sampling.fanout.0=15", lambda e: e.sampling.fanout, (15, 5)),
        ("sampling.fanout[1]=7", lambda e: e.sampling.fanout, (10, 7)),
        ("sampling.fanout=[15,10]", lambda e: e.sampling.fanout, (15, 10)),
        ("sampling.fanout={default: [3, 2]}", lambda e: e.sampling.fanout, {"default": (3, 2)}),
        ('model.relations["paper,to,author"].conv=sage', lambda e: hetero(e).relations["paper,to,author"].conv, "sage"),
        ("model.relations['paper,to,author'].conv=sage", lambda e: hetero(e).relations["paper,to,author"].conv, "sage"),
        ("model.relations[paper,to,author].conv=sage", lambda e: hetero(e).relations["paper,to,author"].conv, "sage"),
        ("model.relations.paper,to,author.conv=sage", lambda e: hetero(e).relations["paper,to,author"].conv, "sage"),
        (
            'model.relations["paper, to, author"].conv=sage',
            lambda e: hetero(e).relations["paper,to,author"].conv,
            "sage",
        ),
        ("model.relations.term,in,paper.heads=2", lambda e: hetero(e).relations["term,in,paper"].heads, 2),
        ("train.early_stop={metric: accuracy}", lambda e: e.train.early_stop.metric, "accuracy"),
        ("train.early_stop.metric=macro_f1", lambda e: e.train.early_stop.metric, "macro_f1"),
        ("train.scheduler.kind=cosine", lambda e: e.train.scheduler.kind, "cosine"),
        ("train.grad_clip=", lambda e: e.train.grad_clip, None),
        ("data.args.note=a=b", lambda e: e.data.args["note"], "a=b"),
        ("run_dir=runs/x=1", lambda e: e.run_dir, "runs/x=1"),
    ],
)
def test_overrides_reach_everything(override: str, read, value: object) -> None:
    assert read(parse_experiment(SMALL, [override])) == value


def test_an_override_keeps_what_stands_beside_it() -> None:
    options = hetero(parse_experiment(SMALL, ["model.relations.paper,to,author.conv=sage"])).relations[
        "paper,to,author"
    ]
    assert (options.conv, options.aggr) == ("sage", "max")


def test_an_index_reaches_into_the_default_list() -> None:
    text = SMALL.replace("sampling:\n  fanout: [10, 5]\n", "")
    assert parse_experiment(text, ["sampling.fanout.0=15"]).sampling.fanout == (15, 5)


def test_the_last_override_wins() -> None:
    assert parse_experiment(SMALL, ["seed=1", "seed=2"]).seed == 2


def test_an_override_can_change_the_kind_of_a_section() -> None:
    assert isinstance(parse_experiment(SMALL, ["model={kind: custom, module: 'a.b:C'}"]).model, CustomModel)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("foo", "the override 'foo' is not of the form key.path=value"),
        ("=3", "the path is empty"),
        ("a..b=3", "is not a path"),
        ("seed=[1", "line 1"),
        ("seed.x=1", "expected a whole number"),
        ("name.x=1", "name is \"small\", it has no 'x'"),
        ("sampling.fanout.2=1", "sampling.fanout is a list of 2, [10, 5]; it has no 2, only the indices 0 to 1"),
        ("sampling.fanout.first=1", "it has no 'first'"),
        ("trian.lr=1", "trian (override trian.lr=1): there is no such key; did you mean `train`?"),
        ("train.lr=0", "train.lr (override train.lr=0): expected a number above 0, got 0"),
    ],
)
def test_mistaken_overrides(override: str, said: str) -> None:
    (line,) = mistakes(SMALL, override)
    assert said in line


def test_paths_read_back() -> None:
    for path in [("a", "b"), ("a", 0, "b"), ("m", "paper,to,author", "conv"), ("a", "x.y"), ("a", "7")]:
        assert parse_path(path_text(path)) == path
    for text in ["", "a..b", ".a", "a.", "a[", "a]b", "a[]"]:
        with pytest.raises(YamlError):
            parse_path(text)


# Mistakes
