"""The cost model: seconds of a decoding step, from a curve for each of its named parts.

The Sequoia paper charges t(n) + d * c for a tree of n nodes and d layers (arXiv 2402.12374, section 4.1): one
constant per layer. Here each level costs what its width costs, the last layer costs no draft, since nothing
is grown from it, and every other part of a step is charged too. Plain decoding is the root alone: no draft.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Any, Literal

from sequoia_cli.core.artifact import Fields, is_number

#: Pairs (count, seconds), rising in the count.
Points = tuple[tuple[int, float], ...]

#: What a choice of tree minimises, by name: the sum of all parts in this unit, per token.
OBJECTIVES = {"seconds per token": "seconds", "joules per token": "joules"}


@dataclass(frozen=True)
class Curve:
    """Seconds by count, linear between its points. A single point is a constant."""

    points: Points

    def seconds(self, count: int) -> float:
        """Seconds at `count`; infinite outside the points.

        Nothing is extrapolated, since the knee of a cost curve lies just where one would.
        """
        points = self.points
        if len(points) == 1:
            return points[0][1]
        index = bisect_left(points, (count,))
        if index == len(points) or count < points[0][0]:
            return inf
        above = points[index]
        if above[0] == count:
            return above[1]
        below = points[index - 1]
        return below[1] + (count - below[0]) / (above[0] - below[0]) * (above[1] - below[1])

    @property
    def end(self) -> int | None:
        """The last count that the curve covers; None for a constant."""
        return self.points[-1][0] if len(self.points) > 1 else None

    def up_to(self, count: int) -> Curve:
        """The curve up to `count`, to six digits, without points on the line between their neighbours."""
        points = [point for point in self.points if point[0] < count or len(self.points) == 1]
        if len(self.points) > 1 and isfinite(last := self.seconds(count)):
            points.append((count, last))
        kept = points[:1]
        for point, after in pairwise(points[1:]):
            if abs(Curve((kept[-1], after)).seconds(point[0]) - point[1]) > 1e-6 * point[1]:
                kept.append(point)
        kept += points[1:][-1:]
        return Curve(tuple((each, float(f"{seconds:.6g}")) for each, seconds in kept))


def combined(curves: Sequence[Curve], how: Callable[[list[float]], float] = sum) -> Curve:
    """`how` (sum, max, a mean) of curves where all are known: exact at their points, linear between them.

    The maximum is therefore never too low between points.
    """
    varying = [curve for curve in curves if curve.end is not None] or curves[:1]
    counts = sorted({count for curve in varying for count, _ in curve.points})
    points = [(count, how([curve.seconds(count) for curve in curves])) for count in counts]
    return Curve(tuple(point for point in points if isfinite(point[1])))


@dataclass(frozen=True)
class StepCosts:
    """A cost model added up: what trees are chosen by, in the compiler and, from a plan, at run time.

    `target` has all that depends on the nodes of the tree, such as the target's forward and verification,
    `draft` growing one level by the nodes expanded there, `overhead` what every step costs besides.
    """

    target: Curve
    draft: Curve
    overhead: float = 0.0

    def seconds(self, size: int, widths: Iterable[int] = ()) -> float:
        """Seconds of a step with a tree of `size` nodes that expands so many in each level; none is plain."""
        return self.overhead + self.target.seconds(size) + sum(map(self.draft.seconds, widths))

    def up_to(self, size: int) -> StepCosts:
        """The costs of trees of up to `size` nodes, as short as can be."""
        return StepCosts(self.target.up_to(size), self.draft.up_to(size), self.overhead)

    @classmethod
    def from_fields(cls, fields: Fields) -> StepCosts:
        """Check and read the costs in a tree file."""
        overhead = fields.data.get("overhead", 0.0)
        if not is_number(overhead) or overhead < 0:
            raise fields.wrong("overhead", "seconds, a number of at least 0")
        return cls(Curve(fields.pairs("target")), Curve(fields.pairs("draft")), overhead)

    def to_dict(self) -> dict[str, Any]:
        """The costs as they stand in a file; inverse of `from_fields`."""
        return {
            "target": [list(point) for point in self.target.points],
            "draft": [list(point) for point in self.draft.points],
            "overhead": self.overhead,
        }


@dataclass(frozen=True)
class Stage:
    """Parts of a step that run at the same time: the stage takes as long as the longest of them.

    `parts` has a curve by name, over the nodes of the tree, or over the nodes that a level expands (paid for
    each level). The curves of a stage paid once a `step` are constants.
    """

    parts: Mapping[str, Curve]
    per: Literal["nodes", "level", "step"] = "nodes"
    unit: str = "seconds"


@dataclass(frozen=True)
class CostModel:
    """The stages of a step, one after the other, for `batch` texts with so many tokens of context each."""

    stages: tuple[Stage, ...]
    context: int | None = None
    batch: int = 1

    def costs(self, objective: str = "seconds per token") -> StepCosts:
        """The sum over stages of the maximum over the parts of each, of the parts in the objective's unit."""
        unit = OBJECTIVES[objective]

        def total(per: str) -> Curve:
            found = [stage for stage in self.stages if (stage.per, stage.unit) == (per, unit)]
            curves = [combined(list(stage.parts.values()), max) for stage in found]
            return combined(curves) if curves else Curve(((1, 0.0),))

        return StepCosts(total("nodes"), total("level"), total("step").seconds(1))

    def parts(self, size: int, widths: Sequence[int] = ()) -> dict[str, float]:
        """The cost of each part by name, of a step as in `StepCosts.seconds`. Parts of a stage overlap."""
        counts = {"nodes": [size], "level": widths, "step": [1]}
        return {
            name: sum(map(curve.seconds, counts[stage.per]))
            for stage in self.stages
            for name, curve in stage.parts.items()
        }
