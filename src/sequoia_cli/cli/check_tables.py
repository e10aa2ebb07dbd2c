"""What `sequoia check` found, as tables for the person at the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sequoia_cli.cli.check_report import token_texts
from sequoia_cli.cli.render import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from sequoia_cli.check.laws import Cell
    from sequoia_cli.check.verdict import Control, Judged, Verdict
    from sequoia_cli.measure.session import Session

#: Outcomes of a first token that are shown.
_SHOWN = 8


def summary(verdict: Verdict, session: Session) -> Iterator[Table | str]:
    """What was checked, what was found, and what would have been found."""
    check = verdict.check
    if not check.ours:
        return
    yield _texts(verdict, session)
    if check.differences:
        yield _differences(verdict, session)
    else:
        yield f"all {len(check.ours)} greedy texts equal plain decoding's, id for id"
    if verdict.tests:
        yield _tests(verdict)
        if first := next((one for one in verdict.tests if one.test.prompt), None):
            yield _first_tokens(first, session)
    for control in verdict.controls:
        yield f"control, {control.name}: {_caught(control)}"
    yield _closing(verdict)


def _texts(verdict: Verdict, session: Session) -> Table:
    from sequoia_cli.check.texts import SLACK

    table = plain_table(
        f"texts, read by the target's own forward in {session.conditions['dtype']} and in a wider dtype",
        *("texts", "number", "tokens", "wrong tokens", "wrong logits", "off by", "wrong ends"),
    )
    for way, texts in verdict.texts.items():
        errors = [row.error / row.rounding for text in texts for row in text.rows]
        table.add_row(
            way,
            str(len(texts)),
            str(len(errors)),
            str(sum(len(text.wrong_tokens) for text in texts)) if texts and texts[0].greedy else "",
            str(sum(len(text.wrong_rows) for text in texts)),
            f"{max(errors, default=0.0):.2f}",
            str(sum(text.end is not None for text in texts)),
        )
    table.caption = f"off by: the largest error, in units of the target's own rounding; wrong above {SLACK:g}"
    table.caption_justify = "left"
    return table


def _differences(verdict: Verdict, session: Session) -> Table:
    table = plain_table(
        "where greedy texts leave plain decoding's",
        *("prompt", "place", "tree", "plain", "top-2 gap", "below", "rounding", "verdict"),
    )
    for one in verdict.check.differences:
        ours, plain = token_texts(session, one.tokens)
        table.add_row(
            one.prompt,
            str(one.place),
            repr(ours),
            repr(plain),
            f"{one.gap:.2g}",
            f"{max(one.shortfalls):.2g}",
            f"{one.rounding:.2g}",
            "tied" if one.within_rounding else "WRONG",
        )
    table.caption = "below: of the two tokens' logits, by how much the lower one is below the largest,"
    table.caption += " in the wider dtype; tied: rounding may put either first"
    table.caption_justify = "left"
    return table


def _tests(verdict: Verdict) -> Table:
    from sequoia_cli.check.verdict import ALPHA

    table = plain_table(
        f"{verdict.check.tally.tokens} sampled tokens beside their exact law",
        *("test", "prompt", "tokens", "cells", "p", "adjusted", "sees"),
    )
    for one in verdict.tests:
        test = one.test
        table.add_row(
            test.name,
            test.prompt or "all",
            str(test.count),
            str(sum(map(len, test.cells.values())) or 2),
            f"{test.p_value:.2g}",
            f"{one.adjusted:.2g}" + ("" if one.passed else " WRONG"),
            f"{test.detectable(ALPHA / len(verdict.tests)):.2f}",
        )
    table.caption = (
        f"adjusted: for the number of tests, wrong at {ALPHA:g}; sees: the total variation from the law"
    )
    table.caption += " that the test finds in 99 of 100 cases"
    table.caption_justify = "left"
    return table


def _first_tokens(one: Judged, session: Session) -> Table:
    """The law that is easiest to look at."""
    table = plain_table(f"behind prompt {one.test.prompt}", one.test.name, "came", "expected")
    cells: Sequence[Cell] = next(iter(one.test.cells.values()))
    for cell in [*cells[:_SHOWN], *cells[_SHOWN:][-1:]]:
        name = "any other" if cell.token is None else repr(token_texts(session, [cell.token])[0])
        table.add_row(name, f"{cell.seen:.0f}", f"{cell.expected:.1f}")
    return table


def _caught(control: Control) -> str:
    if control.test is None:
        return "NOT caught, there are too few samples for a test"
    caught = "caught" if control.caught else "NOT caught"
    return f"{caught} by '{control.test.name}', p = {control.adjusted:.1g}"


def _closing(verdict: Verdict) -> str:
    check = verdict.check
    tokens = sum(len(text.token_ids) for texts in verdict.texts.values() for text in texts)
    line = f"{tokens} tokens of whole texts in {check.seconds['texts']:.0f} s"
    if verdict.sampled:
        line += f", {check.samples_done} texts begun anew in {check.seconds['samples']:.0f} s"
    return line
