"""Writes docs/experiment.md and docs/experiment.schema.json from the sections in disttrain/config/:

python docs/write_experiment_page.py
"""

from __future__ import annotations

import inspect
import types
import typing
from pathlib import Path

from pydantic.fields import FieldInfo

from disttrain.config import Aggregation, Experiment, Inputs, Pooling, Section
from disttrain.config.schema import schema_text

PAGE = Path(__file__).parent / "experiment.md"
SCHEMA = Path(__file__).parent / "experiment.schema.json"

INTRODUCTION = """\
# Every key of the experiment

Written by `docs/write_experiment_page.py` from `disttrain/config/`. A section is a mapping; where it has several
kinds, one key (`source`, `by`, `kind`) says which. `required` means that there is no default.
"""


LIKE_BEFORE = (Inputs, Aggregation)
"""Sections that each kind of model has, described with the first."""
SHORT = ((Pooling, "an aggregation by name, section, or list of these"),)
"""Types that would take too long each time."""


def sections_in(annotation: object) -> list[type[Section]]:
    """The sections that a field's type mentions, in order."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return list(dict.fromkeys(section for part in typing.get_args(annotation) for section in sections_in(part)))


def type_text(annotation: object) -> str:
    """A field's type as a reader of YAML would say it."""
    for known, text in SHORT:
        if annotation == known:
            return text
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(parts[0])
    if origin is typing.Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(type_text(part) for part in parts if part is not type(None)))
    if origin is tuple:
        items = [type_text(part) for part in parts if part is not Ellipsis]
        return f"list of {items[0]}" if Ellipsis in parts else f"[{', '.join(items)}]"
    if origin is dict:
        return f"mapping of {type_text(parts[0])} to {type_text(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "section"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", typing.Any: "anything"}
    return names.get(annotation, str(annotation))  # type: ignore[arg-type]


def default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if isinstance(default, Section):
        return "as below"
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]"
    return str(default) or '""'


def tag_of(section: type[Section]) -> str | None:
    """The key whose one value says which kind of section it is (`source`, `kind`, `by`)."""
    literals = {
        n: f.annotation for n, f in section.model_fields.items() if typing.get_origin(f.annotation) is typing.Literal
    }
    return next((name for name, annotation in literals.items() if len(typing.get_args(annotation)) == 1), None)


def describe(section: type[Section], path: str, lines: list[str]) -> None:
    """The table of one section, then those of the sections inside it."""
    doc = inspect.cleandoc(section.__doc__ or "") if section.__doc__ != Section.__doc__ else ""
    lines += [f"## {path or 'the file'}", ""]
    if doc and path:
        lines += [" ".join(doc.split()), ""]
    lines += ["| key | value | default | |", "|---|---|---|---|"]
    tag = tag_of(section)
    for name, field in sorted(section.model_fields.items(), key=lambda item: item[0] != tag):
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {type_text(field.annotation)} | {default_text(field)} | {text} |")
    lines.append("")
    for name, field in section.model_fields.items():
        inner = sections_in(field.annotation)
        for kind in inner:
            where = f"{path}.{name}" if path else name
            if typing.get_origin(field.annotation) is dict:
                where += ".<name>"
            if len(inner) > 1:
                key = tag_of(kind)
                where += f" ({key}: {typing.get_args(kind.model_fields[key].annotation)[0]})"
            if path.startswith("model (kind: ") and kind in LIKE_BEFORE and path != "model (kind: hetero_conv)":
                continue
            if f"## {where}" not in lines and not (name == "split" and "data (" in path and "pyg" not in path):
                describe(kind, where, lines)


def page() -> str:
    lines: list[str] = []
    describe(Experiment, "", lines)
    return INTRODUCTION + "\n" + "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema_text(), encoding="utf-8")
