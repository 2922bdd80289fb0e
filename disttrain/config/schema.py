"""The JSON Schema of the experiment's file, for editors: what the reader accepts, with descriptions and defaults.

pydantic makes most of it. The reader takes some things more, which are added here: a section that is there and empty
(all its keys are commented out), and a section that changes keys of its default without saying its kind. Text that
reads as a number or a boolean the reader takes too; here it is a mistake, as it mostly is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .check import Kind, field_kind, is_container, is_section, kind_of, members
from .experiment import Experiment
from .section import Section

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def experiment_schema() -> dict[str, Any]:
    """The schema as JSON."""
    schema = _plainer(Experiment.model_json_schema())
    definitions: dict[str, Any] = schema["$defs"]
    for section in _sections(Kind(Experiment)):
        _take_more(section, schema if section is Experiment else definitions[section.__name__], definitions)
    return {"$schema": DIALECT, "title": "disttrain experiment", **schema}


def schema_text() -> str:
    """The schema as a file."""
    return json.dumps(experiment_schema(), indent=1, ensure_ascii=False) + "\n"


def _sections(kind: Kind) -> Iterator[type[Section]]:
    """All sections in a type, each once."""
    seen: dict[type[Section], None] = {}
    waiting: list[Any] = [kind.whole]
    while waiting:
        annotation = kind_of(waiting.pop()).annotation
        if is_section(annotation):
            if annotation not in seen:
                seen[annotation] = None
                waiting += [field.annotation for field in annotation.model_fields.values()]
        else:
            waiting += [part for part in getattr(annotation, "__args__", ()) if part is not Ellipsis]
    yield from seen


def _take_more(section: type[Section], described: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Add to a section's schema what the reader accepts beside what pydantic does."""
    for name, field in section.model_fields.items():
        kind, here = field_kind(field), described["properties"][name]
        if field.is_required() or not is_container(kind):
            continue
        choices = [here.pop(key) for key in ("$ref",) if key in here]
        if choices:
            choices = [{"$ref": choices[0]}]
        elif kind.discriminator is not None:
            choices = here.pop("oneOf")
        else:
            choices = [{key: here.pop(key) for key in list(here) if key not in ("description", "default", "title")}]
        if kind.discriminator is not None and isinstance(field.default, Section):
            choices.append(_changed_default(type(field.default), kind, definitions))
        here["anyOf"] = [*choices, {"type": "null"}]


def _changed_default(section: type[Section], kind: Kind, definitions: dict[str, Any]) -> dict[str, Any]:
    """A section that names some keys of the default only, and not its kind."""
    whole = definitions[section.__name__]
    assert any(member is section for member in members(kind.annotation))
    properties = {name: value for name, value in whole["properties"].items() if name != kind.discriminator}
    name = f"{section.__name__}Changes"
    definitions[name] = {**whole, "properties": properties}
    definitions[name].pop("required", None)
    return {"$ref": f"#/$defs/{name}"}


def _plainer(schema: Any) -> Any:
    """Without what only pydantic or OpenAPI understand, in keywords that every editor knows."""
    if isinstance(schema, list):
        return [_plainer(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" or key == "$defs":
            found[key] = {name: _plainer(inner) for name, inner in value.items()}
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key == "default":
            found[key] = value
        elif key not in ("title", "discriminator"):
            found[key] = _plainer(value)
    if "prefixItems" in found:
        first, *others = found.pop("prefixItems")
        assert all(other == first for other in others), "lists of unlike items have no plain form"
        found["items"] = first
    if "minLength" in found and "items" not in found and "anyOf" in found:
        _set_least(found, found.pop("minLength"))
    if "patternProperties" in found:
        found.setdefault("additionalProperties", False)
    return found


def _set_least(schema: dict[str, Any], least: int) -> None:
    """pydantic puts the least length of a list that may also be a single text beside the two."""
    for choice in schema["anyOf"]:
        if choice.get("type") == "array":
            choice["minItems"] = least
