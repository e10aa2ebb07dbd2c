"""Attention masks of tree nodes, for each kind of attention layer that a model has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from sequoia_cli.engine.nodes import NodeBlock

#: What a model takes for its attention mask: one, or one by name for each kind of attention layer.
MaskArgument = Tensor | dict[str, Tensor]

#: Masks of one text that are kept at most.
_MOST_KEPT = 256

_FULL, _SLIDING = "full_attention", "sliding_attention"

_M = TypeVar("_M")


class TreeMask:
    """An additive attention mask for a block of nodes after a prefix of any length.

    Built once: the node columns stand at the right end of a buffer of `capacity` columns and the prefix
    extends to the left, so the mask for every prefix is a view of it. Positions relative to the root do not
    depend on the prefix either, which is why a sliding window can be part of the buffer.

    `window` is a number of positions, or None for full attention.
    """

    def __init__(
        self,
        block: NodeBlock,
        *,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
    ) -> None:
        rows, columns = block.allowed.shape
        #: From the end of the mask back, the columns that some row sees; None for all.
        self._reach = None
        if window is not None:
            self._reach = columns + max(0, window - 1 - int(block.row_depths.min()))
        allowed = torch.ones(rows, capacity, dtype=torch.bool)
        allowed[:, capacity - columns :] = block.allowed
        if window is not None:
            prefix = torch.arange(columns - capacity, 0)
            distance = block.row_depths[:, None] - torch.cat((prefix, block.column_depths))[None, :]
            allowed &= distance < window
        # The largest negative number, not minus infinity: what a model may add to it must not make a NaN.
        self._buffer = torch.zeros(rows, capacity, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
        self._buffer = self._buffer.to(device)[None, None]

    def over(self, length: int, *, narrow: bool = False) -> Tensor:
        """The mask over `length` cache rows, prefix and nodes together: (1, 1, rows, length).

        Where it is to be `narrow` the columns are left out that stand before the window of every row.
        """
        reach = self._reach if narrow and self._reach is not None else length
        mask = self._view(min(length, reach))
        length = mask.shape[-1]
        if mask.device.type == "cpu":
            return mask
        # The fused kernels of accelerators want rows and their start on multiples of 8 elements.
        aligned = mask.new_empty((*mask.shape[:-1], -(-length // 8) * 8))[..., :length]
        return aligned.copy_(mask)

    #: A single mask has no kinds (see `FixedMasks`).
    kinds: tuple[str, ...] = ()

    def buffers(self, columns: int) -> Tensor:
        """Room for the mask over `columns` cache rows."""
        return self._buffer.new_empty(*self._buffer.shape[:-1], columns)

    def fill(self, buffers: MaskArgument, length: int) -> None:
        """Write `over(length)` into the buffer's first columns, and forbid the others."""
        assert isinstance(buffers, Tensor)
        buffers[..., :length].copy_(self._view(length))
        buffers[..., length:].fill_(torch.finfo(buffers.dtype).min)

    def _view(self, length: int) -> Tensor:
        return self._buffer[..., self._buffer.shape[-1] - length :]


class Masks:
    """The masks of one block of nodes: one, or one per kind of attention layer.

    A family that mixes full and sliding attention takes a mask for each by name; one whose layers all slide
    takes the windowed mask alone. A window no shorter than the cache is no window.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        block: NodeBlock,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        narrow: bool = False,
    ) -> None:
        """`narrow` says that the model's attention takes masks over the last rows alone."""
        self._narrow = narrow
        window = getattr(config, "sliding_window", None)
        if not getattr(config, "use_sliding_window", True) or (window and window >= capacity):
            window = None
        kinds = set(getattr(config, "layer_types", None) or ()) if window else set()

        def build(window: int | None) -> TreeMask:
            return TreeMask(block, capacity=capacity, dtype=dtype, device=device, window=window)

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
            return self._single.over(length, narrow=self._narrow)
        return {kind: mask.over(length, narrow=self._narrow) for kind, mask in self._by_kind.items()}

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


class MaskCache(Generic[_M]):
    """The masks of one text by block of nodes; `build(block, capacity)` makes them."""

    def __init__(self, build: Callable[[NodeBlock, int], _M], capacity: int) -> None:
        self._build, self._capacity = build, capacity
        self._masks: dict[NodeBlock, _M | None] = {}

    def of(self, block: NodeBlock, length: int) -> _M:
        """The masks for a forward after which the cache holds `length` rows.

        A block met for the first time may never come again, so its masks reach no further than that.
        """
        if block not in self._masks:
            if len(self._masks) >= _MOST_KEPT:
                self._masks.clear()
            self._masks[block] = None
            return self._build(block, length)
        found = self._masks[block]
        if found is None:
            found = self._masks[block] = self._build(block, self._capacity)
        return found
