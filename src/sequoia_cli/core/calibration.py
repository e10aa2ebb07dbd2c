"""Calibration: how often a child is accepted, by depth, draw order and what the draft gave to that order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sequoia_cli.core.artifact import is_number

#: Ends of the bins of a probability.
EDGES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
BINS = len(EDGES) + 1

#: Trials and acceptances by (depth, order of drawing, bin), all from 0.
Cells = Mapping[tuple[int, int, int], tuple[float, float]]

#: What a coarser rate is worth as the prior of a finer one, in trials.
PRIOR_TRIALS = 8.0

Table = tuple[tuple[tuple[float, ...], ...], ...]


def bin_of(probability: float) -> int:
    """The bin of a probability."""
    return bisect_right(EDGES, probability)


def add_cells(many: Iterable[Cells]) -> Cells:
    """The sum of several counts."""
    total: dict[tuple[int, int, int], tuple[float, float]] = {}
    for cells in many:
        for key, (trials, accepted) in cells.items():
            before = total.get(key, (0.0, 0.0))
            total[key] = before[0] + trials, before[1] + accepted
    return total


@dataclass(frozen=True)
class Calibration:
    """`acceptance[depth][order][bin]`: the chance that a node's child of that order is the one accepted.

    The bin is that of the largest, second largest, ... of the probabilities that the node's children are
    drawn from: for child j the j-th largest. It is known before the child is drawn; where the most probable
    children are taken it is the child's own. `seen` has the share of each bin among all trials of a depth
    and order. The last depth holds for all deeper ones too.
    """

    acceptance: Table
    seen: Table

    @classmethod
    def of(cls, cells: Cells) -> Calibration:
        """Rates from counts. Each is shrunk towards that of its order and bin at all depths, that towards
        the rate of its bin, and that towards the bin's own probability, by `PRIOR_TRIALS` each."""
        depths, orders = (1 + max(key[axis] for key in cells) for axis in (0, 1))

        def pooled(*axes: int) -> dict[tuple[int, ...], tuple[float, float]]:
            found: dict[tuple[int, ...], tuple[float, float]] = {}
            for key, (trials, accepted) in cells.items():
                group = tuple(key[axis] for axis in axes)
                before = found.get(group, (0.0, 0.0))
                found[group] = before[0] + trials, before[1] + accepted
            return found

        by_bin, by_order, of_depth = pooled(2), pooled(1, 2), pooled(0, 1)

        def rate(depth: int, order: int, bin_: int) -> float:
            low, high = (0.0, *EDGES)[bin_], (*EDGES, 1.0)[bin_]
            found = (low + high) / 2
            for counts in (
                by_bin.get((bin_,)),
                by_order.get((order, bin_)),
                cells.get((depth, order, bin_)),
            ):
                trials, accepted = counts or (0.0, 0.0)
                found = (accepted + PRIOR_TRIALS * found) / (trials + PRIOR_TRIALS)
            return round(min(1.0, found), 5)

        def share(depth: int, order: int, bin_: int) -> float:
            whole = of_depth.get((depth, order), (0.0, 0.0))[0]
            return round(cells.get((depth, order, bin_), (0.0, 0.0))[0] / whole, 5) if whole else 0.0

        acceptance, seen = (
            tuple(tuple(tuple(f(d, j, b) for b in range(BINS)) for j in range(orders)) for d in range(depths))
            for f in (rate, share)
        )
        return cls(acceptance, seen)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Calibration:
        """Read what `to_entry` gave. Raises `TypeError`, `KeyError` or `ValueError` for anything else."""
        if tuple(entry["edges"]) != EDGES:
            raise ValueError("edges")
        acceptance, seen = (_table(entry[key]) for key in ("acceptance", "seen"))
        if [len(rows) for rows in acceptance] != [len(rows) for rows in seen]:
            raise ValueError("shape")
        return cls(acceptance, seen)

    def to_entry(self) -> dict[str, Any]:
        """The calibration as it stands in a plan."""

        def listed(table: Table) -> list[Any]:
            return [[list(row) for row in rows] for rows in table]

        return {"edges": list(EDGES), "acceptance": listed(self.acceptance), "seen": listed(self.seen)}


def _table(value: Sequence[Any]) -> Table:
    found = tuple(tuple(tuple(row) for row in rows) for rows in value)
    rows = [row for part in found for row in part]
    if not rows or len({len(part) for part in found}) != 1 or any(len(row) != BINS for row in rows):
        raise ValueError("shape")
    if not all(is_number(rate) and 0 <= rate <= 1 for row in rows for rate in row):
        raise ValueError("rate")
    return found
