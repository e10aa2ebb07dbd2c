"""What the samples of a comparison say: medians by prompt, and ratios within one round."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.stats import bootstrap

from sequoia_cli.bench.runner import Outcome
from sequoia_cli.bench.work import Sample


@dataclass(frozen=True)
class Ratio:
    """A speed as a multiple of another engine's: median over prompts, and a 95% interval of that median."""

    value: float
    low: float
    high: float


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

    The interval is a bootstrap over prompts, which are what differs most; None without a pair.
    """
    there = {(sample.round, sample.prompt): sample.tokens_per_second for sample in others}
    found: dict[int, list[float]] = {}
    for sample in ours:
        mine, other = sample.tokens_per_second, there.get((sample.round, sample.prompt))
        if mine and other:
            found.setdefault(sample.prompt, []).append(mine / other)
    if not found:
        return None
    by_prompt = np.array([median(values) for values in found.values()])
    low = high = float(np.median(by_prompt))
    if len(by_prompt) > 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of equal values, whose interval is a point
            interval = bootstrap(
                (by_prompt,), np.median, method="percentile", n_resamples=2000, rng=0
            ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    return Ratio(float(np.median(by_prompt)), low, high)


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
