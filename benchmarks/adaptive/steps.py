"""Steps of a rule along texts whose next tokens are known, and what the cost curve charges for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from sequoia_cli.core.costs import StepCosts
from sequoia_cli.engine.grow import Shape


class Text(Protocol):
    """A text that a greedy target has written, and what the draft proposes along it."""

    @property
    def left(self) -> int:
        """Tokens still to come."""

    def extend(self, nodes: Sequence[tuple[int, int]]) -> tuple[list[list[float]], list[int | None]]:
        """Run nodes, each the child of a rank of a node run before, (-1, 0) the root.

        Returns the largest probabilities after each, and the rank of the text's own next token, None where
        it is not among these or the node is not on the text.
        """

    def commit(self, ranks: Sequence[int]) -> None:
        """Go on after the accepted path of these ranks, and one token more."""


@dataclass
class Totals:
    """Sums over steps."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    nodes: int = 0

    def add(self, other: Totals) -> None:
        """Add the sums of other steps."""
        self.tokens += other.tokens
        self.steps += other.steps
        self.seconds += other.seconds
        self.nodes += other.nodes


def run(text: Text, shape: Shape, layers: int, costs: StepCosts) -> Totals:
    """Decode a text by a rule."""
    totals = Totals()
    while text.left > 0:
        shape.start(min(layers, text.left))
        parents, ranks, hits, numbers = [-1], [0], [True], {-1: -1}
        widths: list[int] = []
        nodes = shape.run(range(1))
        while nodes:
            widths.append(len(nodes))
            rows, winners = text.extend([(numbers[parents[node]], ranks[node]) for node in nodes])
            for node in nodes:
                numbers[node] = len(numbers) - 1
            given = torch.tensor(rows)
            counts = shape.children(nodes, lambda most, given=given: given[:, :most])
            first = len(parents)
            for node, winner, count in zip(nodes, winners, counts, strict=True):
                parents += [node] * count
                ranks += range(count)
                hits += [hits[node] and winner == rank for rank in range(count)]
            nodes = shape.run(range(first, len(parents))) if len(parents) > first else ()
        kept = shape.keep(len(parents))
        path = [ranks[node] for node in kept if node and hits[node]]
        shape.learn(path)
        text.commit(path)
        totals.add(Totals(len(path) + 1, 1, costs.seconds(len(kept), widths), len(kept)))
    return totals
