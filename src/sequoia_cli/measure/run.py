"""Several prompts decoded in one run, with plain decoding beside it where that is asked for."""

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
from sequoia_cli.measure.asked import Asked
from sequoia_cli.measure.generation import Generation, generate
from sequoia_cli.measure.plan_conditions import differing_conditions
from sequoia_cli.measure.prompts import Prompt
from sequoia_cli.measure.session import Session
from sequoia_cli.measure.statistics import Speculation


@dataclass
class Run:
    """All texts of one command, in the order of their prompts; `plain` has the plain ones to compare with.

    `seed` is what the prompts' own seeds were made of.
    """

    session: Session
    asked: Sequence[Asked]
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
        return [asked.prompt for asked in self.asked]

    def decode_next(self, on_text: Callable[[str], None]) -> None:
        """Decode the next prompt, and plainly too where that is asked for: by turns first or second."""
        asked = self.asked[len(self.texts)]
        plain_first = len(self.texts) % 2 == 0
        if self.compare and plain_first:
            self.plain.append(self._generate(self._plain_decoder, asked))
        self.texts.append(Generation(len(asked.ids)))
        self._generate(self._decoder, asked, on_text, self.texts[-1])
        if self.compare and not plain_first:
            self.plain.append(self._generate(self._plain_decoder, asked))

    def _generate(
        self,
        decoder: Decoder,
        asked: Asked,
        on_text: Callable[[str], None] = lambda piece: None,
        result: Generation | None = None,
    ) -> Generation:
        what = f"{len(asked.ids)} tokens of prompt, {self.max_new_tokens} new ones, {decoder.tree.size} nodes"
        with memory_for(what):
            return generate(
                decoder,
                self.session.tokenizer,
                asked.ids,
                self.max_new_tokens,
                eos_ids=self.session.eos_ids,
                stop=self.stop,
                seed=asked.seed,
                on_text=on_text,
                result=result,
            )

    @property
    def total(self) -> Speculation:
        """Totals of the texts with the tree."""
        return Speculation.total(text.speculation for text in self.texts)

    @property
    def plain_total(self) -> Speculation:
        """Totals of the plain texts."""
        return Speculation.total(text.speculation for text in self.plain)

    @property
    def speedup(self) -> float | None:
        """Seconds per token of plain decoding over those with the tree, prefill excluded; None if unknown."""
        ours, plain = self.total.tokens_per_second, self.plain_total.tokens_per_second
        return ours / plain if ours and plain else None

    def speedups(self, category: str | None = None) -> list[float]:
        """The speedup of each prompt that has one, of a category or of all."""
        return [
            ours / plain
            for prompt, text, other in zip(self.prompts, self.texts, self.plain, strict=False)
            if category in (None, prompt.category)
            and (ours := text.speculation.tokens_per_second)
            and (plain := other.speculation.tokens_per_second)
        ]

    def by_category(self) -> dict[str, Speculation]:
        """Totals of the texts of each category of prompts, in the order of the first; empty without any."""
        groups: dict[str, list[Speculation]] = {}
        for prompt, text in zip(self.prompts, self.texts, strict=False):
            if prompt.category is not None:
                groups.setdefault(prompt.category, []).append(text.speculation)
        return {category: Speculation.total(parts) for category, parts in groups.items()}

    def first_differences(self) -> dict[str, int]:
        """Where greedy texts differ from the plain ones: prompt id -> place of the first differing token."""
        if not self.sampling.greedy:
            return {}
        found = {}
        for prompt, text, plain in zip(self.prompts, self.texts, self.plain, strict=False):
            if text.finish is not None and text.token_ids != plain.token_ids:
                pairs = zip(text.token_ids, plain.token_ids, strict=False)
                place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                found[prompt.id] = min(len(text.token_ids), len(plain.token_ids)) if place is None else place
        return found

    def wrong_texts(self) -> list[str]:
        """Prompts whose greedy text differs where rounding is no excuse."""
        exact = self.session.conditions["dtype"] in ("float32", "float64")
        return list(self.first_differences()) if exact else []

    def unlike_plan(self) -> dict[str, tuple[Any, Any]]:
        """Conditions that the tree was compiled for and that differ here: name -> (there, here)."""
        if self.plan is None or not self.asked:
            return {}
        here = {
            **self.session.conditions,
            **self.session.weights,
            "temperature": self.sampling.temperature,
            "top_k": self.sampling.top_k,
            "top_p": self.sampling.top_p,
            "draft_temperature": self.draft_sampling.temperature,
            "verifier": self.verifier.name,
            "context": sum(len(asked.ids) for asked in self.asked) // len(self.asked)
            + self.max_new_tokens // 2,
        }
        return differing_conditions(self.plan.inputs, here)
