"""What every section of the experiment is made of: the section itself, and the types of single values."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema


class ExperimentError(ValueError):
    """The user's input was refused. The message says what was expected, what came, where, and what to do.

    `__main__` prints it without a traceback and exits with code 2.
    """


class Section(BaseModel):
    """A part of the experiment: frozen, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True)


EdgeType = tuple[str, str, str]


def parse_edge_type(text: str) -> EdgeType:
    """Read a relation as it is written in YAML: `"src,rel,dst"`, e.g. `"author,writes,paper"`.

    Raises:
        ValueError: if it does not have exactly three non-empty parts.
    """
    parts = tuple(part.strip() for part in text.split(","))
    if len(parts) != 3 or not all(parts):
        raise ValueError(f'a relation is written "source,relation,destination", got {text!r}')
    return parts


def edge_type_name(edge_type: EdgeType) -> str:
    """Write a relation as YAML and messages have it: `"src,rel,dst"`."""
    return ",".join(edge_type)


def _relation(text: str) -> str:
    return edge_type_name(parse_edge_type(text))


def _part_of_relation(text: str) -> str:
    if "," in text or text != text.strip() or not text:
        raise ValueError(
            'relations are written "src,rel,dst", so the names in them have no commas and no spaces at the ends; '
            f"got {text!r}"
        )
    return text


def spelt(pattern: str, expected: str) -> Callable[[str], str]:
    """A check of a printable text that has to be spelt so, from its first letter to its last."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text) or not text.isprintable():
            raise ValueError(f"expected {expected}, got {text!r}")
        return text

    return check


def _dotted(path: str) -> str:
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(f"a dotted path is written 'package.module:name', got {path!r}")
    return path


def as_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) or value is None else [value]


_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


def _bytes(size: Any) -> Any:
    if not isinstance(size, str):
        return size
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", size.strip().lower())
    if parts is None or parts[2] not in _UNITS:
        raise ValueError(f'a size is a number of bytes, or written like "512 MiB" (kB, MB, GB, KiB, MiB), got {size!r}')
    return int(float(parts[1]) * _UNITS[parts[2]])


RELATION_PATTERN = "^" + ",".join([r"\s*[^,\s][^,]*"] * 3) + "$"

Relation = Annotated[str, AfterValidator(_relation), WithJsonSchema({"type": "string", "pattern": RELATION_PATTERN})]
"""A relation as a normalised `"src,rel,dst"` string; `parse_edge_type` gives the tuple."""

TypeName = Annotated[str, AfterValidator(_part_of_relation)]
"""The name of a node type: it can stand in a relation, `"src,rel,dst"`."""

RelationName = Annotated[str, AfterValidator(_part_of_relation)]
"""The name in the middle of a relation."""

DottedPath = Annotated[str, AfterValidator(_dotted), WithJsonSchema({"type": "string", "pattern": "^[^:]+:.+"})]
"""`package.module:name` of something of the user's own."""

Names = Annotated[tuple[str, ...], BeforeValidator(as_list, json_schema_input_type=str | tuple[str, ...])]
"""A list of names; a single name may stand alone."""

Bytes = Annotated[int, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=0)]
"""A size: a number of bytes, or text such as "512 MiB"."""

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]

Seed = Annotated[int, Field(ge=0, lt=2**63)]
