"""The prompts of a command, as far as they can be used; what is wrong with others, and which flag helps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sequoia_cli.cli.console import Commentary
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import BadRow, MissingKey, Prompt, PromptSet, left_out, load_prompts

if TYPE_CHECKING:
    from sequoia_cli.measure.session import Session

_SKIP_BAD = "--skip-bad leaves such prompts out"


def read_rows(
    source: str | None,
    say: Commentary,
    *,
    limit: int | None = None,
    skip: int | None = None,
    column: str | None = None,
    skip_bad: bool = False,
) -> PromptSet:
    """The prompts of a source (see `load_prompts`); says what was made of them."""
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

    With `skip_bad`, such prompts are left out and named instead; raises where none is left. `rows` tells that
    they come from a source of which some can be left out.
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
        raise BadInput(f"the target can take no prompt; the first of {len(bad)}: {bad[0]}")
    if bad:
        say.note(left_out(bad, "prompts"))
    return found
