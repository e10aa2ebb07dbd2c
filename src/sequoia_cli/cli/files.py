"""The files that commands write: their place, and the record of how they were made."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import typer

from sequoia_cli import __version__
from sequoia_cli.cli.console import Commentary, print_json
from sequoia_cli.core.artifact import render
from sequoia_cli.core.journal import Journal
from sequoia_cli.core.paths import remember_latest
from sequoia_cli.core.writing import Output
from sequoia_cli.errors import BadInput

#: Options that do not affect the content of a file.
_PRESENTATION = {"output", "force", "json", "quiet", "no_progress", "explain"}


def command_line(context: typer.Context, without: Collection[str] = ()) -> str:
    """The command that makes a file again: long options, without defaults and without its output path.

    `without` names further options to omit.
    """
    words = ["sequoia", context.info_name or ""]
    for option in context.command.params:
        name = option.name or ""
        value = context.params.get(name)
        if name in _PRESENTATION or name in without or value is None or value == option.get_default(context):
            continue
        flag = max(option.opts, key=len)
        if isinstance(value, bool):
            words.append(flag)
        else:
            for part in value if isinstance(value, list | tuple) else [value]:
                words += [flag, _portable(str(part))]
    return shlex.join(words)


def reserved(
    context: typer.Context, path: Path | str, *, force: bool = False, allow_same: bool = False
) -> Output:
    """Reserve the output of a command until the command ends."""
    place = Output(path, force=force, allow_same=allow_same)
    context.call_on_close(place.release)
    return place


def _portable(word: str) -> str:
    """A value without absolute paths, which are private to this machine."""
    return Path(word).name if Path(word).is_absolute() else word


@contextmanager
def resumable(
    place: Output, conditions: Mapping[str, Any], say: Commentary, *, force: bool
) -> Iterator[Journal]:
    """The journal of a long measurement, next to its output. An interrupt notes that it can be resumed.

    With `force`, an unfinished run with other options is dropped instead of refused.
    """
    with _opened(place, conditions, force) as journal:
        try:
            yield journal
        except KeyboardInterrupt:
            if place.journal is not None and journal.entries:
                say.note(f"measurements so far are kept in {place.journal}; the same command resumes")
            raise


def _opened(place: Output, conditions: Mapping[str, Any], force: bool) -> Journal:
    try:
        return Journal(place.journal, conditions, replace=force)
    except BadInput as error:
        raise BadInput(
            error.message, hint="choose another path with -o, or drop the unfinished run with --force"
        ) from None


def record(context: typer.Context, packages: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
    """The record of how a measured file was made."""
    entries: dict[str, Any] = {
        "command": command_line(context),
        "version": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    optional = {"packages": dict(packages), "warnings": list(warnings)}
    return entries | {key: value for key, value in optional.items() if value}


def publish(kind: str | None, data: Mapping[str, Any], place: Output, as_json: bool, say: Commentary) -> None:
    """Write a file, remember it as the latest of its `kind` (None: do not), and print it if `as_json`."""
    place.write(render(data, "json" if as_json and place.is_stdout else "yaml"))
    if not place.is_stdout:
        if kind is not None and not place.is_stream:
            remember_latest(kind, place.path)
        say.note(f"wrote {place.path}")
        if as_json:
            print_json(data)
