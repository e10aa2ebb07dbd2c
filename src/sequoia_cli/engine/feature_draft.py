"""The feature draft: it reads the target's last hidden states, and further down its own predictions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.feature_model import FeatureModel, Rotation
from sequoia_cli.engine.head import OutputHead
from sequoia_cli.engine.layout import Layout, TreeMask
from sequoia_cli.engine.model import prefill_pieces
from sequoia_cli.engine.warp import Sampling, probabilities


class FeatureDraft:
    """Layers over pairs of a token and the hidden state before it (EAGLE, arXiv 2401.15077).

    The row of a committed token was made from the target's own state. Behind the root there is none yet, so
    a node's row is made from the state that the draft predicted behind its parent; on commit such rows are
    dropped, and the accepted tokens run again, with the next root, from the states the target has given.
    """

    reads_hidden = True

    def __init__(
        self,
        model: FeatureModel,
        embedding: nn.Module,
        head: OutputHead,
        context_limit: int,
        ids: Tensor | None = None,
    ) -> None:
        """`embedding` and `head` are the target's; `ids` says which ids the head's rows are for."""
        self.model, self.embedding, self.head, self.ids = model, embedding, head, ids
        self.context_limit = context_limit
        self._rotation = model.rotation(torch.arange(0, device=head.weight.device))
        self._rows: dict[int, int] = {}  # of the nodes of the level that was expanded last

    @torch.inference_mode()
    def start(self, prompt: Tensor, capacity: int, hidden: Tensor | None) -> None:
        """Run all but the prompt's last token; before the first there is no state, which reads as zeros."""
        self._capacity = capacity
        self._cache = TreeCache(self.model.config.layers, capacity)
        self._masks: dict[tuple[Layout, int], TreeMask] = {}
        self._rotation = self.model.rotation(torch.arange(capacity + 1, device=prompt.device))
        width, dtype = self.model.config.width, self.head.weight.dtype
        before = torch.zeros(1, width, dtype=dtype, device=prompt.device)
        if hidden is not None:
            before = torch.cat((before, hidden))
        self._committed = 0
        for rows in prefill_pieces(len(prompt) - 1):
            self._run(prompt[rows], before[rows], torch.arange(rows.start, rows.stop), None)
            self._committed = rows.stop
        self._pending = prompt[-1:], before[-1:]

    @torch.inference_mode()
    def expand(self, layout: Layout, level: int, tokens: Tensor, sampling: Sampling) -> Tensor:
        """One pass over the level's nodes; the first also catches up with the committed tokens."""
        if level == 0:
            tokens, before = self._pending
            positions = torch.arange(self._committed, self._committed + len(tokens))
            self._predicted = self._run(tokens, before, positions, None)[-1:]
            self._committed += len(tokens) - 1  # the root's row is the first of the tree
        else:
            parents = [self._rows[layout.tree.parents[node]] for node in layout.expanded[level]]
            positions = torch.full((len(tokens),), self._committed + level)
            mask = self._level_mask(layout, level)
            self._predicted = self._run(tokens, self._predicted[parents], positions, mask)
        self._rows = {node: row for row, node in enumerate(layout.expanded[level])}
        return probabilities(self.head(self._predicted), sampling)

    def commit(
        self, layout: Layout, path: Sequence[int], tokens: Sequence[int], hidden: Tensor | None
    ) -> None:
        """Keep the root's row; the accepted tokens are to be run from the states that the target now has."""
        assert hidden is not None
        new = torch.tensor(list(tokens), device=hidden.device), hidden
        if not layout.draft_slots:  # a step without speculation: nothing was run, the root is still to come
            self._pending = torch.cat((self._pending[0], new[0])), torch.cat((self._pending[1], new[1]))
            return
        self._committed += 1
        self._cache.keep(self._committed, [])
        self._pending = new

    def _run(self, tokens: Tensor, before: Tensor, positions: Tensor, mask: TreeMask | None) -> Tensor:
        """Predicted states (tokens, width) behind `tokens`; without a mask they are a chain."""
        length = self._cache.length + len(tokens)
        if mask is not None:
            allowed: Tensor | None = mask.over(length)
        else:
            allowed = _chain_mask(len(tokens), length, before) if len(tokens) > 1 else None

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            keys, values = self._cache.layers[layer].update(keys, values)
            return scaled_dot_product_attention(queries, keys, values, attn_mask=allowed, enable_gqa=True)

        rotation = Rotation(*(part[positions] for part in self._rotation))
        embedded = self.embedding(tokens)
        return self.model(before[None], embedded[None], rotation, attend)[0]

    def _level_mask(self, layout: Layout, level: int) -> TreeMask:
        key = (layout, level)
        if key not in self._masks:
            weight = self.head.weight
            block = layout.draft_block(level)
            self._masks[key] = TreeMask(
                *block, capacity=self._capacity, dtype=weight.dtype, device=weight.device
            )
        return self._masks[key]


def _chain_mask(tokens: int, length: int, like: Tensor) -> Tensor:
    """(tokens, length) additive mask of a chain behind what the cache holds."""
    allowed = torch.ones(tokens, length, dtype=torch.bool, device=like.device).tril_(length - tokens)
    return torch.zeros(tokens, length, dtype=like.dtype, device=like.device).masked_fill_(
        ~allowed, torch.finfo(like.dtype).min
    )
