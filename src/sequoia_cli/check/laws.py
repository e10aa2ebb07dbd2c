"""Whether counts have a law: chi-squared tests, a normal one, and what becomes of many of them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from scipy.optimize import brentq
from scipy.stats import chi2, ncx2
from torch import Tensor

#: Outcomes that are expected less often are counted together.
LEAST_EXPECTED = 10.0

#: The chance with which a deviation that is said to be seen is seen.
POWER = 0.99


@dataclass(frozen=True)
class Cell:
    """How often something came, and how often the exact law has it: a `token`, or all others (None)."""

    token: int | None
    seen: float
    expected: float


@dataclass(frozen=True)
class LawTest:
    """One comparison with the exact law. `prompt` is None where all prompts are taken together.

    `statistic` is chi-squared of `degrees` degrees of freedom if the tool has the law. `cells` have the
    counts behind it, by what was given (the token before, or nothing).
    """

    name: str
    prompt: str | None
    count: int
    statistic: float
    degrees: int
    cells: Mapping[int | None, tuple[Cell, ...]] = field(default_factory=dict)

    @property
    def p_value(self) -> float:
        """The chance of a statistic as large."""
        return float(chi2.sf(self.statistic, self.degrees))

    def detectable(self, level: float) -> float:
        """A total variation over the cells that a test at `level` sees with probability `POWER`, or more.

        With d the chi-squared divergence from the law, the statistic's noncentrality is count * d, and a
        total variation t over the cells has d >= 4 t^2.
        """
        least = chi2.isf(level, self.degrees)
        needed = brentq(lambda shift: ncx2.sf(least, self.degrees, shift) - POWER, 1e-6, 1e6)
        return min(1.0, 0.5 * math.sqrt(needed / self.count))


def token_cells(seen: Mapping[int, int], expected: Tensor) -> tuple[Cell, ...]:
    """Counts of tokens beside (vocabulary,) sums of the laws that they were drawn from.

    Which tokens have a cell of their own depends on these alone. Empty where fewer than two cells are left.
    """
    common = (expected >= LEAST_EXPECTED).nonzero()[:, 0].tolist()
    cells = [Cell(token, seen.get(token, 0), float(expected[token])) for token in common]
    cells.sort(key=lambda cell: -cell.expected)
    total = sum(seen.values())
    rest = Cell(None, total - sum(cell.seen for cell in cells), total - sum(cell.expected for cell in cells))
    if rest.expected < LEAST_EXPECTED and cells:
        last = cells.pop()
        rest = Cell(None, rest.seen + last.seen, rest.expected + last.expected)
    return (*cells, rest) if cells else ()


def chi_squared(
    name: str, prompt: str | None, groups: Iterable[tuple[int | None, Sequence[Cell]]]
) -> LawTest | None:
    """A test of several groups of cells, each with its own total. None where nothing can be tested."""
    tested = {given: tuple(cells) for given, cells in groups if len(cells) > 1}
    if not tested:
        return None
    cells = [cell for group in tested.values() for cell in group]
    statistic = sum((cell.seen - cell.expected) ** 2 / max(cell.expected, 1e-9) for cell in cells)
    return LawTest(
        name,
        prompt,
        round(sum(cell.seen for cell in cells)),
        statistic,
        len(cells) - len(tested),
        tested,
    )


def of_moments(name: str, deviations: Sequence[tuple[float, float]]) -> LawTest | None:
    """A test of the sum of deviations from means that were known before, each with its known variance.

    It is normal by the central limit theorem for martingales: each has mean 0 whatever those before it were.
    """
    variance = sum(own for _, own in deviations)
    if variance < LEAST_EXPECTED / 4:
        return None
    return LawTest(name, None, len(deviations), sum(off for off, _ in deviations) ** 2 / variance, 1)


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
