"""The tree key-value cache: rows to write to, tree nodes written after the prefix, one path gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from sequoia_cli.engine.upload import upload

#: Rows that a cache starts with, where its capacity is larger.
_FIRST_ROWS = 1024


class SharedRows:
    """Keys and values of all layers of one shape as one tensor, (2, layers, 1, heads, rows, head_dim).

    A path is then kept in two operations, whatever the number of layers. A layer of another shape, dtype or
    device than the first has a tensor of its own.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._states: Tensor | None = None
        #: (layer, its keys, its values), the latter views of the tensor.
        self._views: list[tuple[TreeLayer, Tensor, Tensor]] = []

    def join(self, layer: TreeLayer, keys: Tensor, values: Tensor, rows: int) -> bool:
        """Give `layer` its views for states like these; returns whether they fit."""
        shape = (2, self._layers, *keys.shape[:2], rows, keys.shape[3])
        if self._states is None and keys.shape == values.shape and layer.index < self._layers:
            self._states = keys.new_empty(shape)
        states = self._states
        if states is None or keys.shape != values.shape:
            return False
        if (*states.shape[2:4], states.shape[5]) != (*keys.shape[:2], keys.shape[3]):
            return False
        if (states.dtype, states.device) != (keys.dtype, keys.device):
            return False
        self._view(layer)
        return True

    def grow(self, rows: int) -> None:
        """Make room for `rows` in all layers, whose rows in use are kept."""
        before = self._states
        assert before is not None
        used = max(layer.length for layer, _, _ in self._views)
        self._states = before.new_empty((*before.shape[:4], rows, before.shape[5]))
        self._states[..., :used, :] = before[..., :used, :]
        layers = [layer for layer, _, _ in self._views]
        self._views = []
        for layer in layers:
            self._view(layer)

    def holds(self, layers: Sequence[TreeLayer]) -> bool:
        """Whether all of these layers that have rows have them here."""
        here = {
            id(layer) for layer, keys, values in self._views if layer.keys is keys and layer.values is values
        }
        return all(id(layer) in here for layer in layers if layer.is_initialized)

    def keep(self, prefix: int, rows: Tensor) -> None:
        """Move `rows`, in this order, to those from `prefix` on."""
        if self._states is not None:
            self._states[..., prefix : prefix + len(rows), :] = self._states.index_select(4, rows)

    def _view(self, layer: TreeLayer) -> None:
        assert self._states is not None
        layer.keys, layer.values = self._states[0, layer.index], self._states[1, layer.index]
        self._views.append((layer, layer.keys, layer.values))


class TreeLayer(CacheLayerMixin):
    """Keys and values of one attention layer, (1, heads, rows, head_dim) each, allocated at first use.

    They grow with the text up to `capacity` rows, twice as many each time, since most texts end before their
    budget does. All rows are kept, also in layers with a sliding window: the mask applies the window.
    """

    is_sliding = False

    def __init__(self, capacity: int, shared: SharedRows | None = None, index: int = 0) -> None:
        super().__init__()
        self.capacity, self.index = capacity, index
        #: Rows to allocate at first.
        self.first_rows = _FIRST_ROWS
        self.length = 0
        self._shared = shared

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the first rows in the shape, dtype and device of the first states."""
        self.device = key_states.device
        rows = min(self.capacity, max(self.first_rows, key_states.shape[2]))
        if self._shared is None or not self._shared.join(self, key_states, value_states, rows):
            self._shared = None
            self.keys = key_states.new_empty((*key_states.shape[:2], rows, key_states.shape[3]))
            self.values = value_states.new_empty((*value_states.shape[:2], rows, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new rows after the old ones; returns views of all rows written so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.length
        keys, values, end = self.reserve(key_states.shape[2])
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def reserve(self, rows: int) -> tuple[Tensor, Tensor, int]:
        """Count `rows` more, which the caller writes; returns keys and values whole, and the rows in use.

        Raises `ValueError` where there is no room for them.
        """
        if self.length + rows > self.capacity:
            raise ValueError(f"{rows} rows after {self.length} do not fit into {self.capacity}")
        if self.length + rows > self.keys.shape[2]:
            room = min(self.capacity, max(2 * self.keys.shape[2], self.length + rows))
            if self._shared is not None:
                self._shared.grow(room)
            else:
                self.keys, self.values = (self._moved(states, room) for states in (self.keys, self.values))
        self.length += rows
        return self.keys, self.values, self.length

    def _moved(self, states: Tensor, rows: int) -> Tensor:
        """A copy of the rows in use, with room for `rows`."""
        larger = states.new_empty((*states.shape[:2], rows, states.shape[3]))
        larger[:, :, : self.length] = states[:, :, : self.length]
        return larger

    def keep(self, prefix: int, rows: Tensor | None) -> None:
        """Move `rows`, in this order, to those from `prefix` on; None moves nothing."""
        if rows is not None and self.is_initialized:  # a layer that reads the rows of another has none
            for states in (self.keys, self.values):
                states[:, :, prefix : prefix + len(rows)] = states.index_select(2, rows.to(states.device))

    def get_seq_length(self) -> int:
        """Rows in use."""
        return self.length

    def get_mask_sizes(self, query_length: int, *_: Any) -> tuple[int, int]:
        """(key length, offset) of the mask for a forward over `query_length` tokens."""
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        """Rows that there can be."""
        return self.capacity

    get_max_cache_shape = get_max_length  # its name before transformers 5.24


class TreeCache(Cache):
    """One `TreeLayer` per decoder layer of a model.

    `capacity` rows hold the committed tokens and, after them, the nodes of one tree. A decoding step writes
    its nodes with a forward and then calls `keep` with those on the accepted path.
    """

    def __init__(self, layers: int, capacity: int) -> None:
        self.shared: SharedRows | None = SharedRows(layers)
        super().__init__(layers=[TreeLayer(capacity, self.shared, index) for index in range(layers)])
        self.capacity = capacity
        #: Masks of plain chains by length, kept here because they are as wide as the capacity.
        self.chain_masks: dict[int, Any] = {}

    @property
    def length(self) -> int:
        """Rows in use: committed tokens, and tree nodes that no `keep` has decided on yet."""
        return self.layers[0].length

    def forget(self, prefix: int) -> None:
        """Keep `prefix` rows; nothing may read what the others hold, not even under a mask."""
        self.keep(prefix, [])

    @torch.inference_mode()
    def keep(self, prefix: int, offsets: Sequence[int]) -> None:
        """Keep `prefix` rows and, in this order, the rows at `prefix + offset`; forget the others."""
        if list(offsets) != list(range(len(offsets))):
            rows = upload([prefix + offset for offset in offsets], self.layers[0].device)
            if self.shared is not None and self.shared.holds(self.layers):
                self.shared.keep(prefix, rows)
            else:
                for layer in self.layers:
                    layer.keep(prefix, rows)
        for layer in self.layers:
            layer.length = prefix + len(offsets)
