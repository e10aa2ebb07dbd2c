"""What the decoding loop asks of a target, and how a Hugging Face model answers: texts that grow by trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from sequoia_cli.engine.masks import MaskCache
from sequoia_cli.engine.nodes import node_block

if TYPE_CHECKING:
    from sequoia_cli.engine.fast.capture import Recorder
    from sequoia_cli.engine.model import LanguageModel

#: The tap of the last hidden states, after the final norm: what the output head reads.
LAST = (-1,)


class Output(NamedTuple):
    """Logits (rows, vocabulary), and hidden states (rows, hidden) for each tap that was asked for."""

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()

    def of_text(self, index: int) -> Output:
        """One text of a batch of them."""
        return Output(self.logits[index], tuple(states[index] for states in self.hidden))


class TargetText(Protocol):
    """A text that a target has read: committed tokens, and the nodes of a tree that were run after them.

    Nodes are numbered in the order in which they were run since the last `keep`.
    """

    @property
    def length(self) -> int:
        """Committed tokens."""

    def run(self, parents: Sequence[int], tokens: Tensor, *, taps: Sequence[int] = ()) -> Output:
        """Run new nodes, (rows,) tokens; node -1 as a parent is the end of the committed text.

        Each node attends to the committed text, its ancestors and itself.
        """

    def keep(self, path: Sequence[int]) -> None:
        """Commit the nodes of a path, in this order, and forget all others."""


class Target(Protocol):
    """A model whose distribution is to be sampled: it opens texts.

    `taps` name hidden states: entry i of transformers' `hidden_states`, 0 the embeddings, -1 the last.
    """

    vocabulary: int
    #: Positions that can be used.
    context_limit: int
    device: torch.device
    #: What it computes in.
    dtype: torch.dtype
    #: What records its forwards on an accelerator; None where nothing does.
    recorder: Recorder | None

    def open(
        self, prompt: Tensor, capacity: int, taps: Sequence[int] = ()
    ) -> tuple[TargetText, tuple[Tensor, ...]]:
        """A text whose committed tokens are `prompt`, (tokens,), and its states (tokens, hidden) by tap.

        `capacity` bounds committed tokens and nodes together. Without tokens there are no states.
        """


class ModelText:
    """A text in the cache of a Hugging Face model."""

    def __init__(self, model: LanguageModel, capacity: int) -> None:
        self.model = model
        self._cache = model.new_cache(capacity)
        self._masks = MaskCache(model.masks, capacity)
        self._parents: list[int] = []
        self._length = 0

    @property
    def length(self) -> int:
        """Committed tokens."""
        return self._length

    @property
    def rows(self) -> int:
        """Rows of the cache in use."""
        return self._cache.length

    def begin(self, prompt: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, ...]:
        """Run and commit a prompt, as the first of the text; returns its states by tap."""
        states = self.model.prefill(prompt, self._cache, taps=taps)
        self._length = len(prompt)
        return states

    def run(self, parents: Sequence[int], tokens: Tensor, *, taps: Sequence[int] = ()) -> Output:
        """See `TargetText`. Raises `ValueError` beyond the capacity."""
        first = len(self._parents)
        self._parents += parents
        block = node_block(tuple(self._parents), first, self.model.device)
        masks = None
        if not block.is_chain:
            masks = self._masks.of(block, self._length + len(self._parents))
        return self.model.forward(tokens, self._length + block.depths, self._cache, masks, taps=taps)

    def keep(self, path: Sequence[int]) -> None:
        """See `TargetText`. Of nodes that are all forgotten nothing stays that a later one could read."""
        if path:
            self._cache.keep(self._length, path)
        else:
            self._cache.forget(self._length)
        self._length += len(path)
        self._parents = []

    def rewind(self, length: int) -> None:
        """Forget all but the first `length` committed tokens."""
        self._cache.forget(length)
        self._length, self._parents = length, []
