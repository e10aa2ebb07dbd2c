"""What counts say of acceptance rates: an estimate to compile with, and other rates that are as likely.

Rates without counts are taken as they are. With counts, accepted / trials is shrunk as by a Dirichlet prior:
the curve of all depths together towards `PRIOR_RATE` / rank², a prior worth `PRIOR_TRIALS` trials, and each
of several rows towards that curve, a prior worth `CURVE_TRIALS` trials. Thousands of trials hardly notice.
Ranks that rise by less than their counting noise are pooled, since chance alone makes them rise.

Tokens of one text depend on each other, so the unit of uncertainty is the prompt: draws give each prompt a
random weight (Bayesian bootstrap; Rubin, Annals of Statistics 9, 1981). Counts without prompts, or of a
single one, are taken as independent trials, which understates their error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sequoia_cli.compiler.tables import Floats
from sequoia_cli.core.counts import MIN_TRIALS, Rows
from sequoia_cli.core.rates import AcceptanceRates

#: The prior of the curve over ranks: the rate of rank k is this over k², a shape that measured curves have.
PRIOR_RATE, PRIOR_TRIALS = 0.5, 10

#: What the curve of all depths together is worth as a prior of each depth's row.
CURVE_TRIALS = 50

#: A rate that rises with the rank by less than so many standard errors is pooled with the one before.
NOISE = 2.0

DRAWS = 200

#: Fewer prompts than this say little about other prompts.
FEW_PROMPTS = 5


@dataclass(frozen=True)
class Estimate:
    """`rows` to compile with, rates in the layout of `AcceptanceRates.p`, and how far they can be trusted.

    `draws` (draw, distance, rank) are rates that the counts make as likely; None without counts. `prompts` is
    the number that they were resampled by, 0 where trials were taken as independent.
    """

    rows: Rows
    draws: Floats | None = None
    prompts: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, rates: AcceptanceRates) -> Estimate:
        """The estimate from the counts of a rates file, or its p where it has none."""
        if not rates.samples or not sum(rates.trials):
            return cls(rates.p)
        trials, accepted = _by_row(rates)
        whole = _shrunk(trials.sum(axis=0), accepted.sum(axis=0))
        pools = [_pools(row, count) for row, count in zip(whole, trials.sum(axis=0), strict=True)]
        random = np.random.Generator(np.random.PCG64(0))
        prompts = len(trials) if len(trials) > 1 else 0
        if prompts:
            # Exponential weights of mean 1, from uniforms: these are the same wherever they are drawn.
            weights = -np.log1p(-random.random((DRAWS, prompts)))
            weights *= prompts / weights.sum(axis=1, keepdims=True)
            drawn = _shrunk(
                np.einsum("bi,id->bd", weights, trials), np.einsum("bi,idk->bdk", weights, accepted)
            )
        else:
            drawn = _independent(random, whole, trials[0])
        rows = tuple(
            tuple(row[: len(stated)].tolist())
            for row, stated in zip(_pooled(whole, pools), rates.p, strict=True)
        )
        return cls(rows, _pooled(drawn, pools), prompts, _thin(rates))


def _thin(rates: AcceptanceRates) -> tuple[str, ...]:
    first, prompts = rates.trials[0], len(rates.samples)
    if first >= MIN_TRIALS and (prompts >= FEW_PROMPTS or prompts == 1):
        return ()
    if first >= MIN_TRIALS:
        return (f"the acceptance rates are of {prompts} prompts: too few to tell how other prompts differ",)
    return (
        f"the acceptance rates are of {first:.0f} trials, fewer than {MIN_TRIALS}: "
        f"they are shrunk towards {PRIOR_RATE:g} / rank²; measure more prompts",
    )


def _by_row(rates: AcceptanceRates) -> tuple[Floats, Floats]:
    """Trials (prompt, row) and accepted (prompt, row, rank) of each row of p."""
    trials = np.array([sample.trials for sample in rates.samples])
    accepted = np.array([sample.accepted for sample in rates.samples])[:, :, : max(map(len, rates.p))]
    rows = [range(depth, depth + 1) for depth in range(len(rates.p))]
    last = len(rows) - 1
    if last + 1 < trials.shape[1]:
        # The last row is of its depth alone, or of all deeper ones too: whichever is nearer to p.
        def off(row: range) -> float:
            count = trials[:, row].sum()
            return abs(accepted[:, row, 0].sum() / count - rates.p[last][0]) if count else np.inf

        rows[last] = min(rows[last], range(last, trials.shape[1]), key=off)
    return (
        np.stack([trials[:, row].sum(axis=1) for row in rows], axis=1),
        np.stack([accepted[:, row].sum(axis=1) for row in rows], axis=1),
    )


def _shrunk(trials: Floats, accepted: Floats) -> Floats:
    """Rates (..., row, rank) from trials (..., row) and accepted (..., row, rank)."""
    prior = PRIOR_RATE / np.arange(1, accepted.shape[-1] + 1) ** 2
    curve = (accepted.sum(axis=-2) + PRIOR_TRIALS * prior) / (trials.sum(axis=-1) + PRIOR_TRIALS)[..., None]
    if accepted.shape[-2] == 1:
        return curve[..., None, :]
    rates: Floats = (accepted + CURVE_TRIALS * curve[..., None, :]) / (trials + CURVE_TRIALS)[..., None]
    return rates


def _independent(random: np.random.Generator, rates: Floats, trials: Floats) -> Floats:
    """Draws (draw, row, rank) of the posterior of independent trials."""
    drawn = np.empty((DRAWS, *rates.shape))
    for row, (mean, count) in enumerate(zip(rates, trials, strict=True)):
        shape = (count + PRIOR_TRIALS) * np.append(mean, max(0.0, 1 - mean.sum()))
        gammas = random.standard_gamma(np.maximum(shape, 1e-9), (DRAWS, len(shape)))
        drawn[:, row] = (gammas / gammas.sum(axis=1, keepdims=True))[:, :-1]
    return drawn


def _pools(rates: Floats, trials: float) -> list[range]:
    """Ranks in pools: from one to the next, rates fall or rise by more than `NOISE` standard errors."""
    pools: list[range] = []

    def mean(pool: range) -> float:
        return float(rates[pool.start : pool.stop].mean())

    for rank in range(len(rates)):
        pools.append(range(rank, rank + 1))
        while len(pools) > 1 and mean(pools[-1]) > mean(pools[-2]):
            one, two = pools[-2:]
            error = np.sqrt(sum(mean(pool) / len(pool) for pool in (one, two)) / (trials + PRIOR_TRIALS))
            if mean(two) - mean(one) > NOISE * error:
                break
            pools[-2:] = [range(one.start, two.stop)]
    return pools


def _pooled(rates: Floats, pools: Sequence[Sequence[range]]) -> Floats:
    """The rates (..., row, rank) with the mean of its pool for each rank."""
    out = rates.copy()
    for row, ranges in enumerate(pools):
        for pool in ranges:
            out[..., row, pool.start : pool.stop] = out[..., row, pool.start : pool.stop].mean(
                axis=-1, keepdims=True
            )
    return out
