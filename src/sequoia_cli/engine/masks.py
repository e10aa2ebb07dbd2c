"""The masks of a tree for the kinds of attention layers that a model has."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sequoia_cli.engine.layout import MaskArgument, TreeMask

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Masks:
    """The masks of one block of nodes: one, or one per kind of attention layer.

    A family that mixes full and sliding attention takes a mask for each by name; one whose layers all slide
    takes the windowed mask alone. A window no shorter than the cache is no window.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        block: tuple[Tensor, Tensor, Tensor],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        window = getattr(config, "sliding_window", None)
        if not getattr(config, "use_sliding_window", True) or (window and window >= capacity):
            window = None
        kinds = set(getattr(config, "layer_types", None) or ()) if window else set()

        def build(window: int | None) -> TreeMask:
            return TreeMask(*block, capacity=capacity, dtype=dtype, device=device, window=window)

        self._by_kind = (
            {kind: build(window if kind == _SLIDING else None) for kind in kinds} if len(kinds) > 1 else {}
        )
        self._single = None if self._by_kind else build(None if kinds == {_FULL} else window)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the masks, where there are several."""
        return tuple(self._by_kind)

    def over(self, length: int) -> MaskArgument:
        """The mask argument for a forward after which the cache has `length` rows."""
        if self._single is not None:
            return self._single.over(length)
        return {kind: mask.over(length) for kind, mask in self._by_kind.items()}

    def buffers(self, columns: int) -> MaskArgument:
        """Room for the mask argument over `columns` cache rows (see `FixedMasks`)."""
        if self._single is not None:
            return self._single.buffers(columns)
        return {kind: mask.buffers(columns) for kind, mask in self._by_kind.items()}

    def fill(self, buffers: MaskArgument, length: int) -> None:
        """Write `over(length)` into the buffers' first columns, and forbid the others."""
        if self._single is not None:
            self._single.fill(buffers, length)
        for kind, mask in self._by_kind.items():
            assert isinstance(buffers, dict)
            mask.fill(buffers[kind], length)
