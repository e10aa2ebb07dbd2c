"""Unfinished measurements, kept line by line beside the file they will become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sequoia_cli.core.parsing import parse_json, shown
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.errors import BadInput, SequoiaError


class Journal:
    """A `.partial` file of JSON lines: first what is measured, then one line per finished piece.

    A run with the same conditions resumes the last one. Raises `BadInput` where finished pieces of other
    conditions would be lost, unless `replace` says that they may be. Without a path (the output is stdout)
    nothing is kept.
    """

    def __init__(self, path: Path | None, conditions: Mapping[str, Any], *, replace: bool = False) -> None:
        self.entries: list[dict[str, Any]] = []
        self.path = path
        self._file: IO[str] | None = None
        if path is None:
            return
        header = json.loads(json.dumps(conditions, allow_nan=False))
        found, entries = _read(path)
        if found == header:
            self.entries = entries
        elif entries and not replace:
            raise BadInput(
                f"{path} holds {len(entries)} finished pieces of a run of other options: "
                f"{_difference(found, header)}"
            )
        # Written again, so that a line cut off by a kill does not stay in the middle of the file.
        write_atomically(path, "".join(map(_line, (header, *self.entries))))
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise SequoiaError(f"{path} could not be written: {error.strerror}") from None

    def add(self, entry: Mapping[str, Any]) -> None:
        """Keep one more finished piece."""
        self.entries.append(dict(entry))
        self._write(entry)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; what is in it stays."""
        if self._file is not None:
            with suppress(OSError):  # every line was flushed, and a failure reported there
                self._file.close()

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_line(line))
            self._file.flush()
        except OSError as error:
            raise SequoiaError(f"{self._file.name} could not be written: {error.strerror}") from None


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, allow_nan=False) + "\n"


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a journal measures, and its entries up to the first line that a kill left unfinished."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}, []
    found: list[Any] = []
    for line in lines:
        try:
            found.append(parse_json(line))
        except ValueError:
            break
    if not all(isinstance(each, dict) for each in found) or not found or not found[0]:
        return {}, []  # no journal
    return found[0], found[1:]


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The conditions that differ, in words; one that is missing is None."""
    keys = [key for key in {**here, **there} if there.get(key) != here.get(key)]
    return "; ".join(f"{key} {shown(there.get(key))} there, {shown(here.get(key))} here" for key in keys)
