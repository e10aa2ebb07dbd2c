"""Best trees for rates that never rise with the rank: the n nodes of highest score, in one sorted pass.

The score of a node is the product of the rates on its path (Sequoia, arXiv 2402.12374, Definition 3.3), and
the value of a tree is the sum over its nodes. Proof that the n highest scores are the best n nodes where each
row of rates is non-increasing in the rank:

    No tree of n nodes is worth more than the n highest scores of all nodes within the depth limit. Order the
    nodes by score, equal scores by layer, then by the place of the parent, then by rank. A parent comes
    before its child, since a rate is at most 1 and its layer is lower; a sibling of lower rank comes before
    one of higher rank, since its rate is no less. So the first n nodes in that order contain with a node its
    parent and its earlier siblings: they are a tree, and it attains the bound.

With a rising rate the second step fails (child k needs children 1..k-1), and only the programme in `tables`
is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequoia_cli.compiler.tables import Floats, Ints
from sequoia_cli.core.tree import TokenTree


@dataclass(frozen=True)
class Level:
    """The best nodes of one layer, highest score first; `parents` are places in the layer above."""

    scores: Floats
    parents: NDArray[np.intp]
    ranks: NDArray[np.intp]


@dataclass(frozen=True)
class Order:
    """The best nodes within a depth limit, highest score first: score, layer, and whether a first child."""

    scores: Floats
    layers: Ints
    firsts: NDArray[np.bool_]


def is_sorted(rates: Floats) -> bool:
    """Whether no row (distance, rank) rises with the rank; NaN marks ranks that a row lacks."""
    return not bool((np.diff(rates, axis=1) > 0).any())


def rank_nodes(rates: Floats, size: int, depth: int) -> tuple[list[Level], list[Order]]:
    """The best `size` nodes of each layer, and of all layers within each depth limit 1..`depth`.

    Ends early where a further layer adds no node: children score no more than their parents, so no deeper
    layer would add one either. `rates` (distance, rank) must be sorted.
    """
    none = np.zeros(1, np.intp)
    levels = [Level(np.ones(1), none, none)]
    orders = [Order(np.ones(1), np.zeros(1, np.int16), np.zeros(1, bool))]
    # The node of rank k under the i-th best parent has (i + 1)(k + 1) - 1 nodes before it: those of ranks up
    # to k under parents up to i. Beyond `size` it is in no tree.
    grid = np.multiply.outer(np.arange(1, size + 1), np.arange(1, rates.shape[1] + 1)) <= size
    for layer in range(1, depth):
        row = rates[min(layer, len(rates)) - 1]
        above = levels[-1].scores
        parents, ranks = np.nonzero(grid[: len(above), : int(np.count_nonzero(~np.isnan(row)))])
        scores = above[parents] * row[ranks]
        best = np.argsort(-scores, kind="stable")[:size]
        levels.append(Level(scores[best], parents[best], ranks[best]))
        order = _merged(orders[-1], levels[-1], layer, size)
        if np.array_equal(order.layers, orders[-1].layers):
            levels.pop()
            break
        orders.append(order)
    return levels, orders


def _merged(order: Order, level: Level, layer: int, size: int) -> Order:
    """The order with one more layer in it; of equal scores the upper layers stay first."""
    scores = np.concatenate([order.scores, level.scores])
    best = np.argsort(-scores, kind="stable")[:size]
    layers = np.concatenate([order.layers, np.full(len(level.scores), layer, np.int16)])
    firsts = np.concatenate([order.firsts, level.ranks == 0])
    return Order(scores[best], layers[best], firsts[best])


def build_tree(levels: list[Level], order: Order, size: int) -> TokenTree:
    """The tree of the first `size` nodes of `order`, numbered breadth-first."""
    kept = np.bincount(order.layers[:size])
    counts: list[list[int]] = []
    turn = np.zeros(1, np.intp)  # the nodes of the layer, by place in its level, in breadth-first order
    for layer, nodes in enumerate(kept):
        below = int(kept[layer + 1]) if layer + 1 < len(kept) else 0
        parents = levels[layer + 1].parents[:below] if below else turn[:0]
        counts.append(np.bincount(parents, minlength=nodes)[turn].tolist())
        if below:
            position = np.empty(nodes, np.intp)
            position[turn] = np.arange(nodes)
            turn = np.lexsort((levels[layer + 1].ranks[:below], position[parents]))
    return TokenTree.from_child_counts(counts)


def expanded_widths(orders: list[Order], size: int) -> Iterator[Ints]:
    """As `build.expanded_widths`: a level's nodes with children are the first children of the next level."""
    for limit, order in enumerate(orders, start=1):
        widths = np.zeros((size + 1, limit - 1), np.int16)
        for level in range(limit - 1):
            grown = np.cumsum(order.firsts & (order.layers == level + 1))
            widths[1 : len(grown) + 1, level] = grown
        yield widths
