"""Compare plain values with the sections of the experiment, and word every mistake for the person who made it.

pydantic does the checking of each value; this walk decides which section a value is meant to be (by `source`, `kind`,
`by`), knows the path of everything, and looks for the nearest valid spelling. It finds all mistakes, not the first.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from . import Section
from .yaml import Path, path_text


class Mistake(NamedTuple):
    path: Path
    text: str


class Kind(NamedTuple):
    """What a value has to be: a type as pydantic sees it, taken apart."""

    annotation: Any
    metadata: tuple[Any, ...] = ()
    discriminator: str | None = None

    @property
    def whole(self) -> Any:
        return Annotated[(self.annotation, *self.metadata)] if self.metadata else self.annotation


def kind_of(annotation: Any) -> Kind:
    """Take `Annotated[...]` apart."""
    metadata: list[Any] = []
    discriminator = None
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        for item in more:
            if isinstance(item, FieldInfo):
                metadata.extend(item.metadata)
                discriminator = discriminator or _text(item.discriminator)
            else:
                metadata.append(item)
    return Kind(annotation, tuple(metadata), discriminator)


def field_kind(field: FieldInfo) -> Kind:
    inner = kind_of(field.annotation)
    return Kind(inner.annotation, (*inner.metadata, *field.metadata), _text(field.discriminator) or inner.discriminator)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def members(annotation: Any) -> list[Any]:
    """The alternatives of a union; a type that is none stands alone."""
    return list(get_args(annotation)) if get_origin(annotation) in (Union, types.UnionType) else [annotation]


def check(kind: Kind, value: Any, path: Path, mistakes: list[Mistake]) -> Any:
    """Add what is wrong with `value` to `mistakes`; return it with sections filled in and relations normalised."""
    if kind.discriminator is not None:
        return _check_choice(kind, value, path, mistakes)
    if is_section(kind.annotation):
        return _check_section(kind.annotation, value, path, mistakes)
    branch = _branch(kind.annotation, value)
    if branch is not None:
        inner = kind_of(branch)
        if is_section(inner.annotation) or inner.discriminator is not None:
            return check(inner, value, path, mistakes)
        if get_origin(inner.annotation) is dict:
            return _check_mapping(inner, value, path, mistakes)
        if get_origin(inner.annotation) is tuple and isinstance(value, list):
            return _check_list(kind, inner, value, path, mistakes)
    _check_leaf(kind, value, path, mistakes)
    return value


def _branch(annotation: Any, value: Any) -> Any:
    """The alternative of a union that has the shape of the value (a mapping, a list); None for plain values."""
    for member in members(annotation):
        inner = kind_of(member)
        mapping = (
            is_section(inner.annotation) or inner.discriminator is not None or get_origin(inner.annotation) is dict
        )
        if (isinstance(value, dict) and mapping) or (isinstance(value, list) and get_origin(inner.annotation) is tuple):
            return member
    return None


def choose(kind: Kind, value: dict[Any, Any]) -> type[Section] | None:
    """Which section of a discriminated union a mapping means; None where its tag is missing or unknown."""
    tag = value.get(kind.discriminator)
    for member in members(kind.annotation):
        section = kind_of(member).annotation
        field = section.model_fields[kind.discriminator]
        if tag is None and not field.is_required():
            return section
        if tag in get_args(field.annotation):
            return section
    return None


def _check_choice(kind: Kind, value: Any, path: Path, mistakes: list[Mistake]) -> Any:
    assert kind.discriminator is not None
    sections = [kind_of(member).annotation for member in members(kind.annotation)]
    tags = [tag for section in sections for tag in get_args(section.model_fields[kind.discriminator].annotation)]
    if not isinstance(value, dict):
        mistakes.append(
            Mistake(path, f"expected a section with `{kind.discriminator}: {_listed(tags)}`, got {shown(value)}")
        )
        return value
    section = choose(kind, value)
    if section is not None:
        return _check_section(section, value, path, mistakes, kind)
    if kind.discriminator in value:
        mistakes.append(Mistake((*path, kind.discriminator), _expected_one(value[kind.discriminator], tags)))
        meant = nearest(value[kind.discriminator], tags)
        if meant:  # the rest is held against the kind that was probably meant
            check(kind, {**value, kind.discriminator: meant}, path, mistakes)
        return value
    known = [set(section.model_fields) for section in sections]
    close = _nearest_keys(kind.discriminator, [key for key in value if not any(key in names for names in known)])
    hint = f"; is `{close[0]}` meant to be that?" if close else ""
    mistakes.append(Mistake((*path, kind.discriminator), f"is missing: expected one of {_listed(tags)}{hint}"))
    return value


def _check_section(
    section: type[Section], value: Any, path: Path, mistakes: list[Mistake], union: Kind | None = None
) -> Any:
    """`union`: whose alternative the section is."""
    fields = section.model_fields
    if value is None and not any(field.is_required() for field in fields.values()):
        return {}  # a heading whose entries are all commented out
    if not isinstance(value, dict):
        mistakes.append(Mistake(path, f"expected a section with the keys {_listed(fields)}, got {shown(value)}"))
        return value
    before = len(mistakes)
    checked: dict[Any, Any] = {}
    unknown = [key for key in value if key not in fields]
    for key in unknown:
        text = _of_another_kind(key, section, value, union) if union is not None else ""
        mistakes.append(Mistake((*path, key), text or _unknown_key(key, fields)))
    for key, field in fields.items():
        if key in value:
            kind = field_kind(field)
            if value[key] is None and not field.is_required() and is_container(kind):
                continue
            checked[key] = check(kind, _over_default(kind, value[key], field.default), (*path, key), mistakes)
        elif field.is_required() and not (unknown and _nearest_keys(key, unknown)):
            mistakes.append(Mistake((*path, key), f"is missing: expected {described(field_kind(field))}"))
    if len(mistakes) == before and path:  # what concerns several sections of the experiment is its reader's to word
        _check_leaf(Kind(section), checked, path, mistakes)
    return checked


def _over_default(kind: Kind, value: Any, default: Any) -> Any:
    """A section that does not say its kind is of the kind of the default, and changes what it names."""
    tag = kind.discriminator
    if tag is None or not isinstance(value, dict) or tag in value or not isinstance(default, Section):
        return value
    return {**default.model_dump(mode="json"), **value}


def is_container(kind: Kind) -> bool:
    """A section or mapping that may not be null: there, null means that all its entries are commented out."""
    if type(None) in members(kind.annotation):
        return False
    return kind.discriminator is not None or is_section(kind.annotation) or get_origin(kind.annotation) is dict


def _check_mapping(kind: Kind, value: dict[Any, Any], path: Path, mistakes: list[Mistake]) -> Any:
    key_type, value_type = get_args(kind.annotation)
    keys: TypeAdapter[Any] = TypeAdapter(key_type)
    checked: dict[Any, Any] = {}
    for key, inner in value.items():
        here = (*path, key)
        try:
            name = keys.validate_python(key)
        except ValidationError as error:
            mistakes.append(Mistake(here, f"as a key: {_reason(error, kind_of(key_type), key)}"))
            name = key
        if name in checked:
            mistakes.append(Mistake(here, f"this key is given twice, as {key!r} too"))
        checked[name] = check(kind_of(value_type), inner, here, mistakes)
    return checked


def _check_list(outer: Kind, kind: Kind, value: list[Any], path: Path, mistakes: list[Mistake]) -> Any:
    item_types = get_args(kind.annotation)
    before = len(mistakes)
    if len(item_types) == 2 and item_types[1] is Ellipsis:
        checked = [check(kind_of(item_types[0]), item, (*path, i), mistakes) for i, item in enumerate(value)]
    elif len(item_types) == len(value):
        checked = [check(kind_of(t), item, (*path, i), mistakes) for i, (t, item) in enumerate(zip(item_types, value))]
    else:
        mistakes.append(Mistake(path, f"expected {described(outer)}, got {shown(value)}"))
        return value
    if len(mistakes) == before:
        _check_leaf(outer, checked, path, mistakes)
    return checked


def _check_leaf(kind: Kind, value: Any, path: Path, mistakes: list[Mistake]) -> None:
    if isinstance(value, bool) and not _takes_bool(kind.annotation):
        mistakes.append(Mistake(path, f"expected {described(kind)}, got {shown(value)}"))
        return
    if isinstance(value, float) and not math.isfinite(value) and kind.annotation is not Any:
        mistakes.append(Mistake(path, f"expected {described(kind)}, got {shown(value)}"))
        return
    try:
        TypeAdapter(kind.whole).validate_python(value)
    except ValidationError as error:
        mistakes.append(Mistake(path, _reason(error, kind, value)))


def _takes_bool(annotation: Any) -> bool:
    return any(
        inner.annotation in (bool, Any)
        or any(
            isinstance(choice, bool) for choice in get_args(inner.annotation) if get_origin(inner.annotation) is Literal
        )
        for inner in map(kind_of, members(annotation))
    )


def _reason(error: ValidationError, kind: Kind, value: Any) -> str:
    own = [str(e["ctx"]["error"]) for e in error.errors() if e["type"] == "value_error" and "ctx" in e]
    if own:
        return "; ".join(dict.fromkeys(own))
    choices = _choices(kind)
    if choices and isinstance(value, str):
        return _expected_one(value, choices, described(kind))
    hint = ""
    if str in [kind_of(member).annotation for member in members(kind.annotation)] and isinstance(value, (int, float)):
        hint = f'; in quotes, "{value}", it is text'
    return f"expected {described(kind)}, got {shown(value)}{hint}"


def _choices(kind: Kind) -> list[str]:
    """The words that a value may be, where it may be words."""
    return [
        choice
        for member in members(kind.annotation)
        if get_origin(kind_of(member).annotation) is Literal
        for choice in get_args(kind_of(member).annotation)
        if isinstance(choice, str)
    ]


def _expected_one(value: Any, choices: list[str], expected: str | None = None) -> str:
    expected = expected or (f"one of {_listed(choices)}" if len(choices) > 1 else f"`{choices[0]}`")
    close = nearest(value, choices)
    return f"expected {expected}, got {shown(value)}" + (f"; did you mean `{close}`?" if close else "")


def nearest(name: Any, valid: Iterable[str]) -> str | None:
    """The valid name that a misspelt one is closest to, if any is close."""
    lowered = {candidate.lower(): candidate for candidate in valid}
    close = get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.6)
    return lowered[close[0]] if close else None


def _nearest_keys(name: str, keys: Iterable[Any]) -> list[str]:
    return get_close_matches(name, [str(key) for key in keys], n=1, cutoff=0.6)


def _unknown_key(key: Any, fields: Iterable[str]) -> str:
    close = nearest(key, fields)
    elsewhere = [path_text(path) for path in field_paths() if path[-1] == key]
    hint = f"; did you mean `{close}`?" if close else ""
    if elsewhere:  # spelt right
        hint = f"; `{key}` belongs at {' or '.join(elsewhere[:3])}"
    return f"there is no such key{hint}{'' if hint.endswith('?') else '.'} Valid here: {_listed(fields)}"


def _of_another_kind(key: Any, section: type[Section], value: dict[Any, Any], union: Kind) -> str:
    """What to say of a key that other alternatives of a union have; empty if none has."""
    tag = union.discriminator or ""
    others = [kind_of(member).annotation.model_fields for member in members(union.annotation)]
    kinds = [kind for fields in others if key in fields for kind in get_args(fields[tag].annotation)]
    if not kinds:
        return ""
    ours = value.get(tag, section.model_fields[tag].default)
    return (
        f"`{key}` goes with {tag}: {' or '.join(kinds)}, not with {ours}. Valid here: {_listed(section.model_fields)}"
    )


def field_paths() -> Iterator[Path]:
    """The paths of all keys of the experiment, of every kind of every section."""
    from . import Experiment

    def below(annotation: Any, path: Path) -> Iterator[Path]:
        for member in members(kind_of(annotation).annotation):
            section = kind_of(member).annotation
            if is_section(section):
                for name, field in section.model_fields.items():
                    yield (*path, name)
                    yield from below(field.annotation, (*path, name))

    yield from dict.fromkeys(below(Experiment, ()))


def described(kind: Kind) -> str:
    """What is expected, in words."""
    annotation = kind.annotation
    if kind.discriminator is not None or is_section(annotation):
        return "a section"
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        words = [json.dumps(a) if isinstance(a, bool) else f"{a}" for a in args]
        return f"`{words[0]}`" if len(words) == 1 else f"one of {_listed(words)}"
    if origin in (Union, types.UnionType):
        return _alternatives(args)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return f"a list, each {described(kind_of(args[0]))}"
        return f"a list of {len(args)}: " + ", ".join(described(kind_of(arg)) for arg in args)
    if origin is dict:
        return "a mapping"
    name = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}.get(
        annotation
    )
    return (name or "a value") + _bounds(kind.metadata)


def _alternatives(members: Iterable[Any]) -> str:
    """A list of what may stand alone, too, does not name it all a second time."""
    kinds = [kind_of(member) for member in members]
    found = list(dict.fromkeys(described(kind) for kind in kinds))
    for kind in kinds:
        items = get_args(kind.annotation)
        if get_origin(kind.annotation) is tuple and len(items) == 2 and items[1] is Ellipsis:
            alone = " or ".join(found[: found.index(described(kind))])
            if alone and described(kind_of(items[0])) == alone:
                found[found.index(described(kind))] = "a list of these"
    return " or ".join(found)


def _bounds(metadata: Iterable[Any]) -> str:
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "of at most"}
    found = [
        f"{word} {value if isinstance(value, int) else format(value, 'g')}"
        for item in metadata
        for bound, word in words.items()
        if (value := getattr(item, bound, None)) is not None
    ]
    return f" {' and '.join(found)}" if found else ""


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(str(name) for name in names)


def shown(value: Any) -> str:
    """A value as a message has it: short, in YAML's manner."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return f"a mapping with the keys {_listed(list(value)[:6])}" if value else "an empty mapping"
    if isinstance(value, float):
        return f"{value:g}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
