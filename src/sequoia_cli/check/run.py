"""One check: texts of all prompts compared with the target's own forward, then many short texts of a few."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from sequoia_cli.check.betting import LEAST_EXPECTED
from sequoia_cli.check.controls import Controls
from sequoia_cli.check.distribution import distribution
from sequoia_cli.check.reference import Reference, Row, compare
from sequoia_cli.check.tally import ACROSS, WITHIN, Tally
from sequoia_cli.check.texts import Checked, Difference, Rows, check_text, first_difference
from sequoia_cli.check.watched import Seen, Watched
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.decode import default_draft_sampling
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel, prefill_pieces
from sequoia_cli.engine.verification.verifiers import SEQUOIA, Verifier

#: How many prompts are sampled many times: those with the most first tokens that can be tested.
SAMPLED_PROMPTS = 3


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


def long_prompt(prompts: Sequence[Prompted], most: int) -> Prompted | None:
    """A prompt of several prefill pieces, the longest of `prompts` repeated, and None where it is not needed.

    Raises `ValueError` where it would have more than `most` tokens.
    """
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    if len(list(prefill_pieces(len(longest.ids) - 1))) > 1:
        return None
    piece = next(prefill_pieces(2**31)).stop
    # The second piece is long enough for wrong positions in it to show.
    wanted = piece + max(8, piece // 8)
    if wanted > most:
        raise ValueError(f"a prompt of two prefill pieces has {wanted} tokens; there is room for {most}")
    times = -(-wanted // len(longest.ids))
    return Prompted(f"{longest.name}, repeated", (list(longest.ids) * times)[:wanted])


@dataclass
class Check:
    """What is checked, and what was found so far.

    `wrong_conventions` says what is wrong with prompts' ids and ends of text (see `conventions.py`).
    `ours` and `plain` are greedy texts, `sampled` those at the sampling that is checked, all of
    `max_new_tokens` at most; `differences` are where ours and plain ones differ first. `sampled_rows` are the
    rows of logits that the tests of first and second tokens rest on, compared with the reference.
    """

    subject: Subject
    reference: Reference
    prompts: Sequence[Prompted]
    max_new_tokens: int
    samples: int
    seed: int
    wrong_conventions: Sequence[str] = ()
    ours: list[Checked] = field(default_factory=list)
    plain: list[Checked] = field(default_factory=list)
    sampled: list[Checked] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"texts": 0.0, "samples": 0.0})
    samples_done: int = 0
    sampled_rows: list[Row] = field(default_factory=list)
    _read: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _testable: dict[str, int] = field(default_factory=dict)

    @cached_property
    def tally(self) -> Tally:
        """What sampled tokens add up to."""
        names = [prompt.name for prompt in self.sampled_prompts]
        own = random.Random(f"{self.seed} check")
        return Tally(self._sampling, own, self.samples, names, len(self.subject.drafts))

    @cached_property
    def controls(self) -> Controls:
        """The wrong programs beside it."""
        names = [prompt.name for prompt in self.sampled_prompts]
        return Controls(self._sampling, str(self.seed), self.samples, names)

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
        probs = distribution(rows.plain[:1], self._sampling).probs[0]
        self._testable[prompt.name] = int((probs * self.samples >= LEAST_EXPECTED).sum())
        return text

    @property
    def most_sampled_prompts(self) -> int:
        """How many prompts are sampled many times."""
        return min(SAMPLED_PROMPTS, len(self.prompts))

    @property
    def sampled_prompts(self) -> list[Prompted]:
        """The prompts to sample many times: those after which most tokens can be tested."""
        known = [prompt for prompt in self.prompts if prompt.name in self._testable]
        return sorted(known, key=lambda prompt: -self._testable[prompt.name])[:SAMPLED_PROMPTS]

    def sample(self) -> Iterator[Prompted]:
        """Write the first two steps of many texts of a few prompts, each from a seed of its own."""
        watched = self.subject.watched(self._sampling)
        budget = 2 * self.subject.tree.depth
        for prompt in self.sampled_prompts:
            for number in range(self.samples):
                began = time.perf_counter()
                steps: list[Seen] = []
                # The tests take all texts to be independent, of all prompts.
                seed = random.Random(f"{self.seed} {prompt.name} {number}").getrandbits(63)
                for seen in watched.steps(prompt.ids, budget, self.subject.eos_ids, seed):
                    steps.append(seen)
                    if len(steps) == 2:
                        break
                self.tally.add(steps, prompt.name, number)
                self.controls.add(steps, prompt.name)
                self._read_rows(prompt, steps)
                self.samples_done += 1
                self.seconds["samples"] += time.perf_counter() - began
                yield prompt

    def _read_rows(self, prompt: Prompted, steps: Sequence[Seen]) -> None:
        """Compare the logits of a text's first two tokens with the reference, as far as they are tested."""
        tokens = [token for seen in steps for token in seen.tokens]
        found = torch.cat([seen.logits for seen in steps])
        self._read_row((*prompt.ids,), found[:1])
        if len(tokens) > 1 and tokens[0] in self.tally.groups[prompt.name, WITHIN].keys() | (
            self.tally.groups[prompt.name, ACROSS].keys()
        ):
            self._read_row((*prompt.ids, tokens[0]), found[1:2])

    def _read_row(self, ids: tuple[int, ...], found: Tensor) -> None:
        if ids not in self._read:  # many texts share these few contexts
            self._read[ids] = self.reference.plain(ids, 1), self.reference.exact(ids, 1)
        self.sampled_rows += compare(found, *self._read[ids])
