"""The search for the tree of least seconds per token where wider levels cost more: over caps of the layers.

For given caps `heap` gives the best tree of every size, so only the caps are left to choose: how many nodes
of each layer may have children. The search starts from equal caps for all layers, then changes one or two at
a time as long as that gains.

What is guaranteed: the choice is exact where the cost of a level does not depend on its width. Elsewhere it
is a local optimum over caps. The tests measure how good that is: for rates that never rise with the rank,
within 0.1% of the fastest of all trees of up to nine nodes, and of every choice of caps for trees of four
layers and sixty nodes. Where rates rise, a limit of nodes can cost more, as the last nodes may have to be
taken by twos: of 1500 random models one choice was slower by 0.9%, the others by less than 0.0001%.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, product

import numpy as np

from sequoia_cli.compiler import heap
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.cost import CostTable, widest_level
from sequoia_cli.compiler.families import TIE, Family, best_family, joined
from sequoia_cli.compiler.heap import Growth
from sequoia_cli.compiler.tables import Floats
from sequoia_cli.core.tree import TokenTree

#: What the search starts from: at most so many equal caps of all layers, caps by so many scores. How many of
#: these starts are improved.
EQUAL_CAPS, SCORES, STARTS = 16, 24, 3

#: Factors that the caps of a layer and all below it are changed by together.
FACTORS = (0.5, 0.75, 0.9, 1.1, 1.33, 2.0)

#: A change of caps that gains less than this share is none.
GAIN = 1e-5

#: Changes of caps that are tried from one start.
MOST_TRIALS = 300

#: Larger trees are improved from the best start alone and by one change at a time: there a node counts less.
SMALL = 64

#: Layers whose caps are changed together lie at most so far apart.
REACH = 4

Caps = tuple[int, ...]


@dataclass(frozen=True)
class _Found:
    """The fastest tree within some caps: the first `size` candidates of up to `depth` layers."""

    per_token: float
    size: int
    depth: int
    caps: Caps
    grown: Growth

    @property
    def widths(self) -> list[int]:
        """Nodes with children in each layer but the last."""
        order = self.grown.orders[self.depth - 1]
        layers, widths = order.layers[: self.size], order.widths[: self.size]
        return [int(widths[layers == layer].max(initial=1)) for layer in range(1, self.depth)]


class CappedSearch:
    """The fastest trees found of each size from `first` nodes on, within the limits of `best`.

    `keys` (distance, rank) are those of `heap.grow`. `known` is the seconds per token of a tree at hand:
    where no tree can be faster, nothing is tried.
    """

    def __init__(
        self, best: BestTrees, keys: Floats, table: CostTable, first: int = 1, known: float = np.inf
    ) -> None:
        self._rates, self._keys, self._table, self._first = best.rates, keys, table, first
        self._seconds = np.full(best.size + 1, np.inf)
        self._tokens = np.ones(best.size + 1)
        self._depths = np.zeros(best.size + 1, np.int16)
        self._trials = np.zeros(best.size + 1, np.intp)
        self._caps: list[Caps] = []
        self._size, self._depth = self._limits(best, known)
        if self._depth > 1:
            self._search()

    def _limits(self, best: BestTrees, known: float) -> tuple[int, int]:
        """The largest size and depth that a tree of less than `known` seconds per token can have.

        No tree is worth more than the best one of its size and depth, nor costs less than with levels of one.
        """
        size = depth = 0
        for layers in range(1, best.depth + 1):
            tokens = best.values[min(layers, len(best.values) - 1), 1:]
            least = self._table.step[1 : best.size + 1] + (layers - 1) * self._table.draft[1]
            possible = least < known * (1 - TIE) * tokens
            possible[: self._first - 1] = False
            if possible.any():
                size, depth = max(size, int(np.flatnonzero(possible)[-1]) + 1), layers
        return size, depth

    def family(self) -> Family:
        """The fastest tree found of each size."""
        return Family(self._tokens, self._seconds, self._depths, self._tree)

    def _tree(self, size: int) -> TokenTree:
        depth, caps = int(self._depths[size]), self._caps[self._trials[size]]
        return heap.grow(self._rates, self._keys, self._size, depth, caps).tree(size, depth)

    def _search(self) -> None:
        widest = min(self._table.widest, widest_level(self._size))
        free = self._try(self._equal(widest))
        caps = {*self._equal_caps(widest), *self._caps_by_score(free.grown, widest)}
        starts = [free, *(self._try(each) for each in sorted(caps))]
        starts.sort(key=lambda found: found.per_token)
        for start in starts[: STARTS if self._size <= SMALL else 1]:
            self._improve(start)

    def _equal(self, cap: int) -> Caps:
        return (1, *[cap] * (self._depth - 2))

    def _equal_caps(self, widest: int) -> list[Caps]:
        """Narrower caps than `widest`: powers of two, and widths after which the cost rises otherwise."""
        caps = {1 << power for power in range(widest.bit_length())} | set(self._table.bends.tolist())
        narrower = sorted(cap for cap in caps if cap < widest)
        return [self._equal(cap) for cap in narrower[:: -(-len(narrower) // EQUAL_CAPS) or 1]]

    def _caps_by_score(self, grown: Growth, widest: int) -> Iterator[Caps]:
        """As many nodes of each layer as score at least so much: what a cost per node comes to."""
        lowest = min(float(level.scores.min()) for level in grown.levels)
        for least in np.geomspace(0.5, max(lowest, 1e-9), SCORES):
            counts = [int((level.scores >= least).sum()) for level in grown.levels[: self._depth - 1]]
            yield tuple(min(max(count, 1), widest) for count in counts)

    def _try(self, caps: Caps, base: _Found | None = None) -> _Found:
        """The fastest tree within the caps; notes all sizes. Reuses what `base` has for equal first caps."""
        start, same = None, 0
        if base is not None:
            differ = [one != other for one, other in zip(caps, base.caps, strict=False)]
            same = 1 + (differ.index(True) if True in differ else min(len(caps), len(base.caps)))
            start = Growth(base.grown.levels[:same], base.grown.orders[:same])
        grown = heap.grow(self._rates, self._keys, self._size, self._depth, caps, start)
        self._caps.append(caps)
        best = _Found(np.inf, 0, 0, caps, grown)
        for depth in range(min(same, len(grown.orders) - 1) + 1, len(grown.orders) + 1):
            per_token = self._note(grown.orders[depth - 1], depth)
            place = int(np.argmin(per_token))
            if per_token[place] < best.per_token * (1 - TIE):
                best = _Found(float(per_token[place]), place + 1, depth, caps, grown)
        return best

    def _note(self, order: heap.Order, depth: int) -> Floats:
        """Seconds per token of the first nodes of the order, for every number of them from 1 on."""
        nodes = len(order.scores) + 1
        tokens = np.cumsum(order.scores)
        seconds = self._table.step[1:nodes] + np.cumsum(self._table.extra[order.widths])
        per_token: Floats = seconds / tokens
        per_token[: self._first - 1] = np.inf
        faster = 1 + np.flatnonzero(per_token < self._seconds[1:nodes] / self._tokens[1:nodes] * (1 - TIE))
        self._tokens[faster], self._seconds[faster] = tokens[faster - 1], seconds[faster - 1]
        self._depths[faster], self._trials[faster] = depth, len(self._caps) - 1
        return per_token

    def _improve(self, best: _Found) -> None:
        """Change caps as long as that gains."""
        left, gained = MOST_TRIALS, True
        while gained:
            gained = False
            for caps in islice(self._changes(best.widths), left):
                left -= 1
                found = self._try(caps, best)
                if found.per_token < best.per_token * (1 - GAIN):
                    best, gained = found, True
                    break

    def _changes(self, widths: list[int]) -> Iterator[Caps]:
        """Caps that differ from the widths of a tree: deeper ones, one changed, two changed."""
        rest = max(0, self._depth - 1 - len(widths))
        for width in sorted({1, *widths[-1:]}):
            yield (*widths, *[width] * rest)
        chain = [1] * rest
        for factor, layer in product(FACTORS, range(1, len(widths))):
            scaled = [self._within(round(width * factor)) for width in widths[layer:]]
            yield (*widths[:layer], *scaled, *chain)
        for layer in range(1, len(widths)):
            for width in self._near(widths[layer]):
                yield (*widths[:layer], width, *widths[layer + 1 :], *chain)
        pairs = combinations(range(1, len(widths)), 2) if self._size <= SMALL else ()
        for one, two in pairs:
            for first, second in product((-1, 1), repeat=2):
                changed = [*widths, *chain]
                changed[one] += first
                changed[two] += second
                if two - one <= REACH and min(changed) >= 1 and max(changed) <= self._table.widest:
                    yield tuple(changed)

    def _near(self, width: int) -> list[int]:
        """Other widths worth trying: the next ones, half, twice, and the next bends of the cost."""
        bends = self._table.bends
        step = 1 + width // 16
        near = {width - 2 * step, width - step, width + step, width + 2 * step, width // 2, 2 * width}
        near |= {*bends[bends < width][-1:].tolist(), *bends[bends > width][:1].tolist()}
        return sorted({self._within(other) for other in near} - {width})

    def _within(self, width: int) -> int:
        return min(max(width, 1), self._table.widest)


def fastest_trees(best: BestTrees, table: CostTable, first: int = 1) -> Family:
    """The fastest trees found of each size: the best-valued ones, and those of narrower levels.

    The search is for trees of `first` nodes and more. Rates that rise with the rank are searched in two
    orders of the candidates, neither of which is right for all.
    """
    families = [best_family(best, table)]
    known = families[0].per_token(first)
    for keys in (heap.means(best.rates), heap.minima(best.rates))[: 1 if best.by_heap else 2]:
        families.append(CappedSearch(best, keys, table, first, known).family())
        known = min(known, families[-1].per_token(first))
    return joined(families)
