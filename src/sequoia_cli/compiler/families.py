"""Families of candidates: one tree per size, with the tokens it brings and the seconds it costs per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.cost import CostTable
from sequoia_cli.compiler.shapes import prefix
from sequoia_cli.compiler.tables import Floats, Ints
from sequoia_cli.compiler.value import Rows, node_scores
from sequoia_cli.core.tree import TokenTree

#: Seconds per token that differ by less than this share count as equal; the smaller tree is taken then.
TIE = 1e-9


@dataclass(frozen=True)
class Family:
    """`tokens`, `seconds` per step and `depths` by size, index 0 unused; seconds are infinite for no tree."""

    tokens: Floats
    seconds: Floats
    depths: Ints
    tree: Callable[[int], TokenTree]

    @property
    def size(self) -> int:
        """Nodes of the largest tree."""
        return len(self.tokens) - 1

    def per_token(self, first: int = 1) -> float:
        """The least seconds per token from `first` nodes on."""
        return float((self.seconds / self.tokens)[first:].min(initial=np.inf))

    def fastest(self, first: int = 1, without: Sequence[int] = ()) -> int | None:
        """The size of least seconds per token from `first` on, the smallest of equals; None without any."""
        per_token = self.seconds / self.tokens
        per_token[:first] = np.inf
        per_token[list(without)] = np.inf
        least = per_token.min(initial=np.inf)
        return int(np.argmax(per_token <= least * (1 + TIE))) if np.isfinite(least) else None


def joined(families: Sequence[Family]) -> Family:
    """The fastest tree of each size among families that go up to the same size; the first among equals."""
    per_token = np.stack([family.seconds / family.tokens for family in families])
    pick = np.argmax(per_token <= per_token.min(axis=0) * (1 + TIE), axis=0)
    tokens, seconds, depths = (
        np.stack([getattr(family, name) for family in families])[pick, np.arange(len(pick))]
        for name in ("tokens", "seconds", "depths")
    )
    return Family(tokens, seconds, depths, lambda size: families[pick[size]].tree(size))


def best_family(best: BestTrees, table: CostTable) -> Family:
    """The best-valued tree of each size at the depth limit where it is fastest, the lower limit among equals.

    Trees with a level wider than the profile covers are left out.
    """
    tokens = np.ones(best.size + 1)
    seconds = np.full(best.size + 1, np.inf)
    depths = np.zeros(best.size + 1, np.int16)
    for depth, (values, widths) in enumerate(zip(best.values[1:], best.expanded(), strict=True), start=1):
        exists = np.isfinite(values) & np.isfinite(table.step)
        cost = np.where(exists, table.seconds(widths), np.inf)
        value = np.where(exists, values, 1.0)
        faster = cost / value < seconds / tokens * (1 - TIE)
        tokens[faster], seconds[faster], depths[faster] = value[faster], cost[faster], depth
    return Family(tokens, seconds, depths, lambda size: best.tree(size, int(depths[size])))


def prefix_family(tree: TokenTree, rows: Rows, table: CostTable) -> Family:
    """The first n nodes of `tree`, for every n up to its size."""
    scores = np.array(node_scores(tree, rows))
    layers = np.array(tree.node_depths)
    firsts = np.array(tree.ranks) == 0
    # A node is expanded from the moment its first child is there.
    grown = (layers[:, None] == np.arange(1, tree.depth)) & firsts[:, None]
    widths = np.zeros((tree.size + 1, tree.depth - 1), np.int16)
    widths[1:] = np.cumsum(grown, axis=0)
    seconds = table.seconds(widths)
    tokens = np.concatenate([[1.0], np.cumsum(scores)])
    depths = np.concatenate([[0], layers + 1]).astype(np.int16)
    return Family(tokens, seconds, depths, lambda size: prefix(tree, size))
