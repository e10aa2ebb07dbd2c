"""Trees grown in the order of their nodes' scores, for rates that never rise with the rank and capped levels.

The score of a node is the product of the rates on its path (Sequoia, arXiv 2402.12374, Definition 3.3), and
the value of a tree is the sum over its nodes. A cap is the largest number of nodes of a layer that may have
children. Proof that the following gives the best tree of every size within given caps, where each row of
rates is non-increasing in the rank:

    Candidates. The root is the candidate of layer 0. The candidates of a layer are all children of those
    `cap` candidates of the layer above that score highest.
    Order. Sort all candidates by score, equal scores by layer, then by the place of the parent, then by rank.
    A parent comes before its child, since a rate is at most 1 and its layer is lower; a sibling of lower rank
    comes before one of higher rank, since its rate is no less. So the first n candidates contain with a node
    its parent and its earlier siblings: they are a tree, and no layer has more nodes with children than its
    cap.
    Bound. Let T be any tree within the caps. Layer by layer, its i-th highest score is at most the i-th
    highest of the candidates: that holds for the root, then for the nodes with children, of which there are
    at most `cap`, then for their children. So T is worth at most its number of highest-scoring candidates.

Without caps that is the best tree of every size. With a rate that rises with the rank, child k needs its
earlier siblings although they score less. Then candidates are sorted by keys, which come from falling rates
such as `means` and `minima`: that gives trees within the caps, but not always the best ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sequoia_cli.compiler.tables import Floats, Ints
from sequoia_cli.core.tree import TokenTree


@dataclass(frozen=True)
class Level:
    """Candidates of one layer, highest key first; `parents` are places in the layer above.

    `widths` is the number of nodes with children in the layer above from this candidate on; 0 where it is
    not a first child.
    """

    keys: Floats
    scores: Floats
    parents: NDArray[np.intp]
    ranks: NDArray[np.intp]
    widths: Ints


@dataclass(frozen=True)
class Order:
    """Candidates of all layers within a depth limit, highest key first; `widths` as in `Level`."""

    keys: Floats
    scores: Floats
    layers: Ints
    widths: Ints


@dataclass(frozen=True)
class Growth:
    """The candidates by layer, and their order within each depth limit."""

    levels: tuple[Level, ...]
    orders: tuple[Order, ...]

    def tree(self, size: int, depth: int) -> TokenTree:
        """The first `size` candidates within `depth` layers."""
        return build_tree(self.levels, self.orders[min(depth, len(self.orders)) - 1], size)


def is_sorted(rates: Floats) -> bool:
    """Whether no row (distance, rank) rises with the rank; NaN marks ranks that a row lacks."""
    return not bool((np.diff(rates, axis=1) > 0).any())


def means(rates: Floats) -> Floats:
    """The rates with each run that rises replaced by its mean (pool adjacent violators); NaN stays."""
    out = rates.copy()
    for row in out:
        pools: list[tuple[float, int]] = []
        for rate in row[~np.isnan(row)]:
            pools.append((float(rate), 1))
            while len(pools) > 1 and pools[-1][0] > pools[-2][0]:
                (mean, count), (before, others) = pools.pop(), pools.pop()
                pools.append(((mean * count + before * others) / (count + others), count + others))
        row[~np.isnan(row)] = [mean for mean, count in pools for _ in range(count)]
    return out


def minima(rates: Floats) -> Floats:
    """Each rate replaced by the least up to its rank; NaN stays."""
    return np.minimum.accumulate(rates, axis=1)


def root_growth() -> Growth:
    """The root alone."""
    one, none, zero = np.ones(1), np.zeros(1, np.intp), np.zeros(1, np.int16)
    return Growth((Level(one, one, none, none, zero),), (Order(one, one, zero, zero),))


def grow(
    rates: Floats, keys: Floats, size: int, depth: int, caps: Sequence[int] = (), start: Growth | None = None
) -> Growth:
    """The candidates of up to `depth` layers, the first `size` in every order.

    `caps` are by layer, the root's first; layers beyond them have none. `rates` (distance, rank) are the
    rates; `keys` fall with the rank and equal the rates where those do. The layers of `start`, which had the
    same caps, are kept. Ends early where a further layer adds no node: children come after their parents, so
    no deeper layer would add one either.
    """
    grown = start or root_growth()
    levels, orders = list(grown.levels), list(grown.orders)
    for layer in range(len(levels), depth):
        row = min(layer, len(rates)) - 1
        cap = min(caps[layer - 1], size) if layer - 1 < len(caps) else size
        # Where an order is full, only a candidate that comes before its last node can be in a tree.
        floor = orders[-1].keys[-1] if len(orders[-1].keys) == size else -1.0
        level = _next_level(levels[-1], rates[row], keys[row], cap, size, floor)
        if not len(level.keys):
            break
        levels.append(level)
        orders.append(_merged(orders[-1], level, layer, size))
    return Growth(tuple(levels), tuple(orders))


def _next_level(above: Level, rates: Floats, keys: Floats, cap: int, size: int, floor: float) -> Level:
    count = int(np.count_nonzero(~np.isnan(rates)))
    parents = np.argsort(-above.scores, kind="stable")[:cap]
    # The child of rank k under the i-th best parent has (i + 1)(k + 1) - 1 candidates before it.
    deepest = np.minimum(size // np.arange(1, len(parents) + 1), count)
    place = np.repeat(np.arange(len(parents)), deepest)
    ranks = np.arange(len(place)) - np.repeat(np.cumsum(deepest) - deepest, deepest)
    chosen = parents[place]
    key = np.minimum(above.keys[chosen], above.scores[chosen] * keys[ranks])
    kept = np.flatnonzero(key > floor)
    kept = kept[np.argsort(-key[kept], kind="stable")][:size]
    chosen, ranks = chosen[kept], ranks[kept]
    firsts = ranks == 0
    widths = np.where(firsts, np.cumsum(firsts), 0).astype(np.int16)
    return Level(key[kept], above.scores[chosen] * rates[ranks], chosen, ranks, widths)


def _merged(order: Order, level: Level, layer: int, size: int) -> Order:
    """The order with one more layer in it; of equal keys the upper layers stay first."""
    keys = np.concatenate([order.keys, level.keys])
    best = np.argsort(-keys, kind="stable")[:size]
    scores = np.concatenate([order.scores, level.scores])
    layers = np.concatenate([order.layers, np.full(len(level.keys), layer, np.int16)])
    widths = np.concatenate([order.widths, level.widths])
    return Order(keys[best], scores[best], layers[best], widths[best])


def build_tree(levels: Sequence[Level], order: Order, size: int) -> TokenTree:
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


def expanded_widths(orders: Sequence[Order], size: int) -> Iterator[Ints]:
    """As `build.expanded_widths`: a level's nodes with children are the first children of the next level."""
    for limit, order in enumerate(orders, start=1):
        widths = np.zeros((size + 1, limit - 1), np.int16)
        for level in range(limit - 1):
            grown = np.cumsum((order.widths > 0) & (order.layers == level + 1))
            widths[1 : len(grown) + 1, level] = grown
        yield widths
