"""The report of `sequoia distill`: on the terminal, and in distillation.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from sequoia_cli.cli.compile.report import summary
from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.files import record
from sequoia_cli.cli.render import plain_table, rates_table

if TYPE_CHECKING:
    from sequoia_cli.distill.checkpoint import Evaluation
    from sequoia_cli.distill.corpus import Texts
    from sequoia_cli.distill.prediction import Prediction
    from sequoia_cli.distill.training import Training
    from sequoia_cli.measure.session import Session

_SCHEMA = "sequoia-distillation/1"


def provenance(
    context: typer.Context,
    session: Session,
    corpus: Texts,
    number: int,
    training: Training,
    found: Sequence[Prediction],
    best: Prediction,
) -> dict[str, Any]:
    """distillation.json: how draft `number` (from 0) was made, and its predicted speed on this machine.

    A draft after others is evaluated only where all of those are wrong, so its key differs.
    """
    from sequoia_cli.measure.session import packages

    parameters = sum(value.numel() for value in training.student.model.parameters() if value.requires_grad)
    return {
        "schema": _SCHEMA,
        **record(context, packages(), []),
        # Training uses the plain forward; the prediction states its own.
        "conditions": {key: value for key, value in session.conditions.items() if key != "forward"},
        "trained_weights": parameters,
        "corpus": {"tokens": corpus.tokens, "texts": corpus.count, "digest": corpus.digest},
        "steps": training.steps,
        "held_out" if number == 0 else "held_out_missed_before": [
            {
                "step": entry.step,
                "loss": round(entry.loss, 4),
                "trials": list(entry.trials),
                "p": [_short(row[:4]) for row in entry.p],
            }
            for entry in training.history
        ],
        "outlook": best.figures(),
        "vocabularies": [
            {
                key: each.figures()[key]
                for key in ("draft_vocabulary", "draft_seconds", "tokens_per_step", "speedup")
            }
            for each in found
        ],
    }


def _short(rates: Sequence[float]) -> list[float]:
    return [round(rate, 4) for rate in rates]


def show_held_out(best: Evaluation, number: int, say: Commentary) -> None:
    """Show the best evaluation of draft `number` (from 0), a later one only where earlier ones are wrong."""
    rows = "; ".join(
        f"level {depth + 1} " + " ".join(f"{rate:.3f}" for rate in row[:4]) + f" of {trials:,}"
        for depth, (row, trials) in enumerate(zip(best.p, best.trials, strict=True))
    )
    texts = "held-out texts" if number == 0 else "held-out texts where the drafts before are wrong"
    say.note(f"{texts}, the target's choice by rank: {rows} tokens (step {best.step})")


def show_draft(found: Sequence[Prediction], best: Prediction, say: Commentary) -> None:
    """Show rates by rank and depth, cost per level, and the compiled tree with its predicted speedup."""
    measured = best.conditions
    say.note(
        f"at temperature {measured['temperature']:g}, on {measured['prompts']} held-out prompts with up to "
        f"{measured['max_new_tokens']} new tokens; times after {measured['context']} tokens, "
        f"{measured['forward']} forward; trees of up to {measured['budget']} nodes:"
    )
    if len(found) > 1:
        table = plain_table(
            "ids in the draft's head", "ids", "p_1", "ms per level", "nodes", "tokens/step", "speedup"
        )
        for each in found:
            chosen = each.choice.chosen
            table.add_row(
                f"{each.ids:,}" + (" (chosen)" if each is best else ""),
                f"{each.rates.p[0][0]:.3f}",
                f"{each.profile.draft_seconds[0][1] * 1e3:.2f}",
                f"{chosen.tree.size}",
                f"{chosen.tokens_per_step:.3f}",
                f"{each.speedup:.2f}",
            )
        say.show(table)
    say.show(rates_table(best.rates))
    level, token = best.profile.draft_seconds[0][1], best.profile.target_seconds[0][1]
    say.note(
        f"a level of the draft costs {level * 1e3:.2f} ms from one node, {level / token:.3f} of the target's "
        f"{token * 1e3:.2f} ms for a token"
    )
    say.note(summary(best.choice))
