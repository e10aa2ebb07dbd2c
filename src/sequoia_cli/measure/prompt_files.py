"""Reading records from files, folders, stdin and datasets.

`prompts.py` turns records into prompts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from sequoia_cli.core.artifact import stdin_bytes
from sequoia_cli.core.parsing import cut, shown
from sequoia_cli.core.paths import package_data
from sequoia_cli.errors import BadInput, SequoiaError

_SPLITS = ("test", "validation", "train")  # the split least likely to be trained on comes first
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
#: True values of environment variables, as in the hub's libraries.
_TRUE = ("1", "ON", "YES", "TRUE")
#: The most characters of another library's message to show.
_MOST_SHOWN = 600
_KINDS = (
    "a .jsonl, .json or .txt file, a folder of .txt and .md files, or a Hugging Face dataset (owner/name)"
)

#: The longest line, newline included: a stream without line breaks would fill the memory.
MAX_LINE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Record:
    """A value, its location for messages (`where`), and the id to use if it has none.

    `value` is a `BadInput` if this record could not be read though later ones may be.
    """

    where: str
    id: str
    value: Any


def open_source(source: str | None, *, whole: bool = False) -> tuple[str, Iterator[Record]]:
    """The name of a source and its records, read lazily; None is the built-in set.

    `whole`: all records will be read, so a dataset of the hub is downloaded to its cache.
    """
    if source is None:
        path = package_data("prompts", "builtin.jsonl")
        return "built-in", _json_lines(_opened(path, "built-in"), "built-in")
    if source == "-":
        return "stdin", _json_or_text_lines(stdin_bytes(), "stdin")
    path = Path(os.path.expanduser(source))
    if os.path.isdir(path):
        return source, _folder(path, source)
    if reader := _READERS.get(path.suffix.lower()):
        return source, reader(_opened(path, source), source)
    if os.path.exists(path):
        if not path.suffix:  # includes a shell's <(command)
            return source, _json_or_text_lines(_opened(path, source), source)
        raise BadInput(f"{source} has an unknown extension; expected {_KINDS}")
    name, _, part = source.partition(":")
    # A path, or a name in an existing folder, is a typing error, not a dataset.
    if not _HUB_ID.fullmatch(name) or os.path.isdir(path.parent):
        raise BadInput(f"{source} does not exist; expected {_KINDS}")
    return source, _hub(name, part, source, whole)


def _opened(path: Path, source: str) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise BadInput(f"{source} does not exist; expected {_KINDS}") from None
    except OSError as error:
        raise BadInput(f"{source} cannot be read: {error.strerror}") from None


def _read(stream: BinaryIO, source: str) -> str:
    with stream:
        return "".join(text for _, text in _decoded(stream, source))


def _decoded(stream: BinaryIO, source: str) -> Iterator[tuple[int, str]]:
    """The lines of a stream with their numbers, read lazily: a stream may be endless."""
    for number in count(1):
        try:
            raw = stream.readline(MAX_LINE_BYTES)
        except OSError as error:
            raise BadInput(f"{source} cannot be read: {error.strerror}") from None
        if not raw:
            return
        if len(raw) == MAX_LINE_BYTES:
            raise BadInput(f"{source}, line {number}: longer than {MAX_LINE_BYTES >> 20} MiB")
        try:
            yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
            raise BadInput(f"{source}, line {number}: {found}", hint="save the file as UTF-8 text") from None


def _lines(stream: BinaryIO, source: str) -> Iterator[tuple[str, str, str]]:
    for number, line in _decoded(stream, source):
        if line.strip():
            yield f"{source}, line {number}", str(number), line.strip()


def _text_lines(stream: BinaryIO, source: str) -> Iterator[Record]:
    return (Record(where, number, line) for where, number, line in _lines(stream, source))


def _json_lines(stream: BinaryIO, source: str) -> Iterator[Record]:
    return (Record(where, number, _value(line, where)) for where, number, line in _lines(stream, source))


def _json_or_text_lines(stream: BinaryIO, source: str) -> Iterator[Record]:
    """JSON lines if the first non-blank line starts with a brace, else lines of text."""
    is_json: bool | None = None
    for where, number, line in _lines(stream, source):
        if is_json is None:
            is_json = line.startswith("{")
        yield Record(where, number, _value(line, where) if is_json else line)


def _json_list(stream: BinaryIO, source: str) -> Iterator[Record]:
    values = _parsed(_read(stream, source), source)
    if not isinstance(values, list):
        hint = "one JSON object per line belongs in a .jsonl file"
        raise BadInput(f"{source}: expected a list of prompts, found {shown(values)}", hint=hint)
    return (Record(f"{source}, entry {n}", str(n), value) for n, value in enumerate(values, 1))


def _value(line: str, where: str) -> Any:
    """The parsed value of a line, or the error if it is not JSON."""
    try:
        return _parsed(line, where)
    except BadInput as error:
        return error


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise BadInput(f"{where}: not valid JSON at {place}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise BadInput(f"{where}: unreadable JSON: {error}") from None


def _folder(path: Path, source: str) -> Iterator[Record]:
    files = sorted(
        file for file in path.iterdir() if file.suffix.lower() in (".txt", ".md") and file.is_file()
    )
    if not files:
        raise BadInput(f"{source} holds no .txt or .md file; each such file is one prompt")
    return (
        Record(str(file), file.name, _read(_opened(file, str(file)), str(file)).strip()) for file in files
    )


def _hub(name: str, part: str, source: str, whole: bool) -> Iterator[Record]:
    try:
        import datasets
        from huggingface_hub import HfApi, constants
    except ImportError:
        hint = "pip install 'sequoia-cli[datasets]', or give a file of prompts"
        raise BadInput(f"{source} needs the package `datasets`, which is not installed", hint=hint) from None
    config, _, split = part.rpartition(":")
    offline = constants.HF_HUB_OFFLINE or os.environ.get("HF_DATASETS_OFFLINE", "").upper() in _TRUE
    try:
        if not offline:  # a quick request first: without a network, load_dataset retries for half a minute
            HfApi().dataset_info(name, timeout=10)
        # Stream a few prompts instead of downloading all; the cache holds only whole datasets.
        streaming = not offline and not whole
        rows = datasets.load_dataset(name, config or None, split=split or None, streaming=streaming)
        if not split:
            rows = rows[next((s for s in _SPLITS if s in rows), next(iter(rows)))]
        yield from (Record(f"{source}, row {n}", str(n), row) for n, row in enumerate(rows, 1))
    except Exception as error:  # the library, the network or the dataset's code may raise anything
        # Some messages list configurations on many lines.
        reason = cut(" ".join(str(error).split()), _MOST_SHOWN) or type(error).__name__
        hint = "check the name (owner/name, owner/name:SPLIT, owner/name:CONFIG:SPLIT) and the network"
        if offline:
            hint = "offline, only datasets that were read whole (without a limit) while online are available"
        raise SequoiaError(f"the dataset {source} could not be read: {reason}", hint) from None


_READERS: dict[str, Callable[[BinaryIO, str], Iterator[Record]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_list,
    ".txt": _text_lines,
}
