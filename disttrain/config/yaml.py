"""YAML in and out, by the rules of YAML 1.2, with the line of every key; and the paths by which overrides reach in.

PyYAML follows YAML 1.1, where `no` is false, `1e-3` is text, `12:30` is a number and `2013-10-01` is a date. Here only
`true` and `false` are booleans, `1e-3` is a number, and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

Path = tuple[Any, ...]
"""Where something stands in a YAML file: keys (text, as a rule) and list indices, from the top."""


class YamlError(ValueError):
    """The text is not the YAML that we take. The message names the line where one is known."""


_CORE_SCHEMA: list[tuple[str, str, str]] = [
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"^<<$", "<"),
]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would read as something else than text."""

    yaml_implicit_resolvers = {first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()}

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _CORE_SCHEMA:
    # "\0" stands for the empty scalar, which PyYAML looks up under the empty string.
    _letters = ["" if letter == "\0" else letter for letter in _first]
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _letters)
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), _letters)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)


class Document(NamedTuple):
    """One YAML document, read."""

    value: Any
    lines: dict[Path, int]
    """The line, from 1, of each key and item."""
    repeated: dict[Path, str]
    """Keys that are given more than once, and what to say about it."""


def parse_yaml(text: str) -> Document:
    """Read one YAML document; an empty one is None.

    Raises:
        YamlError: bad syntax, a tag of Python objects, or more than one document.
    """
    document = Document(None, {}, {})
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return document if node is None else document._replace(value=_plain(loader, node, (), document, ()))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = error.problem or error.context or "it cannot be read"
        raise YamlError(where + reason.replace("but found another document", "a second document begins")) from None
    except yaml.reader.ReaderError as error:
        raise YamlError(f"the character at position {error.position} is not allowed in YAML") from None
    except RecursionError:
        raise YamlError("it is nested too deeply") from None


def _plain(loader: _Loader, node: yaml.Node, path: Path, document: Document, parents: tuple[yaml.Node, ...]) -> Any:
    if node in parents:
        raise YamlError(f"line {node.start_mark.line + 1}: an alias stands within what it refers to")
    parents = (*parents, node)
    document.lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        _note_repeated(loader, node, path, document)
        loader.flatten_mapping(node)  # resolves `<<`; keys of the mapping itself come last and win
        value: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise YamlError(f"line {key_node.start_mark.line + 1}: a key must be text, got {key!r}")
            document.lines[(*path, key)] = key_node.start_mark.line + 1
            value[key] = _plain(loader, value_node, (*path, key), document, parents)
        return value
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*path, i), document, parents) for i, item in enumerate(node.value)]
    try:
        return loader.construct_object(node, deep=True)
    except (ValueError, LookupError, AttributeError) as error:  # `!!int abc`, a number of thousands of digits
        kind = node.tag.rpartition(":")[2]
        raise YamlError(
            f"line {node.start_mark.line + 1}: {str(node.value)[:40]!r} cannot be read as {kind}"
        ) from error


def _note_repeated(loader: _Loader, node: yaml.MappingNode, path: Path, document: Document) -> None:
    seen: dict[Any, int] = {}
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key, line = loader.construct_object(key_node), key_node.start_mark.line + 1
        if key in seen:
            document.repeated[(*path, key)] = f"this key is given twice, in line {seen[key]} and in line {line}"
        seen.setdefault(key, line)


def dump_yaml(value: Any) -> str:
    """Write plain values so that `parse_yaml` reads back an equal value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110)


_TOKEN = re.compile(r"""\s*(?:\["([^"]*)"\]|\['([^']*)'\]|\[([^\]]*)\]|([^.\[\]]+))(?:\.(?=.)|(?=\[)|$)""")


def parse_path(text: str) -> Path:
    """Read a path as overrides and messages write it: `sampling.fanout.0`, `model.relations["paper,to,author"].conv`.

    Brackets may hold a key that has dots in it, quoted or not (shells eat quotes), or an index.

    Raises:
        YamlError: if it cannot be read as a path.
    """
    path: list[str | int] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise YamlError(f'{text!r} is not a path such as a.b.c, a.0 or a["b,c,d"]')
        double, single, bare, plain = match.groups()
        quoted = double if double is not None else single
        token = quoted if quoted is not None else (bare if bare is not None else plain).strip()
        if not token:
            raise YamlError(f"{text!r} has an empty part")
        path.append(int(token) if quoted is None and token.isdecimal() else token)
        position = match.end()
    if not path:
        raise YamlError("the path is empty")
    return tuple(path)


def path_text(path: Path) -> str:
    """Write a path so that `parse_path` reads it back."""
    return "".join(_step(step, first=i == 0) for i, step in enumerate(path))


def _step(step: str | int, first: bool) -> str:
    if isinstance(step, int) and not isinstance(step, bool):
        return f"[{step}]"
    text = str(step)
    if re.fullmatch(r"[\w\-]+", text) and not text.isdecimal():
        return text if first else f".{text}"
    return f'["{text}"]'


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that is not a mapping, with its path; an empty mapping counts as a value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    else:
        yield path, value
