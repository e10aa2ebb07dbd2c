"""Tests by betting: whether outcomes came with the probabilities that they should have.

A test bets on each outcome at the odds of the reference distribution, starting from a stake of 1. If the
outcomes do come from it, the wealth is a martingale with mean 1, so it ever reaches w with probability at
most 1 / w (Ville 1939). So min(1, 1 / wealth) is a p-value that holds for every number of samples, for cells
of any size, for probabilities that depend on earlier outcomes, and wherever the check is interrupted.
(Shafer 2021, "Testing by betting"; Ramdas et al. 2023, "Game-theoretic statistics".)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp
from scipy.stats import norm
from torch import Tensor

Array = NDArray[np.float64]

#: A token has a cell of its own where it is expected this often.
LEAST_EXPECTED = 10.0

#: How strongly a bet on cells holds to the reference, in samples: few bet on large deviations, many on small.
CONCENTRATIONS: Array = np.array([16.0, 64.0, 256.0, 1024.0, 4096.0])

#: The factors (as logarithms) by which a bet on an event takes its odds to be wrong.
LOG_ODDS: Array = np.array([sign * size for size in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2) for sign in (1, -1)])

#: The chance with which a deviation that is said to be seen is seen.
POWER = 0.9


def cells_wealth(counts: Array, prior: Array, loss: Array) -> Array:
    """Log wealth (..., concentrations) of bets on cells, from (..., cells) counts.

    The bet on the next outcome is (concentration * prior + counts so far), normalised. `prior` (..., cells)
    must be known before the first outcome; `loss` (...) is the sum of the logarithms of the reference
    probabilities of the cells that came.
    """
    alpha = CONCENTRATIONS[:, None] * prior[..., None, :]
    gained = (gammaln(alpha + counts[..., None, :]) - gammaln(alpha)).sum(-1)
    total = counts.sum(-1)[..., None]
    won: Array = gained - gammaln(CONCENTRATIONS + total) + gammaln(CONCENTRATIONS) - loss[..., None]
    return won


def event_wealth(came: Array, chance: Array) -> Array:
    """Log wealth (..., log odds) of one bet on whether an event comes, of probability `chance`."""
    won: Array = LOG_ODDS * came[..., None] - np.log1p(chance[..., None] * np.expm1(LOG_ODDS))
    return won


def mixed(wealth: Array) -> Array:
    """Log wealth (...) of a stake that is split evenly over bets, given (..., bets)."""
    together: Array = logsumexp(wealth, axis=-1) - math.log(wealth.shape[-1])
    return together


@dataclass(frozen=True)
class Cell:
    """How often something came, and how often it was expected: a `token`, or all others (None)."""

    token: int | None
    seen: float
    expected: float


@dataclass(frozen=True)
class BetTest:
    """One comparison with the reference distribution. `prompt` is None where all prompts are pooled.

    `log_wealth` is the logarithm of what a stake of 1 has become. `cells` are the counts, by the token before
    (None: the prompt), `groups` their sizes: (outcomes, cells). `chance` is the mean of an event's chances.
    """

    name: str
    prompt: str | None
    count: int
    log_wealth: float
    groups: Sequence[tuple[int, int]] = ()
    chance: float = 0.0
    cells: Mapping[int | None, tuple[Cell, ...]] = field(default_factory=dict)

    @property
    def p_value(self) -> float:
        """At most alpha with a probability of at most alpha, if the distribution is right."""
        return math.exp(-max(0.0, self.log_wealth))

    def detectable(self, level: float) -> float:
        """A total variation that a test at `level` finds with probability `POWER` (about; 1 if none).

        Of a test on cells, half of the mass is moved up and half down: nothing of that total variation is
        harder to find. Of a test on an event, its chance is moved.
        """
        if not self.count:
            return 1.0
        if not self.groups:
            return self._detectable_of_event(level)
        if self._margin(1.0, level) < 0:
            return 1.0
        return float(brentq(lambda variation: self._margin(variation, level), 0.0, 1.0, xtol=1e-5))

    def _margin(self, variation: float, level: float) -> float:
        """The `1 - POWER` quantile of the log wealth, less what has to be reached; by the normal limit."""
        counts, free = (np.array(column, dtype=float) for column in zip(*self.groups, strict=True))
        free -= 1
        share = counts / CONCENTRATIONS[:, None]
        weight, moved = share / (1 + share), 4 * variation**2 * counts
        mean = (weight * (free + moved) - free * np.log1p(share)).sum(1) / 2
        spread = np.sqrt((weight**2 * (2 * free + 4 * moved)).sum(1)) / 2
        needed = math.log(len(CONCENTRATIONS) / level)
        return float((mean - norm.ppf(POWER) * spread).max()) - needed

    def _detectable_of_event(self, level: float) -> float:
        """Of a larger chance, and taking all chances to be their mean: that is the least wealth."""
        bets = LOG_ODDS[LOG_ODDS > 0]
        needed = math.log(len(LOG_ODDS) / level) + self.count * np.log1p(self.chance * np.expm1(bets))

        def margin(shift: float) -> float:
            chance = self.chance + shift
            spread = bets * math.sqrt(self.count * chance * (1 - chance))
            return float((bets * self.count * chance - norm.ppf(POWER) * spread - needed).max())

        most = 1 - self.chance
        return float(brentq(margin, 0.0, most, xtol=1e-5)) if margin(most) > 0 else 1.0


@dataclass
class Group:
    """Outcomes of one context, in cells that are chosen by its first distribution and `samples` alone."""

    tokens: list[int]
    prior: Array
    counts: Array
    expected: Array
    loss: float = 0.0

    @classmethod
    def of(cls, first: Tensor, samples: float, shared: Tensor | None = None) -> Group:
        """Cells for tokens that are expected `LEAST_EXPECTED` times in `samples`, and one for all others.

        Tokens that are `shared` have none of their own: only their mass together is known.
        """
        common = first * samples >= LEAST_EXPECTED
        tokens = (common if shared is None else common & ~shared).nonzero()[:, 0].tolist()
        tokens.sort(key=lambda token: -float(first[token]))
        own = _masses(first, tokens)
        prior = np.maximum(own, 1e-9)
        zero = np.zeros(len(own))
        return cls(tokens, prior / prior.sum(), zero, zero.copy())

    def add(self, token: int, probs: Tensor) -> None:
        """Bet on a token of (vocabulary,) probabilities; one that cannot come is counted elsewhere."""
        own = _masses(probs, self.tokens)
        place = self.tokens.index(token) if token in self.tokens else len(self.tokens)
        if own[place] > 0:
            self.counts[place] += 1
            self.expected += own
            self.loss += math.log(own[place])

    @property
    def size(self) -> int:
        """How many cells have mass; of one alone nothing can be tested."""
        return int((self.prior > 1e-8).sum())

    @property
    def wealth(self) -> Array:
        """(concentrations,) log wealth."""
        return cells_wealth(self.counts, self.prior, np.array(self.loss))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The counts as they are shown."""
        rows = zip([*self.tokens, None], self.counts.tolist(), self.expected.tolist(), strict=True)
        return tuple(Cell(*row) for row in rows if row[2])


def _masses(probs: Tensor, tokens: Sequence[int]) -> Array:
    """Probabilities of the cells; the last is what the tokens leave."""
    own = probs[tokens].double().cpu().numpy()
    return np.append(own, max(0.0, float(probs.double().sum()) - float(own.sum())))


@dataclass
class Events:
    """Bets on one event after another, each with the chance that it had."""

    count: int = 0
    expected: float = 0.0
    wealth: Array = field(default_factory=lambda: np.zeros(len(LOG_ODDS)))

    def add(self, came: bool, chance: float) -> None:
        """Bet on one; what is certain says nothing."""
        chance = min(1.0, max(0.0, chance))
        self.count += 1
        self.expected += chance
        if 0 < chance < 1:
            self.wealth += event_wealth(np.array(float(came)), np.array(chance))


def cells_test(name: str, prompt: str | None, groups: Mapping[int | None, Group]) -> BetTest:
    """One test of several groups: each bets on with what the one before it has left."""
    known = {given: group for given, group in groups.items() if group.size > 1 and group.counts.sum()}
    wealth = sum((group.wealth for group in known.values()), np.zeros(len(CONCENTRATIONS)))
    sizes = [(round(group.counts.sum()), group.size) for group in known.values()]
    cells = {given: group.cells for given, group in known.items()}
    return BetTest(name, prompt, sum(count for count, _ in sizes), float(mixed(wealth)), sizes, 0.0, cells)


def event_test(name: str, events: Events) -> BetTest:
    """The test of a run of events."""
    return BetTest(
        name, None, events.count, float(mixed(events.wealth)), (), events.expected / max(1, events.count)
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for being many: those at most alpha are rejected, and with probability alpha at most
    any true hypothesis is among them, however the tests depend on each other (Holm 1979).
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, worst = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = worst
    return adjusted
