"""The results of `sequoia bench` as JSON and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sequoia_cli.cli.render import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from sequoia_cli.bench.runner import Outcome
    from sequoia_cli.bench.summary import Summary
    from sequoia_cli.bench.workload import Workload
    from sequoia_cli.measure.prompts import PromptSet

SCHEMA = "sequoia-bench/2"

#: The engine that the others' greedy texts are compared with.
REFERENCE = "plain"


def header(work: Workload, rounds: int) -> dict[str, Any]:
    """The settings of a run."""
    omitted = ("prompts", "folder", "gguf")
    settings = {key: value for key, value in work.to_dict().items() if key not in omitted}
    return {"schema": SCHEMA, "work": settings, "rounds": rounds}


def summarised(outcomes: Sequence[Outcome], baseline: str) -> list[tuple[Outcome, Summary]]:
    """Each outcome with its summary."""
    from sequoia_cli.bench.summary import summaries

    return list(zip(outcomes, summaries(outcomes, baseline, REFERENCE), strict=True))


def document(
    rows: Sequence[tuple[Outcome, Summary]], prompts: PromptSet, left_out: Sequence[str], baseline: str
) -> dict[str, Any]:
    """The result of a comparison with all samples; `left_out` names the prompts too long for an engine."""
    return {
        "prompts": {
            "name": prompts.name,
            "prompts": len(prompts.prompts),
            "digest": prompts.digest,
            "ids": [prompt.id for prompt in prompts.prompts],
            "left_out": list(left_out),
        },
        "baseline": baseline,
        "engines": [_engine(outcome, summary) for outcome, summary in rows],
    }


def _engine(outcome: Outcome, summary: Summary) -> dict[str, Any]:
    if outcome.unavailable:
        return {"engine": outcome.engine, "unavailable": outcome.unavailable}
    interval = summary.ratio.interval if summary.ratio else None
    found = {
        "engine": outcome.engine,
        "packages": outcome.packages,
        "load_seconds": outcome.load_seconds,
        "peak_bytes": outcome.peak_bytes,
        "tokens_per_second": summary.tokens_per_second,
        "tokens_per_step": summary.tokens_per_step,
        "first_token_seconds": summary.first_token_seconds,
        "ratio": summary.ratio.value if summary.ratio else None,
        "ratio_interval": list(interval) if interval else None,
        "differing_prompts": summary.differing if summary.differing is None else list(summary.differing),
        "samples": [sample.to_dict() for sample in outcome.samples],
    }
    return found | ({"failed": outcome.failed} if outcome.failed else {})


def tables(rows: Sequence[tuple[Outcome, Summary]], prompts: int, baseline: str) -> list[Table]:
    """Tables of speeds, and of loading, prefill and memory."""
    speeds = plain_table(
        f"decoding, medians over {prompts} prompts; ratios to {baseline} in the same round, "
        "with intervals of at least 95%",
        *("engine", "tokens/s", "ratio", "interval", "tokens/step", "texts differ"),
    )
    costs = plain_table(
        "loading, prefill and memory", "engine", "first token, ms", "loading, s", "peak memory, MB"
    )
    for outcome, found in rows:
        if not outcome.samples:
            continue
        ratio = found.ratio
        speeds.add_row(
            outcome.engine,
            number(found.tokens_per_second, ".1f"),
            number(ratio.value if ratio else None, ".2f"),
            "{:.2f} to {:.2f}".format(*ratio.interval) if ratio and ratio.interval else "",
            number(found.tokens_per_step, ".2f"),
            "" if found.differing is None else str(len(found.differing)),
        )
        costs.add_row(
            outcome.engine,
            number(found.first_token_seconds, ".0f", 1000),
            number(outcome.load_seconds, ".1f"),
            number(outcome.peak_bytes, ".0f", 1e-6),
        )
    return [speeds, costs]


def missing(outcomes: Sequence[Outcome]) -> list[str]:
    """Engines that failed or were skipped, with the reason; each line once."""
    lines = [f"{outcome.engine}: {outcome.failed}" for outcome in outcomes if outcome.failed]
    lines += [
        f"{outcome.engine}: skipped: {outcome.unavailable}" for outcome in outcomes if outcome.unavailable
    ]
    return list(dict.fromkeys(lines))


def footnotes(outcomes: Sequence[Outcome], target: str, gguf: str | None) -> list[str]:
    """A note on the weights of the engines that read GGUF, if any ran."""
    from sequoia_cli.bench.engines import ENGINES

    readers = [each.engine for each in outcomes if each.samples and ENGINES[each.engine].reads_gguf]
    if not readers:
        return []
    if gguf is not None:
        return [f"{', '.join(readers)}: ran {gguf}; it was not checked that its weights are the target's"]
    return [
        f"{', '.join(readers)}: the same weights as the other engines; {target} was published as this 4-bit "
        "GGUF file, and the others run its values in a wider dtype"
    ]


def number(value: float | None, style: str, unit: float = 1) -> str:
    """`unit * value` in this format; an empty string for None."""
    return "" if value is None else format(unit * value, style)
