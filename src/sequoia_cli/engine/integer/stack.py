"""All decoder layers of a model as one call of the kernel: no Python runs between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.integer.kernel import LayersCall

#: The hidden states that transformers is to collect, by hooks on single layers (see `Target`).
_taps: tuple[int, ...] = ()


@contextmanager
def collected(taps: Sequence[int]) -> Iterator[None]:
    """Run layers singly whose states are `taps`: the last layer for the last states, else all."""
    global _taps
    before, _taps = _taps, tuple(taps)
    try:
        yield
    finally:
        _taps = before


def stack_layers(model: nn.Module) -> bool:
    """Let decoder layers of `model` that are whole in the kernel run as one; returns whether some do.

    Where layers have masks of different kinds, transformers hands each its own, and they stay single.
    """
    config = model.config.get_text_config() if isinstance(model, PreTrainedModel) else None
    if len(set(getattr(config, "layer_types", None) or ())) > 1:
        return False
    found = False
    for parent in list(model.modules()):
        for name, layers in list(parent.named_children()):
            if type(layers) is nn.ModuleList and len(layers) > 1 and (blocks := _blocks(layers)):
                setattr(parent, name, StackedLayers(layers, blocks))
                found = True
    return found


def _blocks(layers: nn.ModuleList) -> list[FastBlock]:
    """The blocks of layers that the kernel can run one after the other; none where it cannot."""
    blocks = [getattr(layer, "block", None) for layer in layers]
    known = [block for block in blocks if isinstance(block, FastBlock)]
    same = {(id(block.shared), block.width, block.queries, block.keys) for block in known}
    if len(known) < len(layers) or len(same) > 1:
        return []
    if [block.layer_index for block in known] != list(range(len(known))):
        return []
    return known if all(isinstance(block.in_kernel, LayersCall) for block in known) else []


class StackedLayers(nn.ModuleList):
    """Decoder layers that a loop over all of them meets as one module; each is still there by its number."""

    def __init__(self, layers: nn.ModuleList, blocks: Sequence[FastBlock]) -> None:
        super().__init__(layers)
        self._all = (_AllLayers(list(layers), blocks),)  # in a tuple: no module of its own

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._all)

    def __getitem__(self, index: Any) -> Any:
        """The layer of that number; for a slice of all layers, what runs them."""
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self._all
        return nn.ModuleList(self.children())[index]


class _AllLayers(nn.Module):
    """Runs all layers at once where rows follow others in a cache of ours, else one by one."""

    def __init__(self, layers: Sequence[nn.Module], blocks: Sequence[FastBlock]) -> None:
        super().__init__()
        self._layers, self._blocks = tuple(layers), tuple(blocks)
        calls = [block.in_kernel for block in blocks if isinstance(block.in_kernel, LayersCall)]
        self._all, self._all_but_last = LayersCall.joined(calls), LayersCall.joined(calls[:-1])

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        cache: Any = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> Tensor:
        """(texts, rows, hidden) in and out, with the arguments that transformers gives each decoder layer."""
        kept = cache if cache is not None else past_key_values
        singly = list(self._layers)
        first = self._blocks[0]
        if not set(_taps) - {-1} and first.can_run_whole(hidden_states, attention_mask, kept):
            assert isinstance(kept, TreeCache)
            call = self._all_but_last if _taps else self._all
            count = len(call.layers)
            turns, seen = first.kernel_inputs(hidden_states, attention_mask, position_embeddings)
            rows = [kept.layers[index].reserve(hidden_states.shape[1]) for index in range(count)]
            keys, values, ends = zip(*rows, strict=True)
            hidden_states, singly = call(hidden_states, turns, keys, values, ends[0], seen), singly[count:]
        others |= {"position_embeddings": position_embeddings}
        others |= {"cache": cache} if cache is not None else {"past_key_values": past_key_values}
        for layer in singly:
            hidden_states = layer(hidden_states, attention_mask, **others)
        return hidden_states
