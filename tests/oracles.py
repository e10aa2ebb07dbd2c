"""Slow twins of the compiler: every tree there is, and its value straight from the definition."""

from collections.abc import Iterator
from functools import cache

from sequoia_cli.core.tree import TokenTree


def all_trees(size: int) -> Iterator[TokenTree]:
    """Every ordered tree of `size` nodes, breadth-first: the parent lists that never fall."""

    def extend(parents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(parents) == size:
            yield parents
            return
        for parent in range(max(0, parents[-1]), len(parents)):
            yield from extend((*parents, parent))

    for parents in extend((-1,)):
        yield TokenTree(parents)


@cache
def trees_up_to(size: int) -> tuple[TokenTree, ...]:
    """All trees of 1 to `size` nodes."""
    return tuple(tree for nodes in range(1, size + 1) for tree in all_trees(nodes))


def value_by_paths(tree: TokenTree, rows) -> float:
    """Expected tokens: over all nodes, the product of the rates on the path (Proposition 3.4)."""
    total = 0.0
    for node in range(tree.size):
        score = 1.0
        for step in tree.path(node)[1:]:
            siblings = [other for other in range(tree.size) if tree.parents[other] == tree.parents[step]]
            distance = len(tree.path(step)) - 2
            score *= rows[min(distance, len(rows) - 1)][siblings.index(step)]
        total += score
    return total
