"""Other people's files and libraries: what they raise, said in one line of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import logging

from sequoia_cli.engine.loading.sources import Source
from sequoia_cli.errors import BadInput, SequoiaError, out_of_memory


def read_json(source: Source, path: Path) -> dict[str, Any]:
    """A JSON object of a model folder. Raises `BadInput` where the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{source}: {path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{source}: {path} is no JSON object")
    return found


@contextmanager
def refusing(what: str, hint: str | None = None) -> Iterator[None]:
    """Turn whatever transformers raises over a user's file into one line that begins with `what`."""
    try:
        with quiet():
            yield
    except SequoiaError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise BadInput(f"{what}: {first_line(error)}", hint=hint) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' own reports and bars off the terminal; what matters in them is said by us."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """What an error says first, on one line; its type where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
