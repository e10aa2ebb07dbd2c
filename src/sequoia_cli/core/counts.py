"""What acceptance was counted: trials and acceptances of each prompt, and their sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sequoia_cli.core.artifact import is_count, is_number
from sequoia_cli.core.calibration import BINS, Cells

#: One row per depth, the root's children first; in a row one value per child rank.
Rows = tuple[tuple[float, ...], ...]

#: A depth below the first with fewer trials than this has no row of its own: it is pooled with all deeper
#: ones, since the compiler would chase the noise of less (a standard error above 0.025 at p = 0.5).
MIN_TRIALS = 400


@dataclass(frozen=True)
class PromptCounts:
    """What one prompt contributed: trials by depth, acceptances by depth and rank.

    Expectations are allowed in place of counts: the teacher-forced estimator adds up probabilities.
    `prompt` is its place among the prompts, `id` its name, `digest` the identity of its content, and `seed`
    that of its text where one was drawn. Files made by hand or by older versions have the place alone.
    `cells` are the same trials by what the draft gave (see `Calibration`); none where that was not counted.
    """

    prompt: int
    trials: tuple[float, ...]
    accepted: Rows
    id: str = ""
    digest: str = ""
    seed: int | None = None
    cells: Cells = field(default_factory=dict)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> PromptCounts:
        """Read what `to_entry` gave. Raises `TypeError`, `KeyError` or `ValueError` for anything else."""
        return cls(
            int(entry["prompt"]),
            tuple(map(_count, entry["trials"])),
            tuple(tuple(map(_count, row)) for row in entry["accepted"]),
            str(entry.get("id", "")),
            str(entry.get("digest", "")),
            None if entry.get("seed") is None else int(entry["seed"]),
            _cells(entry.get("cells", [])),
        )

    def to_entry(self) -> dict[str, Any]:
        """The counts as they stand in a file."""
        return {
            "prompt": self.prompt,
            **{key: value for key in ("id", "digest") if (value := getattr(self, key))},
            **({} if self.seed is None else {"seed": self.seed}),
            "trials": [short(value) for value in self.trials],
            "accepted": [[short(value) for value in row] for row in self.accepted],
            **({"cells": [[*key, *map(short, of)] for key, of in self.cells.items()]} if self.cells else {}),
        }


def by_prompt(samples: Sequence[PromptCounts]) -> list[PromptCounts]:
    """The counts of each prompt: the sum where a prompt has several texts, of different seeds."""
    groups: dict[str | int, list[PromptCounts]] = {}
    for number, sample in enumerate(samples):
        groups.setdefault(sample.digest or number, []).append(sample)
    found = []
    for group in groups.values():
        trials, accepted = totals(group)
        found.append(replace(group[0], trials=tuple(trials), accepted=tuple(map(tuple, accepted))))
    return found


def pooled_rate(samples: Sequence[PromptCounts], rank: int) -> tuple[float, float]:
    """The rate of a rank under the root, and its standard error (infinite for a single prompt).

    Trials on one prompt depend on each other, so the prompt is the unit: the usual linearised error of a
    ratio of sums over clusters.
    """
    samples = by_prompt(samples)
    trials = [sample.trials[0] for sample in samples]
    hits = [sample.accepted[0][rank] for sample in samples]
    total, count = sum(trials), len(samples)
    rate = sum(hits) / total if total else 0.0
    if count < 2 or not total:
        return rate, math.inf
    squares = sum((h - rate * t) ** 2 for h, t in zip(hits, trials, strict=True))
    return rate, math.sqrt(squares * count / (count - 1)) / total


def totals(samples: Sequence[PromptCounts]) -> tuple[list[float], list[list[float]]]:
    """Trials by depth, and acceptances by depth and rank, over all samples; both empty without any."""
    if not samples:
        return [], []
    trials = [sum(column) for column in zip(*(s.trials for s in samples), strict=True)]
    accepted = [
        [sum(column) for column in zip(*rows, strict=True)]
        for rows in zip(*(s.accepted for s in samples), strict=True)
    ]
    return trials, accepted


def pools(trials: Sequence[float]) -> list[tuple[range, float]]:
    """The depths that each row of rates is of, and their trials."""
    # The first row is the root's in any case: that is the one the standard errors are of.
    own = next((depth for depth in range(1, len(trials)) if trials[depth] < MIN_TRIALS), len(trials))
    found = [(range(depth, depth + 1), trials[depth]) for depth in range(own)]
    if (rest := sum(trials[own:])) >= MIN_TRIALS:
        found.append((range(own, len(trials)), rest))
    return found


def _count(value: Any) -> float:
    if not is_number(value) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return float(value)


def _cells(listed: Any) -> Cells:
    """Entries of depth, order, bin, trials and accepted."""
    found = {}
    for depth, order, bin_, trials, accepted in listed:
        if not all(is_count(number + 1) for number in (depth, order, bin_)) or bin_ >= BINS:
            raise ValueError("no cell")
        if _count(accepted) > _count(trials) * (1 + 1e-3) + 1e-3:
            raise ValueError("more acceptances than trials")
        found[depth, order, bin_] = float(trials), float(accepted)
    return found


def short(value: float) -> float | int:
    """A count as files have it: whole numbers as such; expectations keep four decimals."""
    return int(value) if float(value).is_integer() else round(value, 4)
