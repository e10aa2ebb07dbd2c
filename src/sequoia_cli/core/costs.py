"""What a decoding step costs: curves of seconds, and their sum over the parts of a step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Any

from sequoia_cli.core.artifact import Fields, is_number

#: Pairs (count, seconds), rising in the count.
Points = tuple[tuple[int, float], ...]


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


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a decoding step, as a plan carries them to choose trees by at run time.

    `target` has a target forward and verification by nodes of the tree, `draft` growing one level by the
    nodes expanded there, `overhead` what every step costs besides.
    """

    target: Curve
    draft: Curve
    overhead: float = 0.0

    def seconds(self, size: int, widths: Iterable[int] = ()) -> float:
        """Seconds of a step with a tree of `size` nodes that expands so many in each level; none is plain."""
        return self.overhead + self.target.seconds(size) + sum(map(self.draft.seconds, widths))

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
