"""Fanouts by share of the degree, and settings of the sampler that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config import Share
from disttrain.config.file import parse_experiment, read_experiment, write_experiment
from disttrain.config.ignored import ignored_settings

from .test_config_file import SMALL, mistakes

SHARES = "sampling.fanout=[{ratio: 0.5, min: 2, max: 20}, 5]"


def test_a_share_of_the_degree_is_a_fanout(tmp_path: Path) -> None:
    experiment = parse_experiment(SMALL, [SHARES, "sampling.eval_fanout={default: [-1, {ratio: 1}]}"])
    assert experiment.sampling.fanout == (Share(ratio=0.5, min=2, max=20), 5)
    assert experiment.sampling.eval_fanout == {"default": (-1, Share(ratio=1.0, min=1, max=None))}
    changed = parse_experiment(SMALL, [SHARES, "sampling.fanout.0.ratio=0.25", "sampling.fanout.1={ratio: 0.1}"])
    assert changed.sampling.fanout == (Share(ratio=0.25, min=2, max=20), Share(ratio=0.1))
    write_experiment(experiment, tmp_path / "written.yaml")
    assert read_experiment(tmp_path / "written.yaml") == experiment


@pytest.mark.parametrize(
    ("override", "where", "message"),
    [
        ("sampling.fanout=[{ratio: 2}, 5]", "sampling.fanout[0].ratio", "a number above 0 and of at most 1, got 2"),
        ("sampling.fanout=[{ratio: 0}, 5]", "sampling.fanout[0].ratio", "above 0"),
        ("sampling.fanout=[{rato: 0.5}, 5]", "sampling.fanout[0].rato", "did you mean `ratio`?"),
        ("sampling.fanout=[{ratio: 0.5, min: 3, max: 2}, 5]", "sampling.fanout[0]", "max is 2, below min, which is 3"),
        ("sampling.fanout=[{min: 3}, 5]", "sampling.fanout[0].ratio", "is missing"),
        ("sampling.fanout=[some, 5]", "sampling.fanout[0]", "a whole number of at least -1"),
        ("sampling.fanout=[{ratio: 0.5}]", "sampling.fanout", "has 1 hop ([{ratio: 0.5}]), but model.layers is 2"),
        ("sampling.time_atr=t", "sampling.time_atr", "did you mean `time_attr`?"),
        ("sampling.seed_time=t", "sampling", "seed_time is given, but no time_attr"),
        ("sampling={backend: pyg-lib, fanout: [{ratio: 0.5}, 5]}", "sampling", "has no fanout by ratio"),
        ("sampling={backend: pyg-lib, time_attr: t, weight_attr: w}", "sampling", "by weight and time at once"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(override: str, where: str, message: str) -> None:
    (line,) = mistakes(SMALL, override)
    assert line.startswith(f"{where} ") and message in line


def test_settings_without_effect_are_named() -> None:
    (line,) = ignored_settings(parse_experiment(SMALL, ["sampling.temporal_strategy=last"]))
    assert line.startswith("sampling.temporal_strategy has no effect")
    timed = ["sampling.temporal_strategy=last", "sampling.time_attr=t"]
    assert ignored_settings(parse_experiment(SMALL, timed)) == []


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("512 MiB", 2**29),
        ("512MiB", 2**29),
        ("1.5 gb", 1_500_000_000),
        ('"4 KiB"', 4096),
        ("65536", 65536),
        ("1e3 B", None),
        ("-1", None),
        ("512 MiBit", None),
        ("a lot", None),
    ],
)
def test_sizes_are_written_with_units(tmp_path: Path, written: str, size: int | None) -> None:
    file = tmp_path / "size.yaml"
    file.write_text(SMALL.replace("sampling:\n", f"sampling:\n  cache_bytes: {written}\n"))
    if size is not None:
        assert read_experiment(file).sampling.cache_bytes == size
        write_experiment(read_experiment(file), tmp_path / "written.yaml")
        assert read_experiment(tmp_path / "written.yaml") == read_experiment(file)
        return
    (line,) = mistakes(file.read_text())
    assert line.startswith("sampling.cache_bytes "), line
