"""Commentary for the person at the terminal: notes, warnings, tables and progress, all on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import typer
from rich.console import Console

from sequoia_cli.core.artifact import json_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, ProgressColumn


#: Data is shown as it is, wherever it stands: nothing in it is markup or the name of an emoji.
_AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False}


class Commentary:
    """Writes to stderr, so that stdout carries data only.

    Colour and bars appear on a terminal alone (rich also heeds NO_COLOR). `quiet` leaves errors only;
    warnings are kept in `warnings` either way, for `--json`.
    """

    def __init__(self, *, quiet: bool = False, progress: bool = True) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True, **_AS_IT_IS)
        self.warnings: list[str] = []
        #: Whether there are bars, of our own or of a download.
        # FORCE_COLOR makes a file a terminal for rich, which then moves a cursor that is not there.
        seen = self.console.is_interactive and _is_terminal(sys.stderr)
        self.shows_progress = progress and not quiet and seen

    def note(self, text: str) -> None:
        """Something worth knowing: which default was chosen, what was written."""
        self._print(text, style="dim")

    def notes(self, texts: Iterable[str]) -> None:
        """Several of them."""
        for text in texts:
            self.note(text)

    def warn(self, text: str) -> None:
        """Something to act on; also kept for the JSON output."""
        self.warnings.append(text)
        self._print(f"warning: {text}", style="yellow")

    def show(self, item: RenderableType) -> None:
        """A table or a paragraph."""
        self._print(item)

    def _print(self, item: RenderableType, style: str | None = None) -> None:
        # A terminal that was closed takes no comments, and the data for stdout is still to come.
        with suppress(OSError):
            self.console.print(item, style=style)

    @contextmanager
    def progress(self, *columns: ProgressColumn) -> Iterator[Progress]:
        """A progress display, silent where there is no terminal to show it on."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        shown = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.shows_progress,
            transient=True,
            redirect_stdout=False,  # else text for stdout is printed to this console, which is stderr
            redirect_stderr=False,
        )
        with shown:
            yield shown


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def print_json(data: Mapping[str, Any]) -> None:
    """Print a command's one JSON document on stdout. Raises `SequoiaError` for NaN and infinity."""
    typer.echo(json_text(data, ascii_only=not _is_utf8(sys.stdout)), nl=False)


def _is_utf8(stream: TextIO) -> bool:
    """Whether every character can be written to `stream`; elsewhere JSON is written with escapes."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
