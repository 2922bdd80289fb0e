"""Imports go one way: config <- world <- data, graph <- sampling <- models, tasks <- train, report <- ... <- cli."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import disttrain

PACKAGE = Path(disttrain.__file__).parent

_CONFIG = {"", "config", "environment", "guard", "lasting", "machine_code", "memory", "watchdog", "watchman"}
_WORLD = _CONFIG | {"world", "refusal", "notes", "failure", "lead", "place", "roster", "stop", "own_code"}
_BELOW_TRAIN = _WORLD | {"graph", "data", "sampling", "collection", "models", "tasks", "report"}

MAY_SEE: dict[str, set[str]] = {
    **dict.fromkeys(_CONFIG, _CONFIG),
    **dict.fromkeys(_WORLD - _CONFIG, _WORLD),
    "data": _WORLD,
    "graph": _WORLD,
    "sampling": _WORLD | {"graph"},
    "collection": _WORLD | {"graph", "data", "sampling"},
    "models": _WORLD | {"graph", "data"},
    "tasks": _WORLD | {"graph", "data"},
    "report": _WORLD | {"graph"},
    "preflight": _WORLD | {"graph", "report"},
    "train": _BELOW_TRAIN,
    "predict": _BELOW_TRAIN | {"train"},
    "inspect": _BELOW_TRAIN | {"train"},
    "launch": _CONFIG,
    "joining": _WORLD | {"preflight"},
    "cli": _BELOW_TRAIN | {"train", "predict", "inspect", "launch", "preflight", "joining"},
    "__main__": _BELOW_TRAIN | {"train", "predict", "inspect", "launch", "preflight", "cli"},
}
"""Part of the package -> the other parts that it may import; "" is the package itself."""

RANK_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR"}


def modules() -> Iterator[tuple[tuple[str, ...], ast.Module]]:
    """Every module as its dotted path within the package, without the package's own name."""
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        yield parts, ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(parts: tuple[str, ...], tree: ast.Module) -> Iterator[tuple[str, ...]]:
    """What a module imports of the package, as dotted paths within it; also under TYPE_CHECKING and in functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = tuple((node.module or "").split(".")) if node.module else ()
            if node.level:
                base = ("disttrain", *parts[: len(parts) - node.level], *base)
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        yield from (name[1:] for name in names if name[0] == "disttrain")


def part_of(name: tuple[str, ...]) -> str:
    """The part of the package that a dotted path lies in: a folder or a module at the top, or "" for the rest."""
    first = name[0] if name else ""
    return first if (PACKAGE / first).is_dir() or (PACKAGE / f"{first}.py").exists() else ""


def test_imports_go_one_way() -> None:
    wrong = []
    for parts, tree in modules():
        own = "" if parts == ("__init__",) else parts[0]
        for name in imported(parts, tree):
            other = part_of(name)
            if other != own and other not in MAY_SEE[own]:
                wrong.append(f"{'.'.join(parts)} imports {'.'.join(name)}")
    assert wrong == []


def test_every_part_has_its_place() -> None:
    assert {"" if parts == ("__init__",) else parts[0] for parts, _ in modules()} <= MAY_SEE.keys()


def test_only_the_world_reads_what_torchrun_says() -> None:
    wrong = [
        f"{'.'.join(parts)}: {node.value}"
        for parts, tree in modules()
        if parts not in (("world",), ("environment",))
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in RANK_VARIABLES
    ]
    assert wrong == []


def test_nothing_uses_what_torch_geometric_has_given_up() -> None:
    wrong = [
        ".".join(parts)
        for parts, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_geometric.distributed"))
        or (isinstance(node, ast.Import) and any(a.name.startswith("torch_geometric.distributed") for a in node.names))
    ]
    assert wrong == []


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, disttrain.__main__; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_jobs_are_submitted_without_torch() -> None:
    code = (
        "import sys, pkgutil, importlib, disttrain.launch as it\n"
        "for found in pkgutil.iter_modules(it.__path__, 'disttrain.launch.'): importlib.import_module(found.name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
