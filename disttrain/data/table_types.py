"""Types of DuckDB, by name."""

from __future__ import annotations

import re


def is_integer(type_name: str) -> bool:
    """Whether a DuckDB type holds whole numbers only."""
    return re.fullmatch(r"U?\w*INT(EGER)?", type_name) is not None


def kind_of(type_name: str) -> str:
    """What a DuckDB type is compared as: text, number, boolean, moment, or the type itself."""
    if type_name == "VARCHAR":
        return "text"
    if type_name in ("FLOAT", "DOUBLE") or type_name.startswith("DECIMAL") or is_integer(type_name):
        return "number"
    if type_name == "BOOLEAN":
        return "boolean"
    return "moment" if type_name == "DATE" or type_name.startswith("TIMESTAMP") else type_name


def is_zoned(type_name: str) -> bool:
    """Whether it is a moment of a known time zone."""
    return type_name == "TIMESTAMP WITH TIME ZONE"
