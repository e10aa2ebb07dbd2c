"""The feature draft: it reads the target's last hidden states, and deeper in the tree its own predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.fast.block import FastBlock, ForwardState, LayerParts
from sequoia_cli.engine.fast.capture import Capture, Recorder, cuda_graphs
from sequoia_cli.engine.fast.compiled import compile_blocks
from sequoia_cli.engine.fast.fixed_cache import FixedCache, RowPool
from sequoia_cli.engine.fast.fixed_forward import Forward, run_fixed
from sequoia_cli.engine.fast.matrix import matrix_named
from sequoia_cli.engine.fast.prepare import make_fast
from sequoia_cli.engine.feature_model import FeatureModel, Rotation
from sequoia_cli.engine.head import OutputHead
from sequoia_cli.engine.integer.blocks import use_kernel
from sequoia_cli.engine.masks import MaskCache, TreeMask
from sequoia_cli.engine.model import prefill_pieces
from sequoia_cli.engine.nodes import NodeBlock, chain_block, node_block
from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.target import LAST
from sequoia_cli.engine.upload import upload


class FeatureDraft:
    """Layers over pairs of a token and the hidden state before it (EAGLE, arXiv 2401.15077).

    The row of a committed token is made from the target's own state. After the root there is none yet, so a
    node's row is made from the state that the draft predicted after its parent. On commit such rows are
    dropped, and the accepted tokens run again, with the next root, from the target's states.
    """

    taps: tuple[int, ...] = LAST

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
        self.dtype = model.hidden_norm.weight.dtype
        self._rotation = model.rotation(torch.arange(0, device=head.weight.device), self.dtype)
        self._recorder: Recorder | None = None
        self._rows = RowPool()

    def make_fast(self) -> None:
        """Prepare the network and the head for speed, once and for good."""
        shared = ForwardState()
        for index, layer in enumerate(self.model.layers):
            self.model.layers[index] = FastBlock(_parts(index, layer), shared)
        make_fast(self.model)
        self.head = self.head.fast()
        if self.head.weight.device.type == "cuda":
            self.fix_buffers(cuda_graphs(self.head.weight.device))

    def compile(self, announce: Callable[[str], None]) -> bool:
        """Let the layers of a fast network run compiled where that pays; returns whether they do."""
        parts = nn.ModuleList(part for part in (self.model, self.head.product) if part is not None)
        return any([use_kernel(parts, announce), compile_blocks(self.model, announce)])

    def fix_buffers(self, capture: Capture) -> None:
        """From here on run levels over fixed buffers, and replay what `capture` has recorded of them."""
        self._recorder = Recorder(capture, "the draft")

    @torch.inference_mode()
    def start(self, prompt: Tensor, capacity: int, hidden: Sequence[Tensor]) -> None:
        """Run all but the prompt's last token; before the first there is no state, which reads as zeros."""
        vars(self).pop("_cache", None)  # so that its rows can be used again
        layers = self.model.config.layers
        self._cache = self._rows.lease(layers, capacity) if self._recorder else TreeCache(layers, capacity)
        self._masks = MaskCache(self._mask, capacity)
        self._rotation = self.model.rotation(torch.arange(capacity + 1, device=prompt.device), self.dtype)
        before = torch.zeros(1, self.model.config.width, dtype=self.dtype, device=prompt.device)
        before = torch.cat((before, *hidden))
        self._committed = 0
        for rows in prefill_pieces(len(prompt) - 1):
            length = rows.stop - rows.start
            positions = self._places(rows.start, rows.stop)
            mask = self._mask(chain_block(length), rows.stop)
            self._append(prompt[rows], before[rows], positions, mask if length > 1 else None)
            self._committed = rows.stop
        self._pending = prompt[-1:], before[-1:]

    @torch.inference_mode()
    def extend(self, parents: Sequence[int], tokens: Tensor) -> Proposals:
        """One pass; the root's also catches up with the committed tokens."""
        if parents[0] < 0:
            tokens, before = self._pending
            positions = self._places(self._committed, self._committed + len(tokens))
            block = chain_block(len(tokens), tokens.device)
            # A copy: over fixed buffers the next pass overwrites what this one gives.
            predicted = self._states = self._run(tokens, before, positions, block)[-1:].clone()
            self._committed += len(tokens) - 1  # the root's row is the first of the tree
            self._parents = [-1]
        else:
            first = len(self._parents)
            self._parents += parents
            block = node_block(tuple(self._parents), first, tokens.device)
            positions = self._committed + block.depths
            predicted = self._run(tokens, self._states[block.parents], positions, block)
            self._states = torch.cat((self._states, predicted))
        return Proposals(self.head(predicted), self.ids)

    def commit(self, path: Sequence[int], tokens: Sequence[int], hidden: Sequence[Tensor]) -> None:
        """Keep the root's row; the accepted tokens are to be run from the states that the target now has."""
        (states,) = hidden
        new = upload(tokens, states.device), states
        if not path:  # a step without speculation: nothing was run, the root is still to come
            self._pending = torch.cat((self._pending[0], new[0])), torch.cat((self._pending[1], new[1]))
            return
        self._committed += 1
        self._cache.keep(self._committed, [])
        self._pending = new

    def _run(self, tokens: Tensor, before: Tensor, positions: Tensor, block: NodeBlock) -> Tensor:
        """Predicted states (tokens, width) after `tokens`."""
        fixed = isinstance(self._cache, FixedCache)
        mask = None
        if fixed or not (block.is_chain and len(tokens) == 1):
            mask = self._masks.of(block, self._cache.length + len(tokens))
        if not fixed:
            return self._append(tokens, before, positions, mask)
        assert self._recorder is not None and mask is not None
        inputs = tokens, before, positions
        return run_fixed(self._cache, inputs, mask, self._recorder, "states", self._fixed)[0]

    def _append(self, tokens: Tensor, before: Tensor, positions: Tensor, mask: TreeMask | None) -> Tensor:
        """The same over rows appended to the cache; without a mask a single row attends to all before it."""
        allowed = mask.over(self._cache.length + len(tokens)) if mask else None
        rotation = Rotation(*(part[positions] for part in self._rotation))
        return self._pass(tokens, before, rotation, allowed, self._cache)

    def _fixed(self) -> Forward:
        """The same as a function of what may change from step to step."""
        assert isinstance(self._cache, FixedCache)
        cache = self._cache.rows.inner

        def run(tokens: Tensor, before: Tensor, positions: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
            rotation = self.model.rotation(positions, self.dtype)
            return (self._pass(tokens, before, rotation, mask, cache),)

        return run

    def _pass(
        self, tokens: Tensor, before: Tensor, rotation: Rotation, mask: Tensor | None, cache: Cache
    ) -> Tensor:
        turns = rotation.cosine[None], rotation.sine[None]

        def run_layer(index: int, layer: nn.Module, states: Tensor) -> Tensor:
            if isinstance(layer, FastBlock):
                return layer(states, mask, position_embeddings=turns, cache=cache)

            def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                keys, values = cache.update(keys, values, index)
                return scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)

            return layer(states, rotation, attend)

        return self.model(before[None], self.embedding(tokens)[None], run_layer)[0]

    def _places(self, first: int, end: int) -> Tensor:
        return torch.arange(first, end, device=self.head.weight.device)

    def _mask(self, block: NodeBlock, capacity: int) -> TreeMask:
        return TreeMask(block, capacity=capacity, dtype=self.dtype, device=self.head.weight.device)


def _parts(index: int, layer: Any) -> LayerParts:
    """Of a `FeatureLayer`, whose matrices may be quantised."""
    return LayerParts(
        index,
        layer.heads,
        layer.kv_heads,
        layer.head_width,
        layer.head_width**-0.5,
        before_attention=layer.attention_norm,
        into_attention=matrix_named(layer, "qkv"),
        out_of_attention=matrix_named(layer, "output"),
        before_mlp=layer.inner_norm,
        into_mlp=matrix_named(layer, "gate_up"),
        out_of_mlp=matrix_named(layer, "down"),
        activation=ACT2FN["silu"],
    )
