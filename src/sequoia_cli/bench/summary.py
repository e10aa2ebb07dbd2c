"""Statistics of a comparison: medians by prompt, and ratios within a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from sequoia_cli.bench.runner import Outcome
from sequoia_cli.bench.workload import Sample

#: The least coverage of a confidence interval of the median.
COVERAGE = 0.95


@dataclass(frozen=True)
class Ratio:
    """A speed relative to another engine's: the median over prompts and its `median_interval`."""

    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Summary:
    """The statistics of one engine: medians over prompts of medians over rounds.

    `differing` are the prompts whose text differs from the reference engine's; None without a reference.
    """

    engine: str
    tokens_per_second: float | None
    tokens_per_step: float | None
    first_token_seconds: float | None
    ratio: Ratio | None
    differing: tuple[int, ...] | None


def summaries(outcomes: Sequence[Outcome], baseline: str, reference: str) -> list[Summary]:
    """Summarise each engine: ratios to `baseline`, and prompts whose texts differ from `reference`'s."""
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
    """The ratio of speeds of the same prompt in the same round, so that a slow minute affects both.

    None without such a pair.
    """
    speeds = {(sample.round, sample.prompt): sample.tokens_per_second for sample in others}
    found: dict[int, list[float]] = {}
    for sample in ours:
        mine, other = sample.tokens_per_second, speeds.get((sample.round, sample.prompt))
        if mine and other:
            found.setdefault(sample.prompt, []).append(mine / other)
    if not found:
        return None
    by_prompt = [median(values) for values in found.values()]
    return Ratio(median(by_prompt), median_interval(by_prompt))


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """A confidence interval of the median: the k-th smallest and the k-th largest value.

    Its coverage is at least `COVERAGE` for independent values of any distribution. The median is outside only
    if fewer than k of the n values lie on one side of it, and each value lies on either side with probability
    1/2 (the sign test's interval; Conover, Practical Nonparametric Statistics, section 3.2). k is the largest
    with that coverage; None if there is none, which is the case below 6 values. For 8 values k is 1 and the
    coverage 99.2%.
    """
    count, outside, k = len(values), 0.0, 0
    # `outside` is the probability that at most k values lie on one side of the median.
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
    """The median over prompts of the medians over rounds of a property of samples; None if none has it."""
    found: dict[int, list[float]] = {}
    for sample in samples:
        value = getattr(sample, name)
        if value is not None:
            found.setdefault(sample.prompt, []).append(value)
    return median(median(values) for values in found.values()) if found else None
