"""Drafts: what proposes tokens for the tree, one level at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.masks import Masks
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.upload import upload
from sequoia_cli.engine.warp import Sampling, probabilities


class Draft(Protocol):
    """What the decoding loop asks of a draft. It knows token ids only, and may have ids the target lacks.

    A step calls `expand` for level 0, 1, ... of the tree that `layout` describes, then `commit` once.
    """

    #: Positions the draft has.
    context_limit: int
    #: Whether `start` and `commit` are to be given the target's last hidden states.
    reads_hidden: bool
    #: (columns,) the target's id of each column of `expand`; None where the columns are the ids from 0.
    ids: Tensor | None
    #: What it computes in.
    dtype: torch.dtype

    def make_fast(self) -> None:
        """Prepare all that it runs for speed, once and for good; its proposals stay what they are."""

    def compile(self, announce: Callable[[str], None]) -> bool:
        """Let its layers, which are fast, run compiled where that pays; returns whether some do."""

    def start(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Begin a text with the (tokens,) of `prompt`, of which the last is the first tree's root.

        `capacity` bounds committed tokens and tree nodes together; `hidden` is (tokens - 1, hidden).
        """

    def expand(self, layout: Layout, level: int, tokens: Tensor, sampling: Sampling) -> Tensor:
        """`probabilities` (nodes, vocabulary), float32 or wider, after the nodes `layout.expanded[level]`.

        `tokens` are the tokens of these nodes. The columns are `ids`; what has no column is never proposed.
        """

    def commit(
        self, layout: Layout, path: Sequence[int], tokens: Sequence[int], hidden: Tensor | None
    ) -> None:
        """Take over the accepted path (nodes, root first) and the token behind it, the next root.

        `tokens` are those accepted behind the root, then the next root; `hidden` has the target's row behind
        each of them. Where several drafts share a step, the path ends where it leaves this draft's own tree,
        while `tokens` and `hidden` go on.
        """


class IndependentDraft:
    """A causal model of its own: it keeps its own cache and reads nothing of the target's.

    Its cache holds the nodes that had children. An accepted leaf was never run, so it is run with the next
    root, in one forward of two tokens.
    """

    reads_hidden = False

    def __init__(self, model: LanguageModel, target_vocabulary: int, ids: Tensor | None = None) -> None:
        """`ids` are the target's ids of the rows of the model's head, where that was cut down to them."""
        self.model, self.dtype = model, model.dtype
        self.context_limit = model.context_limit
        self.ids = ids
        self._columns = len(ids) if ids is not None else min(model.vocabulary, target_vocabulary)

    def make_fast(self) -> None:
        """Prepare the model."""
        self.model.make_fast()

    def compile(self, announce: Callable[[str], None]) -> bool:
        """The model's layers."""
        return self.model.compile(announce)

    def start(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Run all but the prompt's last token."""
        self._capacity = capacity
        vars(self).pop("_cache", None)  # so that its rows can be used again
        self._cache = self.model.new_cache(capacity)
        self._masks: dict[tuple[Layout, int], Masks] = {}
        self._pending = [int(prompt[-1])]
        self.model.prefill(self._known(prompt[:-1]), self._cache)
        self._committed = self._cache.length

    def expand(self, layout: Layout, level: int, tokens: Tensor, sampling: Sampling) -> Tensor:
        """One forward over the level's nodes; the first also catches up with the committed tokens."""
        model = self.model
        if level == 0:
            tokens = upload(self._pending, model.device)
            first = self._committed
            positions = torch.arange(first, first + len(tokens), device=model.device)
            logits = model.forward(self._known(tokens), positions, self._cache, None).logits[-1:]
            self._committed = self._cache.length - 1  # the root's row is the first of the tree
        else:
            positions = torch.full((len(tokens),), self._committed + level, device=model.device)
            masks = self._level_masks(layout, level)
            logits = model.forward(self._known(tokens), positions, self._cache, masks).logits
        # Ids that the target lacks are cut off before they could take any probability.
        return probabilities(logits[:, : self._columns], sampling)

    def commit(
        self, layout: Layout, path: Sequence[int], tokens: Sequence[int], hidden: Tensor | None
    ) -> None:
        """Keep the rows of the path's nodes; remember what was accepted but never run."""
        if not layout.draft_slots:  # a step without speculation: nothing was run
            self._pending += tokens
            return
        slots = [layout.draft_slots[node] for node in path if node in layout.draft_slots]
        self._cache.keep(self._committed, slots)
        self._committed += len(slots)
        self._pending = list(tokens[len(slots) - 1 :])

    def _known(self, tokens: Tensor) -> Tensor:
        """The tokens; those the draft has no embedding for become its last id: a guess, but no crash."""
        return tokens.clamp(max=self.model.vocabulary - 1)

    def _level_masks(self, layout: Layout, level: int) -> Masks:
        key = (layout, level)
        if key not in self._masks:
            self._masks[key] = self.model.masks(layout.draft_block(level), self._capacity)
        return self._masks[key]
