"""A decoder that is watched from outside: every step with the logits that its tokens were chosen by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.grow import over_vocabulary
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel, Output


@dataclass(frozen=True)
class Seen:
    """What one step emitted, and what it emitted it by.

    `logits` (tokens, vocabulary) are the target's, in its dtype: a row for each of `tokens`. `proposed` has
    (vocabulary,) probabilities of each draft, from which it drew its `children` of the root; it is empty in a
    step without speculation. `rank` is that of the child which the first token is, None where it is none.
    `depth` counts the layers of the step's tree.
    """

    tokens: tuple[int, ...]
    logits: Tensor
    proposed: tuple[Tensor, ...]
    children: int
    rank: int | None
    depth: int
    finish: str | None


class Watched:
    """The loop of `Decoder` as it is, between a target and drafts that remember what they gave.

    A prompt that comes twice in a row is run once, so that many texts after it cost only their steps.
    `options` go to `Decoder`.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafts: Sequence[Draft],
        tree: TokenTree,
        sampling: Sampling,
        draft_sampling: Sampling,
        **options: Any,
    ) -> None:
        self._target, self._drafts = _SeenTarget(target), [_SeenDraft(draft) for draft in drafts]
        self._decoder = Decoder(
            cast(LanguageModel, self._target),
            cast(Sequence[Draft], self._drafts),
            tree,
            sampling,
            draft_sampling,
            **options,
        )
        self.sampling, self.tree = sampling, tree

    def steps(
        self, prompt: Sequence[int], max_new_tokens: int, eos_ids: Sequence[int], seed: int
    ) -> Iterator[Seen]:
        """The steps of one text, as they come."""
        generator = torch.Generator().manual_seed(seed)
        decoded = self._decoder.decode(prompt, max_new_tokens, eos_ids=eos_ids, generator=generator)
        for step in decoded:
            rows = list(step.path[: len(step.tokens)])
            proposed = tuple(
                over_vocabulary(draft.columns, self._target.vocabulary, draft.ids)[0]
                for draft in self._drafts
                if draft.columns is not None
            )
            children = len(self._decoder.layout(step.depth).tree.children[0]) if proposed else 0
            # A copy: what a forward over fixed buffers gives is overwritten by the next one.
            logits = self._target.logits[rows].clone()
            rank = next(iter(step.ranks), None)
            for draft in self._drafts:
                draft.columns = None  # one that runs out of context gives none in the next step
            yield Seen(step.tokens, logits, proposed, children, rank, step.depth, step.finish)


class _SeenTarget:
    """A target that remembers the logits of its last forward, and the prompt that its cache holds."""

    def __init__(self, target: LanguageModel) -> None:
        self._target = target
        self._capacity, self._cache = -1, cast(Any, None)
        self._prompt: tuple[list[int], bool] | None = None
        self._states: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def new_cache(self, capacity: int) -> Any:
        """The cache of the text before, where that is as large."""
        if capacity != self._capacity:
            self._cache = None  # so that its rows can be used again
            self._capacity, self._cache, self._prompt = capacity, self._target.new_cache(capacity), None
        return self._cache

    def prefill(self, tokens: Tensor, cache: Any, *, hidden: bool = False) -> Tensor | None:
        """As the target does; for the prompt that the cache begins with, only drop the rows after it."""
        prompt = tokens.tolist(), hidden
        if self._prompt == prompt:
            cache.keep(len(tokens), ())
        else:
            cache.keep(0, ())
            self._prompt, self._states = prompt, self._target.prefill(tokens, cache, hidden=hidden)
        return self._states

    def forward(self, *arguments: Any, **options: Any) -> Output:
        """As the target does."""
        output = self._target.forward(*arguments, **options)
        self.logits = output.logits
        return output


class _SeenDraft:
    """A draft that remembers what it gave for the root."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.columns: Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def expand(self, layout: Layout, level: int, tokens: Tensor, sampling: Sampling) -> Tensor:
        """As the draft does."""
        columns = self._draft.expand(layout, level, tokens, sampling)
        if level == 0:
            self.columns = columns.clone()
        return columns
