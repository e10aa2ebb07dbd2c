"""One adapter over any decoder-only Hugging Face model: tokens, positions and a tree mask in, logits out."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sequoia_cli.core.tree import chain
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.layout import Layout, TreeMask

#: A prompt is run in pieces of this many tokens (see `prefill_pieces`).
_PREFILL_TOKENS = 512

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Output(NamedTuple):
    """Logits (rows, vocabulary), and the last hidden states (rows, hidden) where they were asked for."""

    logits: Tensor
    hidden: Tensor | None

    def of_text(self, index: int) -> Output:
        """One text of a batch of them."""
        return Output(self.logits[index], self.hidden[index] if self.hidden is not None else None)


class LanguageModel:
    """A causal model as the engine uses it: batch of one, explicit positions, explicit tree masks."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.config = model.config.get_text_config()
        self.family: str = self.config.model_type
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocabulary = int(self.config.vocab_size)
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in 5.24
        self._keeps_logits = "logits_to_keep" in parameters
        self._takes_positions = "position_ids" in parameters
        #: Positions that can be used; a very large number where the family sets no limit.
        self.context_limit = _context_limit(self.config)

    def new_cache(self, capacity: int) -> TreeCache:
        """A cache of `capacity` rows."""
        return TreeCache(self.config.num_hidden_layers, capacity)

    def masks(self, block: tuple[Tensor, Tensor, Tensor], capacity: int) -> Masks:
        """The masks of a block of nodes (see `Layout`) for each kind of attention layer this model has."""
        return Masks(self, block, capacity)

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: TreeCache,
        masks: Masks | None,
        *,
        hidden: bool = False,
    ) -> Output:
        """Run `tokens` at `positions`, both (rows,), behind what `cache` holds, and add their rows to it.

        Without `masks` the tokens are a chain behind the prefix.
        """
        if masks is None and len(tokens) > 1:
            masks = self._chain(len(tokens), cache)
        mask = masks.over(cache.length + len(tokens)) if masks else None
        return self._run(tokens[None], positions[None], cache, mask, hidden, 0).of_text(0)

    @torch.inference_mode()
    def prefill(self, tokens: Tensor, cache: TreeCache, *, hidden: bool = False) -> Tensor | None:
        """Run a prompt of (tokens,) into an empty cache; returns its hidden states if asked for."""
        states = []
        for rows in prefill_pieces(len(tokens)):
            positions = torch.arange(rows.start, rows.stop, device=self.device)
            output = self._run(tokens[None, rows], positions[None], cache, None, hidden, 1).of_text(0)
            if output.hidden is not None:
                states.append(output.hidden)
        return torch.cat(states) if states else None

    @torch.inference_mode()
    def forward_rows(self, tokens: Tensor, positions: Tensor, cache: TreeCache, attended: Tensor) -> Output:
        """Run one token of each of many texts side by side: `tokens` and `positions` are (rows,).

        `attended` is (rows, cache length + 1), 1 where a row's text may look. Hidden states come along.
        """
        output = self._run(tokens[:, None], positions[:, None], cache, attended, True, 0)
        assert output.hidden is not None
        return Output(output.logits[:, 0], output.hidden[:, 0])

    def _chain(self, length: int, cache: TreeCache) -> Masks:
        if length not in cache.chain_masks:
            cache.chain_masks[length] = self.masks(Layout(chain(length)).target_block(), cache.capacity)
        return cache.chain_masks[length]

    def _run(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: TreeCache,
        mask: Tensor | dict[str, Tensor] | None,
        hidden: bool,
        keep: int,
    ) -> Output:
        """(texts, rows) of tokens in; logits and hidden states (texts, rows, ...) out."""
        arguments = {self._cache_name: cache, "use_cache": True, "attention_mask": mask, "return_dict": True}
        if self._takes_positions:
            arguments["position_ids"] = positions
        if self._keeps_logits:
            arguments["logits_to_keep"] = keep
        if hidden:
            arguments["output_hidden_states"] = True
        output = self.model(input_ids=tokens, **arguments)
        return Output(output.logits, output.hidden_states[-1] if hidden else None)


def prefill_pieces(tokens: int) -> Iterator[slice]:
    """The pieces in which a prompt is run: that bounds the memory of its attention scores."""
    for first in range(0, tokens, _PREFILL_TOKENS):
        yield slice(first, min(first + _PREFILL_TOKENS, tokens))


def _context_limit(config: PreTrainedConfig) -> int:
    """Positions that a text may have.

    Rotary frequencies that depend on the length of the text (Phi's long contexts, dynamic NTK) change behind
    the original context, which leaves rows in the cache that were computed with others. Such texts end there.
    """
    limit = int(getattr(config, "max_position_embeddings", None) or 1 << 40)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("longrope", "dynamic"):
        limit = min(limit, int(rope.get("original_max_position_embeddings") or limit))
    return limit


class Masks:
    """The masks of one block of nodes: one, or one per kind of attention layer.

    A family that mixes full and sliding attention takes a mask for each by name; one whose layers all slide
    takes the windowed mask alone. A window no shorter than the cache is no window.
    """

    def __init__(self, model: LanguageModel, block: tuple[Tensor, Tensor, Tensor], capacity: int) -> None:
        config = model.config
        window = getattr(config, "sliding_window", None)
        if not getattr(config, "use_sliding_window", True) or (window and window >= capacity):
            window = None
        kinds = set(getattr(config, "layer_types", None) or ()) if window else set()

        def build(window: int | None) -> TreeMask:
            return TreeMask(*block, capacity=capacity, dtype=model.dtype, device=model.device, window=window)

        self._by_kind = (
            {kind: build(window if kind == _SLIDING else None) for kind in kinds} if len(kinds) > 1 else {}
        )
        self._single = None if self._by_kind else build(None if kinds == {_FULL} else window)

    def over(self, length: int) -> Tensor | dict[str, Tensor]:
        """The mask argument for a forward after which the cache has `length` rows."""
        if self._single is not None:
            return self._single.over(length)
        return {kind: mask.over(length) for kind, mask in self._by_kind.items()}
