"""What `sequoia generate` did, as JSON and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sequoia_cli.cli.render import plain_table
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.tree import ROOT_ONLY

if TYPE_CHECKING:
    from rich.table import Table

    from sequoia_cli.measure.generation import Generation
    from sequoia_cli.measure.prompts import Prompt
    from sequoia_cli.measure.run import Run
    from sequoia_cli.measure.statistics import Speculation

SCHEMA = "sequoia-generation/1"


def document(run: Run, warnings: list[str]) -> dict[str, Any]:
    """The one JSON document of the command: the text's keys at the top, or `results` for several prompts."""
    total = run.total
    shared: dict[str, Any] = {
        "seed": run.seed,
        "predicted": _predicted(run.plan),
        "environment": run.session.environment,
        "warnings": warnings,
    }
    if run.compare:
        shared["plain"] = {
            "tokens_per_second": run.plain_total.tokens_per_second,
            "seconds_by_stage": run.plain_total.seconds,
        }
        shared["speedup"] = run.speedup
        shared["first_differences"] = run.first_differences()
    # An interrupt leaves fewer texts than prompts.
    how = {"drafts": len(run.session.drafts), "verifier": run.verifier.name}
    results = [_result(prompt, text, how) for prompt, text in zip(run.prompts, run.texts, strict=False)]
    if len(run.prompts) == len(results) == 1:
        return {"schema": SCHEMA, **results[0], **shared}
    return {
        "schema": SCHEMA,
        "results": results,
        "tokens_per_second": total.tokens_per_second,
        "speculation": {**how, **total.to_dict()},
        "categories": {
            category: {
                "mean_acceptance_length": part.mean_acceptance_length,
                "speedups": run.speedups(category),
            }
            for category, part in run.by_category().items()
        },
        **shared,
    }


def _result(prompt: Prompt, text: Generation, how: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "prompt_tokens": text.prompt_tokens,
        "token_ids": text.token_ids,
        "text": text.text,
        "finish_reason": text.finish,
        "seconds": text.seconds,
        "first_token_seconds": text.first_token_seconds,
        "prefill_seconds": text.speculation.prefill_seconds,
        "tokens_per_second": text.speculation.tokens_per_second,
        "speculation": {**how, **text.speculation.to_dict()},
    }


def _predicted(plan: TreePlan | None) -> dict[str, Any] | None:
    if plan is None or plan.predicted is None:
        return None
    predicted = plan.predicted
    return {
        "tokens_per_step": predicted.tokens_per_step,
        "seconds_per_step": predicted.seconds_per_step,
        "speedup": predicted.speedup,
    }


def summary(run: Run) -> Iterator[Table | str]:
    """Predicted and measured next to each other, and where the time went."""
    total = run.total
    if not total.steps:
        return
    foretold = _predicted(run.plan) or {}
    table = plain_table(_title(run, total), "", "predicted", "measured")
    per_step = total.decode_seconds / total.steps
    rows: list[tuple[str, float | None, float | None, str]] = [
        ("tokens per step", foretold.get("tokens_per_step"), total.mean_acceptance_length, ".2f"),
        ("milliseconds per step", _ms(foretold.get("seconds_per_step")), _ms(per_step), ".1f"),
        ("speedup over plain decoding", foretold.get("speedup"), run.speedup, ".2f"),
        ("tokens/s", None, total.tokens_per_second, ".1f"),
        ("tokens/s, plain decoding", None, run.plain_total.tokens_per_second, ".1f"),
    ]
    for name, said, found, style in rows:
        if said is not None or found is not None:
            table.add_row(name, *("" if value is None else format(value, style) for value in (said, found)))
    yield table
    stages = ", ".join(
        f"{stage} {seconds / total.decode_seconds:.0%}" for stage, seconds in total.seconds.items()
    )
    yield f"time by stage: {stages}; prefill {total.prefill_seconds:.2f} s beside it"
    if len(run.by_category()) > 1:
        yield _categories(run)
    if len(run.texts) == len(run.plain) and (line := _comparison(run)):
        yield line


def _title(run: Run, total: Speculation) -> str:
    tree = run.plan.tree if run.plan else ROOT_ONLY
    shape = f"tree of {tree.size} nodes in {tree.depth} layers" if tree.size > 1 else "plain decoding"
    if run.plan and run.plan.adaptive:
        shape = f"trees chosen in each step of up to {tree.size} nodes in {tree.depth} layers"
    if len(run.session.drafts) > 1:
        shape = f"a {shape} from each of {len(run.session.drafts)} drafts"
    return f"{total.tokens} tokens in {total.steps} steps, {shape}"


def _categories(run: Run) -> Table:
    """What each category of prompts gains; the median over its prompts where plain decoding was run too."""
    table = plain_table("by category of prompts", "category", "tokens", "tokens/step", "median speedup")
    for category, total in run.by_category().items():
        ratios = run.speedups(category)
        table.add_row(
            category,
            f"{total.tokens}",
            f"{total.mean_acceptance_length:.2f}" if total.steps else "",
            f"{statistics.median(ratios):.2f}" if ratios else "",
        )
    return table


def _comparison(run: Run) -> str:
    """Spread of the speedup over prompts, and whether greedy texts agree."""
    ratios, line = run.speedups(), ""
    if len(ratios) > 1:
        low, middle, high = statistics.quantiles(ratios, n=4)
        line = f"speedup by prompt: median {middle:.2f}, middle half {low:.2f} to {high:.2f}"
    if run.sampling.greedy:
        same = len(run.texts) - len(run.first_differences())
        line += f"; {same} of {len(run.texts)} texts equal plain decoding's id for id"
        if same < len(run.texts) and run.session.conditions["dtype"] != "float32":
            line += f" ({run.session.conditions['dtype']} rounds near-ties either way; float32 has none)"
    return line.lstrip("; ")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
