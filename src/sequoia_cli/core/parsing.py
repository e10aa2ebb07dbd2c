"""JSON and YAML text as plain values, read strictly: nothing is dropped, guessed or expanded in silence."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

#: How deep lists and mappings may be nested. Our own files are at most 5 deep.
MAX_DEPTH = 64

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

#: Scalars that are no strings, as in the core schema of YAML 1.2 (10.3.2): tag, pattern, first characters.
#: YAML 1.1, the library's default, reads 1e-3 as a string, 1:30 as 90, 010 as 8 and `no` as false.
_SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


class NotPlain(ValueError):
    """A value that these files cannot hold; the text says which and why."""


def parse(text: str) -> Any:
    """The value of a JSON or YAML text: mappings, lists, strings, finite numbers, booleans and None.

    Raises `NotPlain` for a repeated key, a YAML alias, a number that is not finite, half of a surrogate pair
    and too deep nesting; `yaml.YAMLError` or `ValueError` for a text that is neither JSON nor YAML.
    """
    try:
        value = parse_json(text)
    except NotPlain:
        raise
    except ValueError:  # YAML reads JSON-like text too, and names the line of what is wrong
        value = yaml.load(text, _Loader)
        check_plain(value)
    return value


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `NotPlain` as `parse` does, `ValueError` for what is no JSON."""
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise NotPlain("it is nested too deeply") from None
    check_plain(value)
    return value


def check_plain(value: Any) -> None:
    """Raise `NotPlain`, naming the key, for what a file cannot hold or another program cannot read."""
    # A stack in place of recursion: the depth is what is checked here.
    left: list[tuple[Any, tuple[Any, ...]]] = [(value, ())]
    while left:
        item, path = left.pop()
        if len(path) > MAX_DEPTH:
            raise NotPlain("it is nested too deeply")
        if isinstance(item, Mapping):
            for key, inner in item.items():
                if isinstance(key, str):
                    _check_text(key, path)
                left.append((inner, (*path, key)))
        elif isinstance(item, list | tuple):
            left.extend((inner, (*path, number)) for number, inner in enumerate(item, 1))
        elif isinstance(item, str):
            _check_text(item, path)
        elif isinstance(item, float):
            if not math.isfinite(item):
                raise NotPlain(f"{_place(path)} is {item}; expected a finite number")
        elif item is not None and not isinstance(item, int):
            raise NotPlain(f"{_place(path)} is a {type(item).__name__}; expected a text or a number")


def shown(value: Any) -> str:
    """A value as messages show it: on one line, and not too long."""
    if isinstance(value, list | tuple | str) and len(value) > 60:
        value = value[:60]  # so that a large value is not written out only to be cut
    return cut(repr(value), 60)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and three dots where it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def dump_yaml(data: Any) -> str:
    """YAML that `parse`, and readers of YAML 1.1 as well, read back as the same value."""
    # Flow style below the top level keeps a pair on one line, and a file short enough to read and diff.
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True
    )


def _check_text(text: str, path: tuple[Any, ...]) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotPlain(f"{_place(path)} is {shown(text)}; it holds half of a surrogate pair") from None


def _place(path: tuple[Any, ...]) -> str:
    """A path of keys and entry numbers, such as 'conditions.x' or 'p', entry 3."""
    if not path:
        return "the whole"
    keys = [str(step)[:60].encode("ascii", "backslashreplace").decode() for step in path]
    split = next((number for number, step in enumerate(path) if isinstance(step, int)), len(path))
    name = f"'{'.'.join(keys[:split])}'" if split else ""
    entries = f"entry {'.'.join(keys[split:])}" if split < len(path) else ""
    return ", ".join(filter(None, (name, entries)))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise NotPlain(f"the key {shown(key)} is there twice")
        found[key] = value
    return found


class _Loader(_Base):
    """Safe YAML without aliases, merge keys, dates and repeated keys; scalars are those of YAML 1.2."""

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}
    #: Nothing else is made of a text, whatever tag it carries.
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: _Base.yaml_constructors[tag]
        for tag in (None, *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "float", "null", "seq", "map")))
    }

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        # A node comes a second time only through an alias. A few lines of them can stand for gigabytes.
        if node in self.constructed_objects or node in self.recursive_objects:
            line = node.start_mark.line + 1
            raise NotPlain(f"the value at line {line} is used again through an alias; write it out")
        return super().construct_object(node, deep)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            where = f"line {key_node.start_mark.line + 1}"
            key = self.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else ()
            if not isinstance(key, str | int | float | None):
                raise NotPlain(f"a key at {where} is a list or a mapping; expected a word or a number")
            if key in found:
                raise NotPlain(f"the key {shown(key)} is there twice, the second time at {where}")
            found[key] = self.construct_object(value_node, deep)
        return found


_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(loader.construct_scalar(node)))
_Loader.add_constructor(
    "tag:yaml.org,2002:bool", lambda loader, node: loader.construct_scalar(node).lower() == "true"
)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML 1.1 or 1.2 would read as something else; writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _SCALARS:
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first)
        )
