"""Reading and writing the project's files: their keys and values checked, and their text."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import yaml

from sequoia_cli.core.parsing import NotPlain, check_plain, dump_yaml, parse, shown
from sequoia_cli.errors import BadInput, SequoiaError

#: What a file may say about how it was made; carried along, never interpreted.
RECORD_KEYS = ("command", "version", "created", "packages", "warnings", "notes")

#: Largest file that is read. Rates of a thousand prompts take about 1 MB.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Document:
    """A parsed JSON or YAML file: where it came from, what it holds, and the digest of its bytes."""

    source: str
    data: Any
    digest: str


def read_document(path: Path | str) -> Document:
    """Read a JSON or YAML file; `-` is stdin. Raises `BadInput` for what cannot be read or parsed."""
    source = "stdin" if str(path) == "-" else str(path)
    if source == "stdin":
        return parse_document(stdin_bytes().read(MAX_BYTES + 1), source)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise BadInput(f"{source} is a directory; a file is expected") from None
    except FileNotFoundError:
        raise BadInput(f"{source} does not exist") from None
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error.strerror}") from None
    except ValueError as error:  # a path with a null character
        raise BadInput(f"{source!r} cannot be read: {error}") from None
    return parse_document(raw, source)


def stdin_bytes() -> BinaryIO:
    """Stdin as bytes. Raises `BadInput` where it was closed before the command started."""
    if sys.stdin is None or sys.stdin.closed:
        raise BadInput("stdin is closed; it was to be read", hint="give a file in place of -")
    return sys.stdin.buffer


def parse_document(raw: bytes, source: str) -> Document:
    """Parse the bytes of a JSON or YAML file; `source` names it in messages."""
    if raw[:2] == b"PK" or raw[:1] == b"\x80":
        raise BadInput(
            f"{source} is a pickle or torch archive, which is never loaded here",
            hint="trees, profiles and rates are JSON or YAML text",
        )
    if len(raw) > MAX_BYTES:
        raise BadInput(f"{source} is larger than {MAX_BYTES >> 20} MiB; a file of this project is expected")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise BadInput(f"{source} is not text in UTF-8; JSON or YAML is expected") from None
    if not text.strip():
        raise BadInput(f"{source} is empty; JSON or YAML is expected")
    try:
        data = parse(text)
    except NotPlain as error:
        raise BadInput(f"{source}: {error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not valid JSON or YAML"
        raise BadInput(f"{source} cannot be parsed{where}: {problem}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{source} cannot be parsed: {error}") from None
    return Document(source, data, "sha256:" + hashlib.sha256(raw).hexdigest())


class Fields:
    """Checked access to the keys of a mapping read from a file; every complaint names file, key and value.

    `schema` is what the file has to be (`name/version`, or one of `older`); hand-written files may leave it
    out where it is not `required`, and a mapping within a file has none. It is checked before the `known`
    keys, so that a file of another kind is named as that.
    """

    def __init__(
        self,
        source: str,
        data: Any,
        known: Iterable[str],
        what: str,
        schema: str | None = None,
        *,
        older: tuple[str, ...] = (),
        required: bool = True,
    ) -> None:
        if not isinstance(data, Mapping):
            raise BadInput(f"{source}: a {what} is a mapping of keys to values, found {shown(data)}")
        self.source, self.data = source, data
        if schema is not None:
            self._check_schema(schema, older, required)
        known = list(known)
        for key in data:
            if key not in known:
                close = difflib.get_close_matches(str(key)[:60], known, n=1)
                guess = f"; did you mean '{close[0]}'?" if close else ""
                raise BadInput(f"{source}: unknown key '{str(key)[:60]}' in a {what}{guess}")

    def wrong(self, key: str, expected: str) -> BadInput:
        """The error for a key whose value is not what is expected."""
        return BadInput(f"{self.source}: '{key}' is {shown(self.data.get(key))}; expected {expected}")

    def require(self, key: str) -> Any:
        """The value of a key that must be there."""
        if key not in self.data:
            found = ", ".join(map(str, self.data))[:200] or "none"
            raise BadInput(f"{self.source}: key '{key}' is missing; found {found}")
        return self.data[key]

    def _check_schema(self, expected: str, older: tuple[str, ...], required: bool) -> None:
        found = self.require("schema") if required else self.data.get("schema", expected)
        if found in (expected, *older):
            return
        name, _, _ = expected.partition("/")
        if isinstance(found, str) and found.startswith(name + "/"):
            raise BadInput(
                f"{self.source}: schema {found[:60]} is not known to this version, which reads {expected}",
                hint="update sequoia, or make the file again with this version",
            )
        raise self.wrong("schema", f"'{expected}'")

    def text(self, key: str, default: str | None = None) -> str:
        """A string, or `default` where the key is missing."""
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping with string keys; empty where the key is missing."""
        value = self.data.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a mapping")
        return {str(k): v for k, v in value.items()}

    def pairs(self, key: str) -> tuple[tuple[int, float], ...]:
        """A non-empty list of pairs [tokens, seconds]: tokens rising from at least 1, seconds positive."""
        value = self.require(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(key, "a list of pairs [tokens, seconds]")
        pairs: list[tuple[int, float]] = []
        for index, pair in enumerate(value):
            where = f"{self.source}: '{key}' entry {index + 1}"
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise BadInput(f"{where} is {shown(pair)}; expected a pair [tokens, seconds]")
            tokens, seconds = pair
            if not is_count(tokens):
                raise BadInput(f"{where} has tokens {shown(tokens)}; expected a whole number of at least 1")
            if not is_number(seconds) or not seconds > 0:
                raise BadInput(f"{where} has seconds {shown(seconds)}; expected a number above 0")
            if pairs and tokens <= pairs[-1][0]:
                raise BadInput(f"{where} has tokens {tokens} after {pairs[-1][0]}; tokens must rise")
            pairs.append((tokens, float(seconds)))
        return tuple(pairs)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number (booleans are not)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number of at least 1 (booleans are not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def render(data: Mapping[str, Any], style: Literal["json", "yaml"]) -> str:
    """The text of an artefact: one line per key, lists on one line, keys in the order given.

    Raises `SequoiaError` for what a file cannot hold, such as a number that is not finite.
    """
    try:
        check_plain(data)
    except NotPlain as error:
        raise SequoiaError(f"a result cannot be written: {error}") from None
    return json_text(data) if style == "json" else dump_yaml(dict(data))


def json_text(data: Mapping[str, Any], *, ascii_only: bool = False) -> str:
    """A JSON document: one line per key, in the order given. Raises `SequoiaError` for NaN and infinity."""
    lines = []
    for key, value in data.items():
        try:
            text = json.dumps(value, ensure_ascii=ascii_only, allow_nan=False)
        except ValueError:
            raise SequoiaError(
                f"a result cannot be written: '{key}' holds a number that is not finite"
            ) from None
        lines.append(f" {json.dumps(str(key), allow_nan=False)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
