"""Loading and encoding the prompts of a command, with hints on the flags that help with bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sequoia_cli.cli.console import Commentary
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import BadRow, MissingKey, Prompt, PromptSet, left_out, load_prompts

if TYPE_CHECKING:
    from sequoia_cli.measure.session import Session

_SKIP_BAD = "--skip-bad skips such prompts"


def read_rows(
    source: str | None,
    say: Commentary,
    *,
    limit: int | None = None,
    skip: int | None = None,
    column: str | None = None,
    skip_bad: bool = False,
) -> PromptSet:
    """Load the prompts of a source (see `load_prompts`) and show its notes."""
    try:
        found = load_prompts(source, limit=limit, skip=skip or 0, column=column, skip_bad=skip_bad)
    except MissingKey as error:
        raise BadInput(error.message, "name the key with --column") from None
    except BadRow as error:
        raise BadInput(error.message, error.hint or _SKIP_BAD) from None
    say.notes(found.notes)
    return found


def encoded(
    session: Session,
    prompts: Sequence[Prompt],
    say: Commentary,
    *,
    raw: bool,
    skip_bad: bool = False,
    rows: bool = True,
) -> list[tuple[Prompt, list[int]]]:
    """The prompts with their ids. Raises `BadInput` for one that the target cannot take.

    With `skip_bad`, such prompts are skipped and named in a note; raises if none is left. `rows`: the prompts
    come from a source, so the hint may suggest --skip-bad.
    """
    found, bad = [], []
    for prompt in prompts:
        try:
            found.append((prompt, session.encode(prompt, raw=raw)))
        except BadInput as error:
            if not skip_bad:
                raise BadInput(error.message, error.hint or (_SKIP_BAD if rows else None)) from None
            bad.append(error.message)
    if not found:
        raise BadInput(f"the target can take none of the {len(bad)} prompts; the first: {bad[0]}")
    if bad:
        say.note(left_out(bad, "prompts"))
    return found
