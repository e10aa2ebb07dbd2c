"""The tables of `sequoia check` for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sequoia_cli.cli.check.document import token_texts
from sequoia_cli.cli.render import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from sequoia_cli.check.betting import Cell
    from sequoia_cli.check.findings import AdjustedTest, Control, Findings
    from sequoia_cli.check.rounding import RoundingCost
    from sequoia_cli.measure.session import Session

#: Outcomes of a first token to show.
_SHOWN = 8


def summary(findings: Findings, session: Session) -> Iterator[Table | str]:
    """Texts, differences, tests, controls and the smallest detectable deviation."""
    check = findings.check
    if not check.ours:
        return
    yield _texts(findings, session)
    if check.differences:
        yield _differences(findings, session)
    else:
        yield f"all {len(check.ours)} greedy texts equal plain decoding's, id for id"
    if findings.tests:
        yield _tests(findings)
        if first := next((one for one in findings.tests if one.test.prompt and one.test.cells), None):
            yield _first_tokens(first, session)
    for control in findings.controls:
        yield f"control, {control.name}: {_caught(control)}"
    if findings.sampled:
        yield f"the smallest deviation of the first token that can be detected: {findings.detectable:.2g}"
    if findings.rounding:
        yield _rounding(findings.rounding)
    yield _closing(findings)


def _texts(findings: Findings, session: Session) -> Table:
    from sequoia_cli.check.texts import SLACK

    table = plain_table(
        f"texts compared with the target's own forward in {session.conditions['dtype']} and in a wider dtype",
        *("texts", "number", "tokens", "wrong tokens", "wrong logits", "off by", "wrong ends"),
    )
    for way, texts in findings.texts.items():
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


def _differences(findings: Findings, session: Session) -> Table:
    table = plain_table(
        "where greedy texts first differ from plain decoding",
        *("prompt", "place", "tree", "plain", "top-2 gap", "below", "rounding", "verdict"),
    )
    for one in findings.check.differences:
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


def _tests(findings: Findings) -> Table:
    from sequoia_cli.check.betting import POWER
    from sequoia_cli.check.findings import ALPHA

    table = plain_table(
        f"{findings.check.tally.tokens} sampled tokens compared with the distribution of transformers",
        *("test", "prompt", "tokens", "cells", "p", "adjusted", "detects"),
    )
    for one in findings.tests:
        test = one.test
        table.add_row(
            test.name,
            test.prompt or "all",
            str(test.count),
            str(sum(map(len, test.cells.values())) or 2),
            f"{test.p_value:.2g}",
            f"{one.adjusted:.2g}" + ("" if one.passed else " WRONG"),
            f"{one.detectable:.2f}" if one.detectable < 1 else "none",
        )
    table.caption = f"adjusted: for the number of tests, wrong at {ALPHA:g}; detects: the smallest total"
    table.caption += f" variation that the test detects in {100 * POWER:g} of 100 runs"
    table.caption_justify = "left"
    return table


def _first_tokens(one: AdjustedTest, session: Session) -> Table:
    """Counts of the first token of one prompt."""
    table = plain_table(f"after prompt {one.test.prompt}", one.test.name, "came", "expected")
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


def _rounding(cost: RoundingCost) -> Table:
    table = plain_table(
        f"the rounded target and the unrounded one, over {cost.tokens} tokens of greedy answers",
        *("target", "perplexity", "KL, nats per token", "same first choice", "plain tokens/s"),
    )
    table.add_row("unrounded", f"{cost.unrounded_perplexity:.3f}", "", "", f"{cost.unrounded_speed:.1f}")
    table.add_row(
        "rounded",
        f"{cost.perplexity:.3f}",
        f"{cost.divergence:.4f}",
        f"{cost.agreement:.1%}",
        f"{cost.speed:.1f}",
    )
    return table


def _closing(findings: Findings) -> str:
    check = findings.check
    tokens = sum(len(text.token_ids) for texts in findings.texts.values() for text in texts)
    line = f"{tokens} tokens of whole texts in {check.seconds['texts']:.0f} s"
    if findings.sampled:
        line += f", {check.samples_done} sampled texts in {check.seconds['samples']:.0f} s"
    return line
