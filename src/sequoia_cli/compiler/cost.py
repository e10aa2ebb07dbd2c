"""A profile's times as the compiler uses them: checked, never falling, and looked up once for all trees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sequoia_cli.compiler.tables import Floats, Ints
from sequoia_cli.core.costs import Points, StepCosts
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.errors import BadInput

#: Seconds that a part of a step can take: sums and ratios of such times never overflow.
SHORTEST, LONGEST = 1e-12, 1e9


def check_first_times(profile: HardwareProfile, source: str = "the profile") -> None:
    """Plain decoding and the first level of every tree need the times for 1; `BadInput` names what lacks."""
    for part, curve in profile.curves.items():
        if not np.isfinite(curve.seconds(1)):
            raise BadInput(
                f"{source}: '{part}_seconds' begin at {curve.points[0][0]}; a time for 1 is needed"
            )


def usable(profile: HardwareProfile, source: str = "the profile") -> tuple[HardwareProfile, list[str]]:
    """The profile with times that never fall as counts rise, and warnings of what was assumed.

    Raises `BadInput` for times that no machine has, and where the time for 1 is missing.
    """
    check_first_times(profile, source)
    warnings, constant = [], []
    changed: dict[str, Any] = {}
    for key in ("target_seconds", "draft_seconds", "verify_seconds"):
        timings = getattr(profile, key)
        for count, seconds in timings:
            if not SHORTEST <= seconds <= LONGEST:
                raise BadInput(
                    f"{source}: '{key}' has {seconds:g} seconds for {count}; "
                    f"{SHORTEST:g} to {LONGEST:g} are possible"
                )
        if len(timings) == 1:
            constant.append(f"'{key}'")
        falls = [(one, two) for one, two in pairwise(timings) if two[1] < one[1]]
        if falls:
            (one, before), (two, after) = falls[0]
            changed[key] = _rising(timings)
            warnings.append(
                f"the profile's '{key}' falls from {before:g} s for {one} to {after:g} s for {two}; "
                "more is taken to cost at least as much"
            )
    if profile.overhead_seconds > LONGEST:
        raise BadInput(
            f"{source}: 'overhead_seconds' is {profile.overhead_seconds:g}; at most {LONGEST:g} is possible"
        )
    if constant:
        warnings.append(
            f"one time alone in the profile's {' and '.join(constant)}: taken as the same for every size"
        )
    return replace(profile, **changed), warnings


def _rising(timings: Points) -> Points:
    """The closest times that never fall (isotonic regression)."""
    from scipy.optimize import isotonic_regression  # slow to import, and seldom needed

    fitted = isotonic_regression([seconds for _, seconds in timings]).x
    return tuple((count, float(seconds)) for (count, _), seconds in zip(timings, fitted, strict=True))


def widest_level(size: int) -> int:
    """Most nodes with children in a level of a tree of `size` nodes: each has one below, and all a root."""
    return max(1, (size - 1) // 2)


@dataclass(frozen=True)
class CostTable:
    """Costs looked up once for all sizes and widths up to a limit; infinite where they do not reach.

    `step` (size) is all but the draft, `draft` (width) one level; no width costs nothing.
    """

    step: Floats
    draft: Floats

    @classmethod
    def of(cls, costs: StepCosts, size: int) -> CostTable:
        """Look up sizes and widths 1..`size`."""
        step, draft = (
            np.array([np.inf, *map(curve.seconds, range(1, size + 1))])
            for curve in (costs.target, costs.draft)
        )
        draft[0] = 0.0
        return cls(costs.overhead + step, draft)

    @cached_property
    def widest(self) -> int:
        """Most nodes with children that the profile covers in one level, of those looked up."""
        return int(np.count_nonzero(np.isfinite(self.draft))) - 1

    @cached_property
    def extra(self) -> Floats:
        """Seconds that the next node with children adds to its level, by their number with it; 0 for none."""
        return np.diff(self.draft[: self.widest + 1], prepend=0.0)

    @cached_property
    def bends(self) -> NDArray[np.intp]:
        """Widths after which the cost of a level rises more or less than before."""
        change = np.abs(np.diff(self.extra[2:]))
        return np.flatnonzero(change > 1e-9 * self.draft[1]) + 2

    def seconds(self, widths: Ints) -> Floats:
        """Seconds per step of one tree per size, given the nodes with children (size, level) of each."""
        seconds: Floats = self.step[: len(widths)] + self.draft[widths].sum(axis=1)
        return seconds
