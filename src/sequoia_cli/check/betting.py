"""Tests by betting: whether outcomes have the distribution that they should have.

A test bets on each outcome at the odds of the reference distribution, starting with a stake of 1. If the
outcomes have that distribution, the wealth is a martingale of mean 1 and ever reaches w with probability at
most 1 / w (Ville 1939). So min(1, 1 / wealth) is a p-value. It is valid for every number of samples, for
cells of any size, for probabilities that depend on earlier outcomes, and wherever the check is interrupted.
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

#: A token has its own cell if it is expected at least this often.
LEAST_EXPECTED = 10.0

#: Weight of the reference in a bet on cells, in samples: small ones bet on large deviations, large on small.
CONCENTRATIONS: Array = np.array([16.0, 64.0, 256.0, 1024.0, 4096.0])

#: Logarithms of the odds ratios that bets on an event assume.
LOG_ODDS: Array = np.array([sign * size for size in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2) for sign in (1, -1)])

#: The probability with which a deviation called detectable is detected.
POWER = 0.9


def cells_wealth(counts: Array, prior: Array, loss: Array) -> Array:
    """Log wealth (..., concentrations) of bets on cells, from (..., cells) counts.

    The bet on the next outcome is (concentration * prior + counts so far), normalised. `prior` (..., cells)
    must be fixed before the first outcome; `loss` (...) is the log probability of the outcomes' cells under
    the reference.
    """
    alpha = CONCENTRATIONS[:, None] * prior[..., None, :]
    gained = (gammaln(alpha + counts[..., None, :]) - gammaln(alpha)).sum(-1)
    total = counts.sum(-1)[..., None]
    won: Array = gained - gammaln(CONCENTRATIONS + total) + gammaln(CONCENTRATIONS) - loss[..., None]
    return won


def event_wealth(came: Array, chance: Array) -> Array:
    """Log wealth (..., log odds) of a bet on an event of probability `chance`; `came` is 1 if it happened."""
    won: Array = LOG_ODDS * came[..., None] - np.log1p(chance[..., None] * np.expm1(LOG_ODDS))
    return won


def mixture(wealth: Array) -> Array:
    """Log wealth (...) of a stake split evenly over bets, from (..., bets)."""
    together: Array = logsumexp(wealth, axis=-1) - math.log(wealth.shape[-1])
    return together


@dataclass(frozen=True)
class Cell:
    """Observed and expected counts of a `token`, or of all other tokens (None)."""

    token: int | None
    seen: float
    expected: float


@dataclass(frozen=True)
class BetTest:
    """One test of the reference distribution. `prompt` is None if all prompts are pooled.

    `log_wealth` is the log of the final wealth from a stake of 1. `cells` are the counts, by the token before
    (None: the prompt), and `groups` their sizes, (outcomes, cells). `chance` is an event's mean probability.
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
        """At most alpha with probability at most alpha, if the distribution is right."""
        return math.exp(-max(0.0, self.log_wealth))

    def detectable(self, level: float) -> float:
        """The total variation that a test at `level` detects with probability about `POWER`; 1 if none.

        For a test on cells, half of the mass is moved up and half down, the hardest deviation of that total
        variation to detect. For a test on an event, its probability is shifted.
        """
        if not self.count:
            return 1.0
        if not self.groups:
            return self._detectable_of_event(level)
        if self._margin(1.0, level) < 0:
            return 1.0
        return float(brentq(lambda variation: self._margin(variation, level), 0.0, 1.0, xtol=1e-5))

    def _margin(self, variation: float, level: float) -> float:
        """The `1 - POWER` quantile of the log wealth minus the needed wealth, by the normal approximation."""
        counts, free = (np.array(column, dtype=float) for column in zip(*self.groups, strict=True))
        free -= 1
        share = counts / CONCENTRATIONS[:, None]
        weight, moved = share / (1 + share), 4 * variation**2 * counts
        mean = (weight * (free + moved) - free * np.log1p(share)).sum(1) / 2
        spread = np.sqrt((weight**2 * (2 * free + 4 * moved)).sum(1)) / 2
        needed = math.log(len(CONCENTRATIONS) / level)
        return float((mean - norm.ppf(POWER) * spread).max()) - needed

    def _detectable_of_event(self, level: float) -> float:
        """For a larger probability, taking all probabilities as their mean, which gives the least wealth."""
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
    """Outcomes in one context. The cells depend only on its first distribution and `samples`."""

    tokens: list[int]
    prior: Array
    counts: Array
    expected: Array
    loss: float = 0.0

    @classmethod
    def of(cls, first: Tensor, samples: float, shared: Tensor | None = None) -> Group:
        """One cell for each token expected `LEAST_EXPECTED` times in `samples`, and one for all others.

        Tokens in `shared` have no cell of their own: only their total probability is known.
        """
        common = first * samples >= LEAST_EXPECTED
        tokens = (common if shared is None else common & ~shared).nonzero()[:, 0].tolist()
        tokens.sort(key=lambda token: -float(first[token]))
        own = _masses(first, tokens)
        prior = np.maximum(own, 1e-9)
        zero = np.zeros(len(own))
        return cls(tokens, prior / prior.sum(), zero, zero.copy())

    def add(self, token: int, probs: Tensor) -> None:
        """Bet on a token with (vocabulary,) probabilities; impossible tokens are counted elsewhere."""
        own = _masses(probs, self.tokens)
        cell = self.tokens.index(token) if token in self.tokens else len(self.tokens)
        if own[cell] > 0:
            self.counts[cell] += 1
            self.expected += own
            self.loss += math.log(own[cell])

    @property
    def size(self) -> int:
        """The number of cells with mass; a single one cannot be tested."""
        return int((self.prior > 1e-8).sum())

    @property
    def wealth(self) -> Array:
        """(concentrations,) log wealth."""
        return cells_wealth(self.counts, self.prior, np.array(self.loss))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The counts, to be shown."""
        rows = zip([*self.tokens, None], self.counts.tolist(), self.expected.tolist(), strict=True)
        return tuple(Cell(*row) for row in rows if row[2])


def _masses(probs: Tensor, tokens: Sequence[int]) -> Array:
    """Probabilities of the cells; the last is the remaining mass."""
    own = probs[tokens].double().cpu().numpy()
    return np.append(own, max(0.0, float(probs.double().sum()) - float(own.sum())))


@dataclass
class Events:
    """Bets on successive events, each with its own probability."""

    count: int = 0
    expected: float = 0.0
    wealth: Array = field(default_factory=lambda: np.zeros(len(LOG_ODDS)))

    def add(self, came: bool, chance: float) -> None:
        """Bet on one event; a certain one changes nothing."""
        chance = min(1.0, max(0.0, chance))
        self.count += 1
        self.expected += chance
        if 0 < chance < 1:
            self.wealth += event_wealth(np.array(float(came)), np.array(chance))


def cells_test(name: str, prompt: str | None, groups: Mapping[int | None, Group]) -> BetTest:
    """One test of several groups; their wealths multiply."""
    known = {given: group for given, group in groups.items() if group.size > 1 and group.counts.sum()}
    wealth = sum((group.wealth for group in known.values()), np.zeros(len(CONCENTRATIONS)))
    sizes = [(round(group.counts.sum()), group.size) for group in known.values()]
    cells = {given: group.cells for given, group in known.items()}
    return BetTest(name, prompt, sum(count for count, _ in sizes), float(mixture(wealth)), sizes, 0.0, cells)


def event_test(name: str, events: Events) -> BetTest:
    """The test of a sequence of events."""
    return BetTest(
        name, None, events.count, float(mixture(events.wealth)), (), events.expected / max(1, events.count)
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for multiple tests (Holm 1979).

    Rejecting those up to alpha rejects any true hypothesis with probability at most alpha, however the tests
    depend on each other.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted, worst = [0.0] * len(p_values), 0.0
    for place, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = worst
    return adjusted
