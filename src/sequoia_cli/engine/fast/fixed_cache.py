"""Cache rows at fixed addresses, so that recorded forwards can be replayed for the next text too."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from sequoia_cli.engine.cache import TreeCache, TreeLayer

#: A forward over fixed buffers attends to a multiple of this many rows: one recording serves all lengths of a
#: bucket, and a short text does not pay for the whole capacity.
BUCKET = 256

#: Forwards kept at most. Each holds its logits and its mask: 65 MB for 128 nodes and 128,000 ids.
MOST_FORWARDS = 24


class WriteSlots:
    """The rows that the current forward writes, `slots` (rows,) on the device, and how many it `sees`."""

    def __init__(self) -> None:
        self.slots: Tensor | None = None
        self.sees = 0

    @contextmanager
    def at(self, slots: Tensor, sees: int) -> Iterator[None]:
        """Set for one forward; outside of it rows are appended as in any `TreeLayer`."""
        self.slots, self.sees = slots, sees
        try:
            yield
        finally:
            self.slots = None


class FixedLayer(TreeLayer):
    """A cache layer for recorded forwards: nothing that differs between steps is baked into the recording.

    Such a forward does not change `length`, since a replay runs no Python.
    """

    def __init__(self, capacity: int, write_slots: WriteSlots) -> None:
        super().__init__(capacity)
        self.first_rows = capacity  # which never move
        self._write = write_slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeros: masked rows have weight 0, and 0 times what memory held may be no number."""
        if key_states.shape[0] != 1:
            raise ValueError(f"a fixed cache has the rows of one text, not of {key_states.shape[0]}")
        super().lazy_initialization(key_states, value_states)
        self.keys.zero_()
        self.values.zero_()

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new rows to their slots; returns views of all rows that the forward sees."""
        slots, sees = self._write.slots, self._write.sees
        if slots is None:
            return super().update(key_states, value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys.index_copy_(2, slots, key_states)
        self.values.index_copy_(2, slots, value_states)
        return self.keys[:, :, :sees], self.values[:, :, :sees]


class FixedRows:
    """Rows that hold one text after another, and the forwards over them, of which the latest are kept."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.capacity, self.write_slots = capacity, WriteSlots()
        self.layers = [FixedLayer(capacity, self.write_slots) for _ in range(layers)]
        #: What a forward takes for its cache. Not a text's own: what was recorded outlives that.
        self.inner = Cache(layers=self.layers)
        self._forwards: dict[Hashable, Any] = {}
        self.chain_masks: dict[int, Any] = {}

    def forward(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` returned for this key, made if it is not kept. Beyond `MOST_FORWARDS` the one that was
        used longest ago is dropped."""
        found = self._forwards.pop(key, None)
        if found is None:
            found = make()
            while len(self._forwards) >= MOST_FORWARDS:
                del self._forwards[next(iter(self._forwards))]
        self._forwards[key] = found
        return found


class FixedCache(TreeCache):
    """The cache of one text, in rows that it has to itself for as long as it lives."""

    def __init__(self, rows: FixedRows) -> None:
        Cache.__init__(self, layers=rows.layers)
        self.rows, self.capacity, self.chain_masks = rows, rows.capacity, rows.chain_masks
        self.forget(0)

    @torch.inference_mode()
    def forget(self, prefix: int) -> None:
        """As `TreeCache`. Masked rows are multiplied by 0 here, so what they held must be a number."""
        for layer in self.rows.layers:
            layer.length = prefix
            if layer.is_initialized:
                layer.keys[:, :, prefix:].zero_()
                layer.values[:, :, prefix:].zero_()

    def seen(self, length: int) -> int:
        """How many rows a forward attends to after which `length` are in use."""
        return -(-length // BUCKET) * BUCKET

    def advance(self, rows: int) -> None:
        """Count rows that a forward over fixed buffers has written."""
        for layer in self.layers:
            layer.length += rows


class RowPool:
    """Hands out caches. The rows of one that is gone are used again, if no larger ones are at hand."""

    def __init__(self) -> None:
        self._free: FixedRows | None = None

    def lease(self, layers: int, capacity: int) -> FixedCache:
        """A cache of at least `capacity` rows."""
        rows, self._free = self._free, None
        if rows is None or rows.capacity < capacity:
            rows = FixedRows(layers, -(-capacity // BUCKET) * BUCKET)
        cache = FixedCache(rows)
        weakref.finalize(cache, self._take_back, rows).atexit = False
        return cache

    def _take_back(self, rows: FixedRows) -> None:
        if self._free is None or self._free.capacity < rows.capacity:
            self._free = rows
