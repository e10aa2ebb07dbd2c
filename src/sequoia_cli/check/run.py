"""The procedure of a check: compare texts of all prompts with the reference, then sample a few prompts."""

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
from sequoia_cli.check.observed import ObservedDecoder, ObservedStep
from sequoia_cli.check.reference import Reference, RowError, compare
from sequoia_cli.check.tally import ACROSS, WITHIN, Tally
from sequoia_cli.check.texts import CheckedText, Difference, TextLogits, check_text, first_difference
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.decode import default_draft_sampling
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel, prefill_pieces
from sequoia_cli.engine.verification.verifiers import SEQUOIA, Verifier

#: The number of prompts that are sampled many times: those with the most testable first tokens.
SAMPLED_PROMPTS = 3


@dataclass(frozen=True)
class Subject:
    """What is checked: models, tree and sampling (None: greedy only)."""

    target: LanguageModel
    drafts: Sequence[Draft]
    tree: TokenTree
    sampling: Sampling | None
    draft_sampling: Sampling
    eos_ids: Sequence[int]
    verifier: Verifier = SEQUOIA

    def decoder(self, sampling: Sampling, *, plain: bool = False) -> ObservedDecoder:
        """A decoder with the tree, or a plain one."""
        greedy = sampling.greedy
        draft_sampling = default_draft_sampling(sampling) if greedy else self.draft_sampling
        drafts, tree = ((), ROOT_ONLY) if plain else (self.drafts, self.tree)
        return ObservedDecoder(self.target, drafts, tree, sampling, draft_sampling, verifier=self.verifier)


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt's name and ids."""

    name: str
    ids: Sequence[int]


def long_prompt(prompts: Sequence[NamedPrompt], most: int) -> NamedPrompt | None:
    """A prompt of several prefill pieces: the longest prompt repeated. None if that is long enough already.

    Raises `ValueError` if it would have more than `most` tokens.
    """
    longest = max(prompts, key=lambda prompt: len(prompt.ids))
    if len(list(prefill_pieces(len(longest.ids) - 1))) > 1:
        return None
    piece = next(prefill_pieces(2**31)).stop
    # Long enough for errors in the positions of the second piece to show.
    wanted = piece + max(8, piece // 8)
    if wanted > most:
        raise ValueError(f"a prompt of two prefill pieces has {wanted} tokens; there is room for {most}")
    times = -(-wanted // len(longest.ids))
    return NamedPrompt(f"{longest.name}, repeated", (list(longest.ids) * times)[:wanted])


@dataclass
class Check:
    """The inputs of a check and its results so far.

    `wrong_conventions` are errors in prompts' ids and ends of text (see `conventions.py`). `ours` and `plain`
    are greedy texts with the tree and without, `sampled` the texts at `subject.sampling`, each of at most
    `max_new_tokens`; `differences` are the first differences of ours from plain. `sampled_rows` are the
    errors of the rows of logits on which the tests of first and second tokens rest.
    """

    subject: Subject
    reference: Reference
    prompts: Sequence[NamedPrompt]
    max_new_tokens: int
    samples: int
    seed: int
    wrong_conventions: Sequence[str] = ()
    ours: list[CheckedText] = field(default_factory=list)
    plain: list[CheckedText] = field(default_factory=list)
    sampled: list[CheckedText] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"texts": 0.0, "samples": 0.0})
    samples_done: int = 0
    sampled_rows: list[RowError] = field(default_factory=list)
    _references: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _testable: dict[str, int] = field(default_factory=dict)

    @cached_property
    def tally(self) -> Tally:
        """The tally of sampled tokens."""
        names = [prompt.name for prompt in self.sampled_prompts]
        own = random.Random(f"{self.seed} check")
        return Tally(self._sampling, own, self.samples, names, len(self.subject.drafts))

    @cached_property
    def controls(self) -> Controls:
        """The negative controls."""
        names = [prompt.name for prompt in self.sampled_prompts]
        return Controls(self._sampling, str(self.seed), self.samples, names)

    @property
    def _sampling(self) -> Sampling:
        assert self.subject.sampling is not None
        return self.subject.sampling

    def check_texts(self) -> Iterator[NamedPrompt]:
        """Generate and check the texts of each prompt; yields a prompt when it is done."""
        greedy = Sampling()
        ours, plain = self.subject.decoder(greedy), self.subject.decoder(greedy, plain=True)
        sampled = self.subject.decoder(self.subject.sampling) if self.subject.sampling else None
        for prompt in self.prompts:
            began = time.perf_counter()
            with_tree, logits = self._check(ours, prompt)
            without, _ = self._check(plain, prompt)
            drawn = self._check_sampled(sampled, prompt) if sampled else None
            self.ours.append(with_tree)
            self.plain.append(without)
            self.sampled += [drawn] if drawn else []
            if found := first_difference(with_tree, without, logits):
                self.differences.append(found)
            self.seconds["texts"] += time.perf_counter() - began
            yield prompt

    def _check(self, decoder: ObservedDecoder, prompt: NamedPrompt) -> tuple[CheckedText, TextLogits]:
        return check_text(
            decoder,
            self.reference,
            prompt.name,
            prompt.ids,
            self.max_new_tokens,
            self.subject.eos_ids,
            self.seed,
        )

    def _check_sampled(self, decoder: ObservedDecoder, prompt: NamedPrompt) -> CheckedText:
        text, logits = self._check(decoder, prompt)
        probs = distribution(logits.plain[:1], self._sampling).probs[0]
        self._testable[prompt.name] = int((probs * self.samples >= LEAST_EXPECTED).sum())
        return text

    @property
    def most_sampled_prompts(self) -> int:
        """The largest number of prompts that are sampled many times."""
        return min(SAMPLED_PROMPTS, len(self.prompts))

    @property
    def sampled_prompts(self) -> list[NamedPrompt]:
        """The prompts to sample many times: those with the most testable first tokens."""
        known = [prompt for prompt in self.prompts if prompt.name in self._testable]
        return sorted(known, key=lambda prompt: -self._testable[prompt.name])[:SAMPLED_PROMPTS]

    def sample(self) -> Iterator[NamedPrompt]:
        """Generate the first two steps of many texts of a few prompts, each with its own seed."""
        decoder = self.subject.decoder(self._sampling)
        budget = 2 * self.subject.tree.depth
        for prompt in self.sampled_prompts:
            for number in range(self.samples):
                began = time.perf_counter()
                steps: list[ObservedStep] = []
                # The tests assume that texts are independent, also between prompts.
                seed = random.Random(f"{self.seed} {prompt.name} {number}").getrandbits(63)
                for step in decoder.steps(prompt.ids, budget, self.subject.eos_ids, seed):
                    steps.append(step)
                    if len(steps) == 2:
                        break
                self.tally.add(steps, prompt.name, number)
                self.controls.add(steps, prompt.name)
                self._compare_rows(prompt, steps)
                self.samples_done += 1
                self.seconds["samples"] += time.perf_counter() - began
                yield prompt

    def _compare_rows(self, prompt: NamedPrompt, steps: Sequence[ObservedStep]) -> None:
        """Compare the logits of a text's first two tokens with the reference, if they are tested."""
        tokens = [token for step in steps for token in step.tokens]
        found = torch.cat([step.logits for step in steps])
        self._compare_row((*prompt.ids,), found[:1])
        if len(tokens) > 1 and tokens[0] in self.tally.groups[prompt.name, WITHIN].keys() | (
            self.tally.groups[prompt.name, ACROSS].keys()
        ):
            self._compare_row((*prompt.ids, tokens[0]), found[1:2])

    def _compare_row(self, ids: tuple[int, ...], found: Tensor) -> None:
        if ids not in self._references:  # many texts share the same few contexts
            self._references[ids] = self.reference.plain(ids, 1), self.reference.exact(ids, 1)
        self.sampled_rows += compare(found, *self._references[ids])
