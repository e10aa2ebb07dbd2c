"""The JSON document of `sequoia check`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sequoia_cli.check.findings import AdjustedTest, Findings
    from sequoia_cli.check.texts import CheckedText, Difference
    from sequoia_cli.measure.session import Session

SCHEMA = "sequoia-check/1"


def document(
    findings: Findings, session: Session, warnings: list[str], smallest_deviation: float, *, finished: bool
) -> dict[str, Any]:
    """Conditions, texts token by token, differences, tests with their counts, and controls.

    Measured values that are not finite become null: overflowing logits are a finding to report.
    """
    from sequoia_cli.check.findings import ALPHA
    from sequoia_cli.check.texts import SLACK

    check = findings.check
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "finished": finished,
        "passed": not findings.failures,
        "powerful": not findings.sampled or findings.detectable <= smallest_deviation,
        "smallest_deviation": {
            "limit": smallest_deviation,
            "first_token": findings.detectable if findings.sampled else None,
            "by_test": findings.detectable_by_test,
        },
        "failures": findings.failures,
        "conditions": {**session.conditions, **_conditions(findings)},
        "slack": SLACK,
        "texts": [{"way": way, **_text(text)} for way, texts in findings.texts.items() for text in texts],
        "differences": [_difference(one, session) for one in check.differences],
        "false_alarm_rate": ALPHA,
        "samples_done": check.samples_done,
        "tests": [_test(one) for one in findings.tests],
        "controls": [
            {
                "name": one.name,
                "caught": one.caught,
                "test": one.test.name if one.test else None,
                "adjusted_p_value": one.adjusted,
            }
            for one in findings.controls
        ],
        "rounding": asdict(findings.rounding) if findings.rounding else None,
        "seconds": {part: round(seconds, 3) for part, seconds in check.seconds.items()},
        "environment": session.environment,
        "warnings": warnings,
    }
    return _with_nulls(body)


def _with_nulls(value: Any) -> Any:
    """`value` with None in place of every number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _with_nulls(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def token_texts(session: Session, tokens: Sequence[int | None]) -> list[str | None]:
    """Each token decoded alone."""
    return [None if token is None else session.tokenizer.decode([token]) for token in tokens]


def _conditions(findings: Findings) -> dict[str, Any]:
    check, subject = findings.check, findings.check.subject
    return {
        "tree": list(subject.tree.parents),
        "prompts": len(check.prompts),
        "max_new_tokens": check.max_new_tokens,
        "sampling": asdict(subject.sampling) if subject.sampling else None,
        "draft_sampling": asdict(subject.draft_sampling) if subject.sampling else None,
        "verifier": subject.verifier.name,
        "samples": check.samples,
        "seed": check.seed,
    }


def _text(text: CheckedText) -> dict[str, Any]:
    return {
        "prompt": text.prompt,
        "token_ids": list(text.token_ids),
        "finish_reason": text.finish,
        "errors": [row.error for row in text.rows],
        "roundings": [row.rounding for row in text.rows],
        "shortfalls": list(text.shortfalls) if text.greedy else None,
        "wrong_tokens": text.wrong_tokens,
        "wrong_rows": text.wrong_rows,
        "wrong_end": text.end,
    }


def _difference(one: Difference, session: Session) -> dict[str, Any]:
    read = {"texts": token_texts(session, one.tokens), "within_rounding": one.within_rounding}
    return {**asdict(one), **read}


def _test(one: AdjustedTest) -> dict[str, Any]:
    test = one.test
    return {
        "name": test.name,
        "prompt": test.prompt,
        "count": test.count,
        "log_wealth": test.log_wealth,
        "p_value": test.p_value,
        "adjusted_p_value": one.adjusted,
        "passed": one.passed,
        "sees_total_variation": one.detectable,
        "groups": [
            {"given": given, "cells": [[cell.token, cell.seen, cell.expected] for cell in cells]}
            for given, cells in test.cells.items()
        ],
    }
