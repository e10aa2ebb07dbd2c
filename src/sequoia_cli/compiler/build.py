"""From the arg-max tables back to trees: one tree, or the level widths of the best trees of all sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sequoia_cli.compiler.tables import Ints, Layer
from sequoia_cli.core.tree import TokenTree


def build_tree(layers: Sequence[Layer], size: int, depth: int) -> TokenTree:
    """The best tree of exactly `size` nodes (finite in the tables) and at most `depth` layers.

    Peels the children of each node off its forest, the last rank first, from the root down.
    """
    limit = min(depth, len(layers))
    sizes, counts = [size], []
    for distance in range(limit):
        layer = layers[limit - 1 - distance]
        row = min(distance, layer.values.shape[0] - 1)
        below: list[int] = []
        counts.append([int(layer.counts[row, nodes]) for nodes in sizes])
        for nodes, count in zip(sizes, counts[-1], strict=True):
            children = []
            for rank in reversed(range(count)):
                children.append(int(layer.last[rank, row, nodes]))
                nodes -= children[-1]
            below += reversed(children)
        sizes = below
    return TokenTree.from_child_counts(counts)


def expanded_widths(layers: Sequence[Layer]) -> Iterator[Ints]:
    """For each depth limit from 1 on, the nodes with children in each level of the best tree of every size.

    Yields arrays (size, level) with one level less than the limit, as the last level has no children. Rows of
    sizes that cannot be reached mean nothing.
    """
    first = layers[0].values.shape
    below = np.zeros((*first, 0), np.int16)
    yield below[0]
    for limit, layer in enumerate(layers[1:], start=2):
        rows, width = layer.values.shape
        child = np.minimum(np.arange(rows) + 1, first[0] - 1)
        # Flat indices (distance, size) turn the look-ups of each rank into plain row gathers.
        start_here, start_below = np.arange(rows)[:, None] * width, child[:, None] * width
        below = below.reshape(below.shape[0] * width, limit - 2)
        forest = np.zeros((rows * width, limit - 2), np.int16)
        widths = np.zeros((rows * width, limit - 1), np.int16)
        for rank in range(int(layer.counts.max())):
            taken = layer.last[rank]
            rest = (start_here + np.arange(width) - taken).ravel()
            forest = forest[rest] + below[(start_below + taken).ravel()]
            ends = (layer.counts == rank + 1).ravel()
            widths[ends, 1:] = forest[ends]
        widths[:, 0] = (layer.counts > 0).ravel()
        below = widths.reshape(rows, width, limit - 1)
        yield below[0]
