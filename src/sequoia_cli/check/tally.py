"""What sampled steps say of the tool's distribution: bets on tokens at the odds of the reference.

The odds are transformers' own warpers over the logits of each step, and these are compared with the target's
own forward row by row (`run.py`, `texts.py`). So rounding, which makes logits differ, is no part of the
statistics. By every verifier's proof a token has its distribution given the tokens before it and how much of
them one step has brought.
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
from sequoia_cli.check.watched import Seen
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw

#: The tests: of the first two tokens after a prompt, ...
FIRST = "first token"
WITHIN = "second token, same step"
ACROSS = "second token, next step"
#: ... of the first token of every step: what a draft proposes too often, what the step before had, ...
FAVOURED = "draft's favourites"
SUCCESSIVE = "successive steps"
#: ... of a text's first token: what the text before had, and the text of that number of another prompt, ...
TEXTS = "successive texts"
PROMPTS = "texts of other prompts"
#: ... and of every token, by its place among all of them.
DEEPEST = "ranks, after a leaf"
OTHERS = "ranks, other tokens"

BINS = 10
_UNIFORM = Distribution(
    torch.full((BINS,), 1 / BINS, dtype=torch.float64), torch.zeros(BINS, dtype=torch.bool)
)


def favourites(number: int) -> str:
    """The test of a draft's favourites, drafts numbered from 0."""
    return FAVOURED if number == 0 else f"{FAVOURED}, draft {number + 1}"


@dataclass
class Tally:
    """Everything that is counted; `add` takes a text's steps. `samples` texts start at each of `prompts`.

    `groups` has outcomes by prompt (None: all) and test, then by the token before. `events` has bets on what
    should come with its own chance only. Both have every test from the start, so that how many there are does
    not depend on what comes. `impossible` counts tokens that had no probability.
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

    def add(self, steps: Sequence[Seen], prompt: str, number: int = 0) -> None:
        """Count a text's steps: the text of that `number` after a prompt."""
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
        if expected >= 2 * LEAST_EXPECTED:  # else there will not be enough to test
            for second, after, starts in emitted[1:2]:
                self.count(prompt, ACROSS if starts else WITHIN, first, second, after, expected)

    def add_start(
        self, row: Distribution, proposed: Sequence[Tensor], token: int, rank: int | None, given: float | None
    ) -> float | None:
        """Count a step's first token, the child of the root of that `rank` or none.

        `given` is what this returned for the step before: where its first child was drawn in the first
        draft's cumulative distribution, None where that cannot be known.
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
        """Count an outcome of (outcomes,) probabilities; about so many `samples` of them are expected."""
        groups = self.groups[prompt, test]
        if given not in groups:
            groups[given] = Group.of(row.probs, samples, row.tied)
        groups[given].add(outcome, row.probs)

    def tests(self) -> Iterator[BetTest]:
        """All tests; those without counts have a p-value of 1."""
        for (prompt, name), groups in self.groups.items():
            yield cells_test(name, prompt, groups)
        for name, events in self.events.items():
            yield event_test(name, events)

    def _expect_again(
        self, test: str, given: float | None, row: Distribution, proposed: Tensor, token: int
    ) -> None:
        """Bet that the number which drew another step's first child has drawn this one's as well.

        Then this step's first child is the token at that number; if not, it comes with its own probability.
        """
        if given is not None:
            again = draw(proposed, given)
            if not row.tied[again]:
                self.events[test].add(token == again, float(row.probs[again]))

    def _compare_texts(
        self, row: Distribution, proposed: Tensor, token: int, prompt: str, number: int, given: float | None
    ) -> None:
        """Bet on the numbers of the text before, and on those of this number after the prompt before."""
        before = next((self._starts[name] for name in reversed(self._starts) if name != prompt), {})
        own = self._starts.setdefault(prompt, {})
        self._expect_again(TEXTS, own.get(number - 1), row, proposed, token)
        self._expect_again(PROMPTS, before.get(number), row, proposed, token)
        if given is not None:
            own[number] = given

    def _add_rank(self, test: str, token: int, probs: Tensor) -> None:
        """A uniform place in the token's part of [0, 1), parts by falling probability.

        Tokens of equal probability share their part.
        """
        own = probs[token]
        before, part = (float(probs[rows].sum()) for rows in (probs > own, probs == own))
        place = (before + self.random.random() * part) / float(probs.sum())
        self.count(None, test, None, min(int(place * BINS), BINS - 1), _UNIFORM, 1000.0)
        self.tokens += 1
