"""Making stdin, stdout and stderr safe to use: they may be closed, or have a narrow encoding."""

from __future__ import annotations

import io
import os
import sys

from sequoia_cli.errors import SequoiaError


class _ClosedStdout(io.TextIOBase):
    """Stands in for a stdout that was closed before the start."""

    def write(self, text: str) -> int:
        raise SequoiaError("stdout is closed; there is nowhere to print to")


def prepare_streams() -> None:
    """Make printing safe: data is UTF-8 in every locale, and characters that cannot be shown are no error."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Else the next opened file gets this descriptor, and printed text goes into it.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _ClosedStdout()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="replace")
        else:  # escape half of a surrogate pair, as JSON does
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")
