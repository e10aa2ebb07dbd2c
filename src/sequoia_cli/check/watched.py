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
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.target import ModelText, Output


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
            self._target,
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
        draft_sampling = self._decoder.draft_sampling
        decoded = self._decoder.decode(prompt, max_new_tokens, eos_ids=eos_ids, generator=generator)
        for step in decoded:
            rows = list(step.path[: len(step.tokens)])
            proposed = tuple(
                draft.proposals.probabilities(draft_sampling).over(self._target.vocabulary, 0)
                for draft in self._drafts
                if draft.proposals is not None
            )
            children = len(self.tree.limited(step.depth).children[0]) if proposed else 0
            # A copy: what a forward over fixed buffers gives is overwritten by the next one.
            logits = self._target.logits[rows].clone()
            rank = next(iter(step.ranks), None)
            for draft in self._drafts:
                draft.proposals = None  # one that runs out of context gives none in the next step
            yield Seen(step.tokens, logits, proposed, children, rank, step.depth, step.finish)


class _SeenTarget:
    """A target that remembers the logits of its last forward, and the text that it opened last."""

    def __init__(self, target: LanguageModel) -> None:
        self._target = target
        self._key: tuple[object, ...] | None = None
        self._text: ModelText | None = None
        self._states: tuple[Tensor, ...] = ()
        self.logits: Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(
        self, prompt: Tensor, capacity: int, taps: Sequence[int] = ()
    ) -> tuple[_SeenText, tuple[Tensor, ...]]:
        """As the target does; the same prompt again is not run again, but what followed it is forgotten."""
        key = prompt.tolist(), capacity, taps
        if self._text is None or self._key != key:
            self._text = None  # so that its rows can be used again
            self._text, self._states = self._target.open(prompt, capacity, taps)
            self._key = key
        self._text.rewind(len(prompt))
        return _SeenText(self, self._text), self._states


class _SeenText:
    """A text that tells its target's logits."""

    def __init__(self, target: _SeenTarget, text: ModelText) -> None:
        self._target, self._text = target, text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text, name)

    def run(self, parents: Sequence[int], tokens: Tensor, *, taps: Sequence[int] = ()) -> Output:
        """As the text does."""
        output = self._text.run(parents, tokens, taps=taps)
        self._target.logits = output.logits
        return output


class _SeenDraft:
    """A draft that remembers what it proposed after the root."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.proposals: Proposals | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def extend(self, parents: Sequence[int], tokens: Tensor) -> Proposals:
        """As the draft does."""
        proposals = self._draft.extend(parents, tokens)
        if parents[0] < 0:
            self.proposals = Proposals(proposals.logits.clone(), proposals.ids)
        return proposals
