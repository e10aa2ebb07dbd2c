"""Stdin, stdout and stderr as this process was given them: closed, narrow, or gone."""

from __future__ import annotations

import io
import os
import sys

from sequoia_cli.errors import SequoiaError


class _ClosedStdout(io.TextIOBase):
    """Stands for a stdout that was closed before the start; not `writable`, as its base says."""

    def write(self, text: str) -> int:
        raise SequoiaError("stdout is closed; there is nowhere to print to")


def prepare_streams() -> None:
    """Make printing safe: data is UTF-8, whatever the locale; what a stream cannot show ends no run."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next file that is opened gets this number, and what is printed lands in it.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _ClosedStdout()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:  # half of a surrogate pair is escaped as JSON has it
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")
