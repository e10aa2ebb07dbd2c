"""A forward over fixed buffers: inputs that differ between steps are copied into them before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sequoia_cli.engine.fast.capture import Buffered, Recorder
from sequoia_cli.engine.fast.fixed_cache import FixedCache, WriteSlots
from sequoia_cli.engine.masks import MaskArgument

#: Inputs (rows, ...) and a mask -> results (rows, ...). It may read nothing else that changes between steps.
Forward = Callable[..., tuple[Tensor, ...]]


class FixedMasks(Protocol):
    """Masks of a block of nodes that can be written into buffers (see `Masks` and `TreeMask`)."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the masks in the argument; none for a single mask."""

    def buffers(self, columns: int) -> MaskArgument:
        """The mask argument for `columns` cache rows, not filled in."""

    def fill(self, buffers: MaskArgument, length: int) -> None:
        """Fill in the mask for a forward after which `length` rows are in use; later rows are masked."""


def run_fixed(
    cache: FixedCache,
    inputs: Sequence[Tensor],
    masks: FixedMasks,
    recorder: Recorder,
    name: str,
    forward: Callable[[], Forward],
) -> tuple[Tensor, ...]:
    """Run a model's forward over (rows, ...) of `inputs` after what `cache` holds, and add their rows to it.

    `forward` makes one where none of this `name`, size and kind of masks is kept.
    """
    count = len(inputs[0])
    length = cache.length + count
    if length > cache.capacity:
        raise ValueError(f"{length} rows do not fit into a cache of {cache.capacity}")
    sees = cache.seen(length)
    key = name, count, sees, masks.kinds
    slots = torch.arange(cache.length, length, device=inputs[0].device)

    def make() -> tuple[Buffered, MaskArgument]:
        mask = masks.buffers(sees)
        function = _placed(forward(), cache.rows.write_slots, sees, mask)
        return Buffered(function, recorder, (slots, *inputs)), mask

    function, mask = cache.rows.forward(key, make)
    masks.fill(mask, length)
    results: tuple[Tensor, ...] = function(slots, *inputs)
    cache.advance(count)
    return results


def _placed(forward: Forward, write_slots: WriteSlots, sees: int, mask: MaskArgument) -> Forward:
    """The forward as a function of its inputs and of the slots that its rows are written to."""

    def run(slots: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        with write_slots.at(slots, sees):
            return forward(*inputs, mask)

    return run


def replays_truly(run: Callable[[Any, int, int], Tensor], plain: Any, fixed: Any, tolerance: float) -> bool:
    """Whether a recorded forward is right when it is replayed after a longer text.

    `run(cache, first, rows)` returns the logits of `rows` rows after the first `first`. A number that a model
    computes on the host, such as one from the length of the cache, is recorded, and wrong at other lengths.
    The second run records; the third is the first replay at another length.
    """
    for first in (0, 2, 4):
        expected, found = run(plain, first, 2).double(), run(fixed, first, 2).double()
        spread = (expected - expected.mean(-1, keepdim=True)).norm()
        if not (found - expected).norm() <= tolerance * spread:
            return False
    return True
