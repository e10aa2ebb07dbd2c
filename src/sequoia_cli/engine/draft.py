"""Drafts: what proposes tokens for the tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.target import ModelText
from sequoia_cli.engine.upload import upload


class Draft(Protocol):
    """What the decoding loop asks of a draft. It knows token ids only, and may have ids the target lacks.

    In a step `extend` is called for the root first, then for nodes of its tree, parents before children; then
    `commit` once. Nodes are numbered in the order in which `extend` is given them, the root 0.
    """

    #: Positions the draft has.
    context_limit: int
    #: The target's hidden states that `start` and `commit` are to be given (see `Target`).
    taps: tuple[int, ...]
    #: What it computes in.
    dtype: torch.dtype

    def make_fast(self) -> None:
        """Prepare all that it runs for speed, once and for good; its proposals stay what they are."""

    def compile(self, announce: Callable[[str], None]) -> bool:
        """Let its layers, which are fast, run compiled where that pays; returns whether some do."""

    def start(self, prompt: Tensor, capacity: int, hidden: Sequence[Tensor]) -> None:
        """Begin a text with the (tokens,) of `prompt`, of which the last is the first tree's root.

        `capacity` bounds committed tokens and tree nodes together; `hidden` has (tokens - 1, width) for each
        of `taps`, nothing where there are none.
        """

    def extend(self, parents: Sequence[int], tokens: Tensor) -> Proposals:
        """What may follow each of the next nodes, whose tokens are (nodes,). The root's parent is -1."""

    def commit(self, path: Sequence[int], tokens: Sequence[int], hidden: Sequence[Tensor]) -> None:
        """Take over the accepted nodes that the draft was given, root first, and the tokens after the root.

        `tokens` are those accepted after the root, then the next root; `hidden` has the target's row after
        the node before each of them, for each of `taps`. The path is empty where the draft was given nothing
        in the step, and ends where the accepted one leaves the nodes that it was given.
        """


class IndependentDraft:
    """A causal model of its own: it keeps its own cache and reads nothing of the target's.

    Its text holds the nodes that it was given. An accepted leaf was never run, so it is run with the next
    root, in one forward of two tokens.
    """

    taps: tuple[int, ...] = ()

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

    def start(self, prompt: Tensor, capacity: int, hidden: Sequence[Tensor]) -> None:
        """Run all but the prompt's last token."""
        vars(self).pop("_text", None)  # so that its rows can be used again
        self._text: ModelText
        self._text, _ = self.model.open(self._known(prompt[:-1]), capacity)
        #: Committed tokens that were not run yet, the root last.
        self._pending = [int(prompt[-1])]
        self._before_root = 0

    def extend(self, parents: Sequence[int], tokens: Tensor) -> Proposals:
        """One forward; the root's also catches up with the committed tokens."""
        if parents[0] < 0:
            tokens = upload(self._pending, self.model.device)
            self._before_root = len(tokens) - 1
            parents = range(-1, self._before_root)
        else:
            parents = [self._before_root + parent for parent in parents]
        logits = self._text.run(parents, self._known(tokens)).logits
        # Ids that the target lacks are cut off before they could take any probability.
        rows = slice(-1, None) if parents[0] < 0 else slice(None)
        return Proposals(logits[rows, : self._columns], self.ids)

    def commit(self, path: Sequence[int], tokens: Sequence[int], hidden: Sequence[Tensor]) -> None:
        """Keep the rows of the path; remember what was accepted but never run."""
        if not path:
            self._pending += tokens
            return
        self._text.keep([*range(self._before_root), *(self._before_root + node for node in path)])
        self._pending = list(tokens[len(path) - 1 :])

    def _known(self, tokens: Tensor) -> Tensor:
        """The tokens; those the draft has no embedding for become its last id: a guess, but no crash."""
        return tokens.clamp(max=self.model.vocabulary - 1)
