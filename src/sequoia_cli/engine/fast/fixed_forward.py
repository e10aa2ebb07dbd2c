"""A forward over fixed buffers: what differs from step to step is copied into them before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sequoia_cli.engine.fast.capture import Buffered, Recorder
from sequoia_cli.engine.fast.fixed_cache import FixedCache, Place
from sequoia_cli.engine.masks import MaskArgument

#: From the inputs (rows, ...) and a mask, results (rows, ...). It may look at nothing else that changes.
Forward = Callable[..., tuple[Tensor, ...]]


class FixedMasks(Protocol):
    """Masks of a block of nodes that can be written into buffers (see `Masks` and `TreeMask`)."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the argument consists of: nothing named for a single mask."""

    def buffers(self, columns: int) -> MaskArgument:
        """The mask argument for `columns` cache rows, not filled in."""

    def fill(self, buffers: MaskArgument, length: int) -> None:
        """Fill in the mask for a forward after which `length` rows are in use; no row behind is allowed."""


def run_fixed(
    cache: FixedCache,
    inputs: Sequence[Tensor],
    masks: FixedMasks,
    recorder: Recorder,
    name: str,
    forward: Callable[[], Forward],
) -> tuple[Tensor, ...]:
    """Run a model's forward over (rows, ...) of `inputs` behind what `cache` holds, and add their rows to it.

    `forward` is asked for one where none of this `name`, size and kind of masks was run before.
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
        function = _placed(forward(), cache.rows.place, sees, mask)
        return Buffered(function, recorder, (slots, *inputs)), mask

    function, mask = cache.rows.forward(key, make)
    masks.fill(mask, length)
    results: tuple[Tensor, ...] = function(slots, *inputs)
    cache.advance(count)
    return results


def _placed(forward: Forward, place: Place, sees: int, mask: MaskArgument) -> Forward:
    """The forward as a function of the slots its rows go to, and its inputs."""

    def run(slots: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        with place.at(slots, sees):
            return forward(*inputs, mask)

    return run


def replays_truly(run: Callable[[Any, int, int], Tensor], plain: Any, fixed: Any, tolerance: float) -> bool:
    """Whether a forward that was recorded is right where it is replayed.

    `run(cache, first, rows)` gives the logits of that many rows behind the `first`. What a model computes on
    the host, from the length of the cache say, is recorded as it was and wrong everywhere else. The second
    run records, the third is the first at another place.
    """
    for first in (0, 2, 4):
        expected, found = run(plain, first, 2).double(), run(fixed, first, 2).double()
        spread = (expected - expected.mean(-1, keepdim=True)).norm()
        if not (found - expected).norm() <= tolerance * spread:
            return False
    return True
