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


def best_by_size_within_caps(rows, caps, size):
    """Tokens, and nodes with children by layer, of the best tree of each size within caps of its layers.

    For rates that fall with the rank: the candidates of a layer are the children of the best `cap` of the
    layer above, and the best tree of n nodes are the n best candidates.
    """
    above = [(1.0, 0, ())]  # score, layer, ranks on the path
    candidates = list(above)
    for layer, cap in enumerate(caps, start=1):
        row = rows[min(layer, len(rows)) - 1]
        above = [
            (score * rate, layer, (*path, rank))
            for score, _, path in sorted(above, key=lambda node: (-node[0], node[2]))[:cap]
            for rank, rate in enumerate(row)
        ]
        candidates += above
    tokens, parents = 0.0, [set() for _ in caps]
    for score, layer, path in sorted(candidates, key=lambda node: (-node[0], node[1], node[2]))[:size]:
        tokens += score
        if layer:
            parents[layer - 1].add(path[:-1])
        yield tokens, [len(level) for level in parents]
