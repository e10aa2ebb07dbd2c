"""Published rules for trees of each step, as shapes for a greedy target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor


class ByConfidence:
    """Nodes scored by the product of the draft's own probabilities along their paths."""

    def __init__(self, budget: int, ranks: int, depth: int) -> None:
        self.budget, self.ranks, self.depth = budget, ranks, depth

    def start(self, layers: int) -> int:
        """See `Shape`."""
        self.layers = min(layers, self.depth + 1)
        self.scores, self.level = [1.0], 0
        return 1 + self.ranks * self.budget * self.layers

    def run(self, nodes: range) -> Sequence[int]:
        """Those that the rule picks, while there are layers."""
        self.level += 1
        return sorted(self.pick(nodes)) if self.level < self.layers else ()

    def pick(self, nodes: range) -> Sequence[int]:
        """Nodes of the level to run."""
        raise NotImplementedError

    def children(self, nodes: Sequence[int], largest: Callable[[int], Tensor]) -> Sequence[int]:
        """As many for each node as there are ranks."""
        counts = []
        for node, row in zip(nodes, largest(self.ranks).tolist(), strict=True):
            self.scores += [self.scores[node] * each for each in row]
            counts.append(len(row))
        return counts

    def best(self, count: int, nodes: Sequence[int]) -> list[int]:
        """The best of the nodes, the earlier of equal ones."""
        return sorted(nodes, key=lambda node: -self.scores[node])[:count]

    def keep(self, size: int) -> Sequence[int]:
        """The best of all within the budget."""
        return sorted(self.best(self.budget, range(size)))

    def learn(self, ranks: Sequence[int]) -> None:
        """Nothing."""


class Eagle2(ByConfidence):
    """The best `ranks` nodes of each level run (EAGLE-2, arXiv 2406.16858)."""

    def pick(self, nodes: range) -> Sequence[int]:
        """See `ByConfidence`."""
        return self.best(self.ranks, nodes)


class BestFirst(ByConfidence):
    """Each node is run that is among the best so far (arXiv 2406.02532, 2410.11744)."""

    def pick(self, nodes: range) -> Sequence[int]:
        """See `ByConfidence`."""
        among = set(self.best(self.budget, range(len(self.scores))))
        return [node for node in nodes if node in among]


class OptTree(BestFirst):
    """The same, until a level adds less than `least` to the expected tokens (OPT-Tree, arXiv 2406.17276)."""

    def __init__(self, budget: int, ranks: int, depth: int, least: float) -> None:
        super().__init__(budget, ranks, depth)
        self.least, self.before = least, 1.0

    def pick(self, nodes: range) -> Sequence[int]:
        """See `ByConfidence`."""
        if self.level == 1:
            self.before = 1.0
            return nodes
        now = float(np.sum([self.scores[node] for node in self.best(self.budget, range(len(self.scores)))]))
        gained, self.before = now - self.before, now
        return super().pick(nodes) if gained >= self.least else ()
