"""Texts without models: a draft that a published vector describes on average, and surer in some places."""

from __future__ import annotations

import random
from collections.abc import Sequence


class SimulatedText:
    """The first rate of `vector` at a node is a draw from a beta distribution around the published one, the
    others share the rest as published. The draft gives these rates to the power `sure`, renormalised: 1 is a
    draft that is exactly as sure as it is right."""

    def __init__(
        self, vector: Sequence[float], tokens: int, seed: int, spread: float = 1.0, sure: float = 1.0
    ) -> None:
        self.vector, self.left, self.sure = vector, tokens, sure
        self.random = random.Random(seed)
        first = vector[0]
        self.beta = spread * first, spread * (1 - first)
        self._nodes: list[tuple[bool, int | None]] = []

    def extend(self, nodes: Sequence[tuple[int, int]]) -> tuple[list[list[float]], list[int | None]]:
        """See `Text`."""
        rows, winners = [], []
        for parent, rank in nodes:
            right = parent < 0 or (self._nodes[parent][0] and self._nodes[parent][1] == rank)
            first = self.random.betavariate(*self.beta)
            share = (1 - first) / (1 - self.vector[0])
            rates = sorted([first, *(share * rate for rate in self.vector[1:])], reverse=True)
            point, winner = self.random.random(), None
            for place, rate in enumerate(rates):
                point -= rate
                if point < 0:
                    winner = place
                    break
            self._nodes.append((right, winner))
            powers = [rate**self.sure for rate in (*rates, max(0.0, 1 - sum(rates)))]
            rows.append([power / sum(powers) for power in powers[:-1]])
            winners.append(winner if right else None)
        return rows, winners

    def commit(self, ranks: Sequence[int]) -> None:
        """See `Text`."""
        self.left -= len(ranks) + 1
        self._nodes = []
