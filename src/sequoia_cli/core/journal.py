"""Unfinished measurements, kept line by line beside the file they will become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from sequoia_cli.core.parsing import parse_json
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.errors import SequoiaError


class Journal:
    """A `.partial` file of JSON lines: first what is measured, then one line per finished piece.

    A run with the same conditions continues where the last one stopped; other conditions begin anew. Without
    a path (the output is stdout) nothing is kept.
    """

    def __init__(self, path: Path | None, conditions: Mapping[str, Any]) -> None:
        self.entries: list[dict[str, Any]] = []
        self._file: IO[str] | None = None
        if path is None:
            return
        header = json.loads(json.dumps(conditions))
        self.entries = _read(path, header)
        # Written anew, so that a line cut off by a kill does not stay in the middle of the file.
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
        """Let go of the file; what is in it stays."""
        if self._file is not None:
            with suppress(OSError):  # every line was flushed: a failure was told of there
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


def _read(path: Path, header: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of a journal of the same conditions, up to the first line that a kill left unfinished."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    found: list[dict[str, Any]] = []
    for line in lines:
        try:
            found.append(parse_json(line))
        except ValueError:
            break
    return found[1:] if found and found[0] == header else []
