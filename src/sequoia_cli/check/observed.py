"""The engine's decoder, observed from outside: every step with the logits that chose its tokens."""

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
class ObservedStep:
    """The tokens of one step, and the logits and proposals that they came from.

    `logits` (tokens, vocabulary) are the target's, in its dtype, one row for each of `tokens`. `proposed` are
    the (vocabulary,) probabilities from which each draft drew its `children` of the root; empty in a step
    without speculation. `rank` is that of the child that the first token equals, None for no child. `depth`
    counts the layers of the step's tree.
    """

    tokens: tuple[int, ...]
    logits: Tensor
    proposed: tuple[Tensor, ...]
    children: int
    rank: int | None
    depth: int
    finish: str | None


class ObservedDecoder:
    """An unchanged `Decoder` between a target and drafts that record their outputs.

    A prompt given twice in a row is prefilled once, so that many texts of it cost only their steps. `options`
    are passed to `Decoder`.
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
        self._target, self._drafts = _RecordingTarget(target), [_RecordingDraft(draft) for draft in drafts]
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
    ) -> Iterator[ObservedStep]:
        """Yield the steps of one text."""
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
            # A copy, as the next forward over fixed buffers overwrites its outputs.
            logits = self._target.logits[rows].clone()
            rank = next(iter(step.ranks), None)
            for draft in self._drafts:
                draft.proposals = None  # a draft out of context proposes nothing in the next step
            yield ObservedStep(step.tokens, logits, proposed, children, rank, step.depth, step.finish)


class _RecordingTarget:
    """A target that records the logits of its last forward, and keeps the text that it opened last."""

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
    ) -> tuple[_RecordingText, tuple[Tensor, ...]]:
        """As the target does, but the same prompt given again reuses its text, rewound to the prompt."""
        key = prompt.tolist(), capacity, taps
        if self._text is None or self._key != key:
            self._text = None  # frees its memory first
            self._text, self._states = self._target.open(prompt, capacity, taps)
            self._key = key
        self._text.rewind(len(prompt))
        return _RecordingText(self, self._text), self._states


class _RecordingText:
    """A text that records its logits in the target."""

    def __init__(self, target: _RecordingTarget, text: ModelText) -> None:
        self._target, self._text = target, text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text, name)

    def run(self, parents: Sequence[int], tokens: Tensor, *, taps: Sequence[int] = ()) -> Output:
        """As the text does."""
        output = self._text.run(parents, tokens, taps=taps)
        self._target.logits = output.logits
        return output


class _RecordingDraft:
    """A draft that records its proposals for the root's children."""

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
