"""What the samples of a comparison say: medians by prompt, and ratios within one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from sequoia_cli.bench.runner import Outcome
from sequoia_cli.bench.work import Sample

#: How often, at least, an interval is to hold the median.
COVERAGE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A speed as a multiple of another engine's: median over prompts, and the `median_interval` of it."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Summary:
    """One engine: speeds in tokens per second, medians over prompts of medians over rounds.

    `differing` are the prompts with another text than the reference's; None without one to compare with.
    """

    engine: str
    tokens_per_second: float | None
    tokens_per_step: float | None
    first_token_seconds: float | None
    ratio: Ratio | None
    differing: tuple[int, ...] | None


def summaries(outcomes: Sequence[Outcome], baseline: str, reference: str) -> list[Summary]:
    """Of each engine: ratios to `baseline`, and the prompts whose texts differ from those of `reference`."""
    samples = {outcome.engine: outcome.samples for outcome in outcomes}
    texts = {sample.prompt: sample.token_ids for sample in samples.get(reference, ())}
    return [
        Summary(
            outcome.engine,
            median_of(outcome.samples, "tokens_per_second"),
            median_of(outcome.samples, "tokens_per_step"),
            median_of(outcome.samples, "first_token_seconds"),
            ratio(outcome.samples, samples.get(baseline, ())),
            _differing(outcome.samples, texts),
        )
        for outcome in outcomes
    ]


def ratio(ours: Sequence[Sample], others: Sequence[Sample]) -> Ratio | None:
    """Speeds of the same prompt in the same round, one by the other, so that a slow minute hits both.

    None without a pair.
    """
    there = {(sample.round, sample.prompt): sample.tokens_per_second for sample in others}
    found: dict[int, list[float]] = {}
    for sample in ours:
        mine, other = sample.tokens_per_second, there.get((sample.round, sample.prompt))
        if mine and other:
            found.setdefault(sample.prompt, []).append(mine / other)
    if not found:
        return None
    by_prompt = [median(values) for values in found.values()]
    return Ratio(median(by_prompt), median_interval(by_prompt))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The k-th smallest and k-th largest value, which hold the median of their distribution between them.

    Coverage is at least `COVERAGE` for independent values of any one distribution: the median lies outside
    only where fewer than k of n values lie on one side of it, and each side has half of the chance (the sign
    test's interval; Conover, Practical Nonparametric Statistics, section 3.2). k is the largest that keeps
    to it; None where not even the smallest and largest value do, which is below 6 values. For 8 these two are
    it, and cover 99.2%.
    """
    count, outside, k = len(values), 0.0, 0
    # `outside` is the chance that k values or fewer lie on one side of the median.
    while (outside := outside + 2 * comb(count, k) * 0.5**count) <= 1 - COVERAGE:
        k += 1
    ordered = sorted(values)
    return (ordered[k - 1], ordered[-k]) if k else None


def _differing(samples: Sequence[Sample], texts: Mapping[int, tuple[int, ...]]) -> tuple[int, ...] | None:
    compared = [sample for sample in samples if sample.prompt in texts]
    if not compared:
        return None
    return tuple(sorted({s.prompt for s in compared if s.token_ids != texts[s.prompt]}))


def median_of(samples: Sequence[Sample], name: str) -> float | None:
    """Median over prompts of the medians over rounds of a property of samples; None where none has it."""
    found: dict[int, list[float]] = {}
    for sample in samples:
        value = getattr(sample, name)
        if value is not None:
            found.setdefault(sample.prompt, []).append(value)
    return median(median(values) for values in found.values()) if found else None
