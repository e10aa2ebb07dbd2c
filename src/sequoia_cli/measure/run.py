"""Decoding several prompts in one run, optionally also with plain decoding to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.tree import ROOT_ONLY
from sequoia_cli.engine.adaptive import shapes_of
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.grow import FixedShape
from sequoia_cli.engine.verification.verifiers import Verifier
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import memory_for
from sequoia_cli.measure.encoded_prompts import EncodedPrompt
from sequoia_cli.measure.generation import Generation, generate
from sequoia_cli.measure.plan_conditions import differing_conditions
from sequoia_cli.measure.prompts import Prompt
from sequoia_cli.measure.session import Session
from sequoia_cli.measure.statistics import Speculation


@dataclass
class Run:
    """The texts of one command, in the order of their prompts; `plain` has those of plain decoding.

    `seed` is the command's; each prompt has its own seed derived from it.
    """

    session: Session
    encoded: Sequence[EncodedPrompt]
    plan: TreePlan | None
    sampling: Sampling
    draft_sampling: Sampling
    verifier: Verifier
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...]
    compare: bool
    texts: list[Generation] = field(default_factory=list)
    plain: list[Generation] = field(default_factory=list)

    def __post_init__(self) -> None:
        session, tree = self.session, self.plan.tree if self.plan else ROOT_ONLY
        self._decoder = Decoder(
            session.target,
            session.drafts,
            tree,
            self.sampling,
            self.draft_sampling,
            verifier=self.verifier,
            shape=shapes_of(self.plan) if self.plan else FixedShape,
        )
        self._plain_decoder = Decoder(session.target, sampling=self.sampling)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts, in the order of their texts."""
        return [each.prompt for each in self.encoded]

    def decode_next(self, on_text: Callable[[str], None]) -> None:
        """Decode the next prompt with the tree and, to compare, plainly; which comes first alternates."""
        prompt = self.encoded[len(self.texts)]
        plain_first = len(self.texts) % 2 == 0
        if self.compare and plain_first:
            self.plain.append(self._generate(self._plain_decoder, prompt))
        self.texts.append(Generation(len(prompt.ids)))
        self._generate(self._decoder, prompt, on_text, self.texts[-1])
        if self.compare and not plain_first:
            self.plain.append(self._generate(self._plain_decoder, prompt))

    def _generate(
        self,
        decoder: Decoder,
        prompt: EncodedPrompt,
        on_text: Callable[[str], None] = lambda piece: None,
        result: Generation | None = None,
    ) -> Generation:
        what = (
            f"{len(prompt.ids)} tokens of prompt, {self.max_new_tokens} new ones, {decoder.tree.size} nodes"
        )
        with memory_for(what):
            return generate(
                decoder,
                self.session.tokenizer,
                prompt.ids,
                self.max_new_tokens,
                eos_ids=self.session.eos_ids,
                stop=self.stop,
                seed=prompt.seed,
                on_text=on_text,
                result=result,
            )

    @property
    def total(self) -> Speculation:
        """Totals of the texts decoded with the tree."""
        return Speculation.total(text.speculation for text in self.texts)

    @property
    def plain_total(self) -> Speculation:
        """Totals of the texts decoded plainly."""
        return Speculation.total(text.speculation for text in self.plain)

    @property
    def speedup(self) -> float | None:
        """Seconds per token of plain decoding divided by the tree's, prefill excluded; None if unknown."""
        ours, plain = self.total.tokens_per_second, self.plain_total.tokens_per_second
        return ours / plain if ours and plain else None

    def speedups(self, category: str | None = None) -> list[float]:
        """The speedup of each prompt that has one, of one category or all."""
        return [
            ours / plain
            for prompt, text, other in zip(self.prompts, self.texts, self.plain, strict=False)
            if category in (None, prompt.category)
            and (ours := text.speculation.tokens_per_second)
            and (plain := other.speculation.tokens_per_second)
        ]

    def by_category(self) -> dict[str, Speculation]:
        """Totals of each category of prompts, in order of first appearance; empty if there are none."""
        groups: dict[str, list[Speculation]] = {}
        for prompt, text in zip(self.prompts, self.texts, strict=False):
            if prompt.category is not None:
                groups.setdefault(prompt.category, []).append(text.speculation)
        return {category: Speculation.total(parts) for category, parts in groups.items()}

    def first_differences(self) -> dict[str, int]:
        """Where greedy texts differ from plain decoding: prompt id -> index of the first differing token."""
        if not self.sampling.greedy:
            return {}
        found = {}
        for prompt, text, plain in zip(self.prompts, self.texts, self.plain, strict=False):
            if text.finish is not None and text.token_ids != plain.token_ids:
                pairs = zip(text.token_ids, plain.token_ids, strict=False)
                shorter = min(len(text.token_ids), len(plain.token_ids))
                found[prompt.id] = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        return found

    def wrong_texts(self) -> list[str]:
        """Prompts whose greedy text differs in a dtype too precise for rounding to explain it."""
        exact = self.session.conditions["dtype"] in ("float32", "float64")
        return list(self.first_differences()) if exact else []

    def unlike_plan(self) -> dict[str, tuple[Any, Any]]:
        """Conditions that differ from those the tree was compiled for: name -> (compiled for, here)."""
        if self.plan is None or not self.encoded:
            return {}
        here = {
            **self.session.conditions,
            **self.session.weights,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "draft_temperature": self.draft_sampling.temperature,
            "verifier": self.verifier.name,
            "context": sum(len(each.ids) for each in self.encoded) // len(self.encoded)
            + self.max_new_tokens // 2,
        }
        return differing_conditions(self.plan.inputs, here)
