"""What sampled steps say of the tool's law: counts beside the laws that the tokens were to be drawn from.

The laws are those of the tool's own logits, which are compared with the target's row by row (`texts.py`): so
rounding, which makes these differ, is no part of the statistics, and they are exact in every dtype. By every
verifier's proof a token has its law given the tokens before it and how much of them one step has brought.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sequoia_cli.check.laws import LEAST_EXPECTED, Cell, LawTest, chi_squared, of_moments, token_cells
from sequoia_cli.check.watched import Seen
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.warp import probabilities

#: The tests: of the first two tokens behind a prompt, ...
FIRST = "first token"
WITHIN = "second token, same step"
ACROSS = "second token, next step"
#: ... of the first token of every step: what the draft proposes too often, what the step before had, ...
FAVOURED = "draft's favourites"
SUCCESSIVE = "successive steps"
#: ... and of every token, by its place among all of them.
DEEPEST = "ranks, behind a leaf"
OTHERS = "ranks, other tokens"

_BINS = 10
_UNIFORM = torch.full((_BINS,), 1 / _BINS, dtype=torch.float64)


@dataclass
class Group:
    """Outcomes under one condition, and the sum of the laws that each was drawn from.

    The laws need not be the same: that makes the counts vary less than a test takes them to, never more.
    """

    seen: Counter[int] = field(default_factory=Counter)
    expected: Tensor | None = None

    def add(self, outcome: int, law: Tensor) -> None:
        """Count an outcome of (outcomes,) probabilities."""
        self.seen[outcome] += 1
        self.expected = law.double() if self.expected is None else self.expected + law

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The counts as they are tested."""
        return token_cells(self.seen, self.expected) if self.expected is not None else ()


@dataclass
class Tally:
    """Everything that is counted; `add` takes a text's steps. `samples` texts begin behind each prompt.

    `groups` has outcomes by prompt (None: all) and test, then by what was given. `favoured` has of every
    step's first token whether the draft favours it, less the chance of that, and the variance; `successive`
    the same of whether it is what the step before would have drawn here. `impossible` counts tokens that had
    no probability.
    """

    sampling: Sampling
    random: random.Random
    samples: int
    groups: dict[tuple[str | None, str], dict[int | None, Group]] = field(default_factory=dict)
    favoured: list[tuple[float, float]] = field(default_factory=list)
    successive: list[tuple[float, float]] = field(default_factory=list)
    tokens: int = 0
    impossible: int = 0

    def add(self, steps: Sequence[Seen], prompt: str | None = None) -> None:
        """Count a text's steps; `prompt` is given for one of many texts begun behind it."""
        given: float | None = None
        told: list[tuple[int, Tensor, bool]] = []
        for step in steps:
            laws = probabilities(step.logits, self.sampling)
            for place, (token, law) in enumerate(zip(step.tokens, laws, strict=True)):
                told.append((token, law, place == 0))
                self._add_rank(DEEPEST if place == step.depth - 1 > 0 else OTHERS, token, law)
            if step.proposed is not None:
                given = self.add_start(laws[0], step.proposed, step.tokens[0], step.rank, given)
        if prompt is not None:
            first, law, _ = told[0]
            self.count(prompt, FIRST, None, first, law)
            # Behind a rare token there will not be enough to test.
            if float(law[first]) * self.samples >= 2 * LEAST_EXPECTED:
                for second, law, anew in told[1:2]:
                    self.count(prompt, ACROSS if anew else WITHIN, first, second, law)

    def add_start(
        self, law: Tensor, proposed: Tensor, token: int, rank: int | None, given: float | None
    ) -> float | None:
        """Count a step's first token, the child of the root of that `rank` or none.

        `given` is what this returned for the step before: where its first child was drawn in the draft's
        cumulative distribution, None where that cannot be told. Were the same number used again, this step's
        first child would be the token there; but whatever was drawn before, it comes by its own probability.
        """
        favours = proposed > law
        self.favoured.append(_deviation(bool(favours[token]), float(law[favours].double().sum())))
        if given is not None:
            again = draw(proposed, given)
            self.successive.append(_deviation(token == again, float(law[again])))
        before = proposed[:token].double().sum() + proposed[token] / 2
        return float(before / proposed.double().sum()) if rank == 0 else None

    def count(self, prompt: str | None, test: str, given: int | None, outcome: int, law: Tensor) -> None:
        """Count an outcome."""
        self.groups.setdefault((prompt, test), {}).setdefault(given, Group()).add(outcome, law)

    def _add_rank(self, test: str, token: int, law: Tensor) -> None:
        """A uniform place in the token's part of [0, 1), parts by falling probability.

        Tokens of equal probability share their part.
        """
        whole, own = law.double(), law[token]
        before, part = (float(whole[rows].sum()) for rows in (law > own, law == own))
        place = (before + self.random.random() * part) / float(whole.sum())
        self.count(None, test, None, min(int(place * _BINS), _BINS - 1), _UNIFORM)
        self.tokens += 1
        self.impossible += not own > 0

    def tests(self) -> Iterator[LawTest]:
        """All tests that there are enough counts for."""
        for (prompt, name), groups in self.groups.items():
            if test := chi_squared(name, prompt, ((given, group.cells) for given, group in groups.items())):
                yield test
        for name, deviations in ((FAVOURED, self.favoured), (SUCCESSIVE, self.successive)):
            if test := of_moments(name, deviations):
                yield test


def _deviation(came: bool, chance: float) -> tuple[float, float]:
    """What came less its chance, and the variance of that."""
    return came - chance, max(0.0, chance * (1 - chance))
