"""Expected tokens per step of any tree, in closed form and independent of the search for the best one."""

from __future__ import annotations

from collections.abc import Sequence

from sequoia_cli.core.tree import TokenTree

Rows = Sequence[Sequence[float]]


def node_scores(tree: TokenTree, rows: Rows) -> list[float]:
    """The chance of each node to be accepted: the product of the rates on its path (Definition 3.3).

    `rows` are marginal rates by distance of the parent from the root and by rank; the last row holds for all
    deeper levels. A rank beyond its row was never seen accepted and counts 0.
    """
    scores = [1.0]
    for node in range(1, tree.size):
        row = rows[min(tree.node_depths[node], len(rows)) - 1]
        rank = tree.ranks[node]
        scores.append(scores[tree.parents[node]] * (row[rank] if rank < len(row) else 0.0))
    return scores


def expected_tokens(tree: TokenTree, rows: Rows) -> float:
    """Tokens gained per target forward, the bonus token included: the sum of scores (Proposition 3.4)."""
    return sum(node_scores(tree, rows))
