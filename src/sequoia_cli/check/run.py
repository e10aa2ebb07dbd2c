"""One check: texts of all prompts put to the target, then many first steps behind a few of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sequoia_cli.check.controls import Controls
from sequoia_cli.check.laws import LEAST_EXPECTED
from sequoia_cli.check.reference import Reference
from sequoia_cli.check.tally import Tally
from sequoia_cli.check.texts import Checked, Difference, Rows, check_text, first_difference
from sequoia_cli.check.watched import Seen, Watched
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.decode import default_draft_sampling
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.warp import probabilities

#: How many prompts many texts begin at: those with the most first tokens that can be tested.
LAW_PROMPTS = 3


@dataclass(frozen=True)
class Subject:
    """The tool as it is checked: models, tree, and how texts are drawn (None: greedily alone)."""

    target: LanguageModel
    drafts: Sequence[Draft]
    tree: TokenTree
    sampling: Sampling | None
    draft_sampling: Sampling
    eos_ids: Sequence[int]
    verifier: Verifier = SEQUOIA

    def watched(self, sampling: Sampling, *, plain: bool = False) -> Watched:
        """What writes texts: with the tree, or plainly. The one place where the tool is put together."""
        greedy = sampling.greedy
        drawn = default_draft_sampling(sampling) if greedy else self.draft_sampling
        drafts, tree = ((), ROOT_ONLY) if plain else (self.drafts, self.tree)
        return Watched(self.target, drafts, tree, sampling, drawn, verifier=self.verifier)


@dataclass(frozen=True)
class Prompted:
    """The ids of a prompt, under its name."""

    name: str
    ids: Sequence[int]


@dataclass
class Check:
    """What is checked, and what was found so far.

    `ours` and `plain` are greedy texts, `sampled` those at the sampling that is checked, all of
    `max_new_tokens` at most; `differences` are where ours and plain ones part.
    """

    subject: Subject
    reference: Reference
    prompts: Sequence[Prompted]
    max_new_tokens: int
    samples: int
    seed: int
    ours: list[Checked] = field(default_factory=list)
    plain: list[Checked] = field(default_factory=list)
    sampled: list[Checked] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"texts": 0.0, "samples": 0.0})
    samples_done: int = 0
    _testable: dict[str, int] = field(default_factory=dict)

    @cached_property
    def tally(self) -> Tally:
        """What sampled tokens add up to."""
        return Tally(self._sampling, random.Random(f"{self.seed} check"), self.samples)

    @cached_property
    def controls(self) -> Controls:
        """The wrong programs beside it."""
        return Controls(self._sampling, str(self.seed), self.samples)

    @property
    def _sampling(self) -> Sampling:
        assert self.subject.sampling is not None
        return self.subject.sampling

    def check_texts(self) -> Iterator[Prompted]:
        """Write and check the texts of one prompt after another; yields those that are done."""
        greedy = Sampling()
        ours, plain = self.subject.watched(greedy), self.subject.watched(greedy, plain=True)
        sampled = self.subject.watched(self.subject.sampling) if self.subject.sampling else None
        for prompt in self.prompts:
            began = time.perf_counter()
            mine, rows = self._check(ours, prompt)
            own, _ = self._check(plain, prompt)
            drawn = self._check_sampled(sampled, prompt) if sampled else None
            self.ours.append(mine)
            self.plain.append(own)
            self.sampled += [drawn] if drawn else []
            if found := first_difference(mine, own, rows):
                self.differences.append(found)
            self.seconds["texts"] += time.perf_counter() - began
            yield prompt

    def _check(self, watched: Watched, prompt: Prompted) -> tuple[Checked, Rows]:
        return check_text(
            watched,
            self.reference,
            prompt.name,
            prompt.ids,
            self.max_new_tokens,
            self.subject.eos_ids,
            self.seed,
        )

    def _check_sampled(self, watched: Watched, prompt: Prompted) -> Checked:
        text, rows = self._check(watched, prompt)
        law = probabilities(rows.plain[:1], self._sampling)[0]
        self._testable[prompt.name] = int((law * self.samples >= LEAST_EXPECTED).sum())
        return text

    @property
    def most_law_prompts(self) -> int:
        """How many prompts many texts begin at."""
        return min(LAW_PROMPTS, len(self.prompts))

    @property
    def law_prompts(self) -> list[Prompted]:
        """The prompts that many texts begin at, as the target's own laws make them worth while."""
        known = [prompt for prompt in self.prompts if prompt.name in self._testable]
        return sorted(known, key=lambda prompt: -self._testable[prompt.name])[:LAW_PROMPTS]

    def sample(self) -> Iterator[Prompted]:
        """Write the first two steps of many texts behind a few prompts, each from a seed of its own."""
        watched = self.subject.watched(self._sampling)
        budget = 2 * self.subject.tree.depth
        for prompt in self.law_prompts:
            for number in range(self.samples):
                began = time.perf_counter()
                steps: list[Seen] = []
                # Of its own for each text behind each prompt: the tests take all of them to be independent.
                seed = random.Random(f"{self.seed} {prompt.name} {number}").getrandbits(63)
                for seen in watched.steps(prompt.ids, budget, self.subject.eos_ids, seed):
                    steps.append(seen)
                    if len(steps) == 2:
                        break
                self.tally.add(steps, prompt.name)
                self.controls.add(steps, prompt.name)
                self.samples_done += 1
                self.seconds["samples"] += time.perf_counter() - began
                yield prompt
