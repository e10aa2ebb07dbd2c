"""The best trees of every size and depth limit, by whichever exact method the rates allow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from sequoia_cli.compiler import build, heap, tables
from sequoia_cli.compiler.tables import MAX_SIZE, Floats, Ints
from sequoia_cli.compiler.value import Rows
from sequoia_cli.core.tree import TokenTree


def largest_tree(rows: Rows, depth: int, branch: int) -> int:
    """Nodes of the largest tree within the limits, or `MAX_SIZE` where it is larger than that."""
    width = total = 1
    for layer in range(1, depth):
        width *= min(branch, len(rows[min(layer, len(rows)) - 1]))
        total += width
        if total >= MAX_SIZE:
            return MAX_SIZE
    return total


class BestTrees:
    """The trees of most expected tokens for 1..`size` nodes and 1..`depth` layers, both counting the root.

    `rows` are marginal acceptance rates by distance of the parent from the root and by rank, as in
    `AcceptanceRates.p`. No node gets more than `branch` children, nor more than its row has rates.
    Uses the heap for sorted rates, else the dynamic programme of `tables`; `programme=True` asks for that one
    in any case.
    """

    def __init__(self, rows: Rows, size: int, depth: int, branch: int, *, programme: bool = False) -> None:
        if not (1 <= size <= MAX_SIZE and depth >= 1 and branch >= 1):
            raise ValueError(f"no trees of up to {size} nodes, {depth} layers and {branch} children")
        self.size, self.depth = size, min(depth, size)
        #: Rates (distance, rank) as `tables.rate_matrix` cuts them to the limits.
        self.rates = tables.rate_matrix(rows, self.depth, branch)
        self.by_heap = heap.is_sorted(self.rates) and not programme
        if self.by_heap:
            self._growth = heap.grow(self.rates, self.rates, size, self.depth)
        else:
            self._layers = tables.fill(self.rates, size, self.depth)

    @cached_property
    def values(self) -> Floats:
        """Expected tokens per step (depth limit, size), bonus token included; -inf where there is no tree.

        Row and column 0 are unused. Limits beyond the last row change nothing: deeper trees are no better.
        """
        if self.by_heap:
            rows = [
                np.pad(np.cumsum(order.scores), (1, self.size - len(order.scores)), constant_values=-np.inf)
                for order in self._growth.orders
            ]
        else:
            rows = [layer.values[0] for layer in self._layers]
        return np.stack([np.full(self.size + 1, -np.inf), *rows])

    def value(self, size: int, depth: int) -> float:
        """Expected tokens per step of the best tree; -inf where there is none."""
        return float(self.values[min(depth, len(self.values) - 1), size])

    def tree(self, size: int, depth: int) -> TokenTree:
        """The best tree of exactly `size` nodes and at most `depth` layers; `ValueError` if there is none."""
        if not np.isfinite(self.value(size, depth)):
            raise ValueError(f"no tree of {size} nodes within {depth} layers")
        if self.by_heap:
            return self._growth.tree(size, depth)
        return build.build_tree(self._layers, size, depth)

    def expanded(self) -> Iterator[Ints]:
        """Per row of `values` from 1 on: the nodes with children (size, level), each a draft forward."""
        if self.by_heap:
            return heap.expanded_widths(self._growth.orders, self.size)
        return build.expanded_widths(self._layers)
