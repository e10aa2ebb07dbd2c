"""Commentary on stderr: notes, warnings, tables and progress bars."""

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


#: Show text literally, without markup or emoji names.
_LITERAL: dict[str, Any] = {"markup": False, "emoji": False}


class Commentary:
    """Writes to stderr, so that stdout has only data.

    Colour and progress bars appear only on a terminal (rich also obeys NO_COLOR). `quiet` shows only errors.
    `warnings` keeps all warnings, for `--json`.
    """

    def __init__(self, *, quiet: bool = False, progress: bool = True) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True, **_LITERAL)
        self.warnings: list[str] = []
        #: Whether progress bars are shown, ours or those of downloads.
        # With FORCE_COLOR rich takes a file for a terminal and would move the cursor in it.
        interactive = self.console.is_interactive and _is_terminal(sys.stderr)
        self.shows_progress = progress and not quiet and interactive

    def note(self, text: str) -> None:
        """Show information: which default was chosen, what was written."""
        self._print(text, style="dim")

    def notes(self, texts: Iterable[str]) -> None:
        """Show several notes."""
        for text in texts:
            self.note(text)

    def warn(self, text: str) -> None:
        """Show a warning, which is also kept for the JSON output."""
        self.warnings.append(text)
        self._print(f"warning: {text}", style="yellow")

    def show(self, item: RenderableType) -> None:
        """Show a table or a paragraph."""
        self._print(item)

    def _print(self, item: RenderableType, style: str | None = None) -> None:
        # If the terminal was closed, the data for stdout must still be written.
        with suppress(OSError):
            self.console.print(item, style=style)

    @contextmanager
    def progress(self, *columns: ProgressColumn) -> Iterator[Progress]:
        """A progress display; silent without a terminal."""
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
            redirect_stdout=False,  # else rich prints text for stdout to this console, which is stderr
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
    """Whether `stream` can encode every character; if not, JSON is written with escapes."""
    return (stream.encoding or "").lower().replace("-", "") == "utf8"
