"""Statistical tests of sampled steps: bets on tokens at the odds of the reference distribution.

The odds are transformers' own warpers applied to the tool's logits of each step. Those logits are compared
with the reference's separately, row by row (`run.py`, `texts.py`), so that their rounding does not enter the
statistics. By every verifier's proof, a token has this distribution given the tokens before it and the number
of them that came in the same step.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sequoia_cli.check.betting import (
    LEAST_EXPECTED,
    BetTest,
    Events,
    Group,
    cells_test,
    event_test,
)
from sequoia_cli.check.distribution import Distribution, distribution, possible
from sequoia_cli.check.observed import ObservedStep
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw

#: Tests of the first two tokens after a prompt.
FIRST = "first token"
WITHIN = "second token, same step"
ACROSS = "second token, next step"
#: Tests of the first token of every step: tokens that a draft proposes too often; random numbers of the step
#: before used again.
FAVOURED = "draft's favourites"
SUCCESSIVE = "successive steps"
#: Tests of a text's first token: random numbers used again from the text before, or from another prompt's
#: text.
TEXTS = "successive texts"
PROMPTS = "texts of other prompts"
#: Tests of every token's rank in its distribution.
DEEPEST = "ranks, after a leaf"
OTHERS = "ranks, other tokens"

BINS = 10
_UNIFORM = Distribution(
    torch.full((BINS,), 1 / BINS, dtype=torch.float64), torch.zeros(BINS, dtype=torch.bool)
)


def favourites(number: int) -> str:
    """The name of the test of a draft's favourites; drafts are numbered from 0."""
    return FAVOURED if number == 0 else f"{FAVOURED}, draft {number + 1}"


@dataclass
class Tally:
    """All counts; `add` takes a text's steps. About `samples` texts start at each of `prompts`.

    `groups` has outcomes by prompt (None: all) and test, then by the token before. `events` has bets on
    events. Both have every test from the start, so that the number of tests does not depend on the outcomes.
    `impossible` counts tokens of probability 0.
    """

    sampling: Sampling
    random: random.Random
    samples: int
    prompts: Sequence[str] = ()
    drafts: int = 1
    groups: dict[tuple[str | None, str], dict[int | None, Group]] = field(init=False)
    events: dict[str, Events] = field(init=False)
    tokens: int = 0
    impossible: int = 0
    _starts: dict[str, dict[int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        each = [(prompt, test) for prompt in self.prompts for test in (FIRST, WITHIN, ACROSS)]
        self.groups = {key: {} for key in [*each, (None, DEEPEST), (None, OTHERS)]}
        names = [*map(favourites, range(self.drafts)), SUCCESSIVE, TEXTS, PROMPTS]
        self.events = {name: Events() for name in names}

    def add(self, steps: Sequence[ObservedStep], prompt: str, number: int = 0) -> None:
        """Count the steps of text `number` of a prompt."""
        given: float | None = None
        emitted: list[tuple[int, Distribution, bool]] = []
        for at, step in enumerate(steps):
            rows = [Distribution(*row) for row in zip(*distribution(step.logits, self.sampling), strict=True)]
            for place, (token, own) in enumerate(zip(step.tokens, rows, strict=True)):
                emitted.append((token, own, place == 0))
                self.impossible += not possible(token, step.logits[place], self.sampling)
                self._add_rank(DEEPEST if place == step.depth - 1 > 0 else OTHERS, token, own.probs)
            if step.proposed:
                given = self.add_start(rows[0], step.proposed, step.tokens[0], step.rank, given)
                if at == 0:
                    self._compare_texts(rows[0], step.proposed[0], step.tokens[0], prompt, number, given)
        first, own, _ = emitted[0]
        self.count(prompt, FIRST, None, first, own, self.samples)
        expected = float(own.probs[first]) * self.samples
        if expected >= 2 * LEAST_EXPECTED:  # else there are too few to test
            for second, after, starts in emitted[1:2]:
                self.count(prompt, ACROSS if starts else WITHIN, first, second, after, expected)

    def add_start(
        self, row: Distribution, proposed: Sequence[Tensor], token: int, rank: int | None, given: float | None
    ) -> float | None:
        """Count a step's first token, the root's child of this `rank` (None: no child).

        Returns the uniform number that drew the step's first child from the first draft, None if unknown;
        `given` is that of the step before.
        """
        for number, own in enumerate(proposed):
            favours = (own > row.probs) & ~row.tied
            self.events[favourites(number)].add(bool(favours[token]), float(row.probs[favours].sum()))
        self._expect_again(SUCCESSIVE, given, row, proposed[0], token)
        before = proposed[0][:token].double().sum() + proposed[0][token] / 2
        return float(before / proposed[0].double().sum()) if rank == 0 else None

    def count(
        self,
        prompt: str | None,
        test: str,
        given: int | None,
        outcome: int,
        row: Distribution,
        samples: float,
    ) -> None:
        """Count an outcome with (outcomes,) probabilities; about `samples` outcomes are expected."""
        groups = self.groups[prompt, test]
        if given not in groups:
            groups[given] = Group.of(row.probs, samples, row.tied)
        groups[given].add(outcome, row.probs)

    def tests(self) -> Iterator[BetTest]:
        """All tests; one without counts has a p-value of 1."""
        for (prompt, name), groups in self.groups.items():
            yield cells_test(name, prompt, groups)
        for name, events in self.events.items():
            yield event_test(name, events)

    def _expect_again(
        self, test: str, given: float | None, row: Distribution, proposed: Tensor, token: int
    ) -> None:
        """Bet that the uniform number of another step's first child, `given`, also drew this one's.

        Then the token is the one that `given` draws; otherwise that token has its own probability.
        """
        if given is not None:
            again = draw(proposed, given)
            if not row.tied[again]:
                self.events[test].add(token == again, float(row.probs[again]))

    def _compare_texts(
        self, row: Distribution, proposed: Tensor, token: int, prompt: str, number: int, given: float | None
    ) -> None:
        """Bet on the uniform of the text before, and on that of the same text number of the prompt before."""
        before = next((self._starts[name] for name in reversed(self._starts) if name != prompt), {})
        own = self._starts.setdefault(prompt, {})
        self._expect_again(TEXTS, own.get(number - 1), row, proposed, token)
        self._expect_again(PROMPTS, before.get(number), row, proposed, token)
        if given is not None:
            own[number] = given

    def _add_rank(self, test: str, token: int, probs: Tensor) -> None:
        """Count a uniform position in the token's interval of [0, 1).

        The intervals are as long as the probabilities and ordered by them, largest first; tokens of equal
        probability share one.
        """
        own = probs[token]
        before, part = (float(probs[rows].sum()) for rows in (probs > own, probs == own))
        position = (before + self.random.random() * part) / float(probs.sum())
        self.count(None, test, None, min(int(position * BINS), BINS - 1), _UNIFORM, 1000.0)
        self.tokens += 1
