"""Trees of several drafts as one: nodes after the same tokens are one node, which the target runs once.

Pure functions of trees and tokens; no model, no cache. (SpecInfer, arXiv 2305.09781)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.verification.walk import Drawn


class Rows(Protocol):
    """By node, the (vocabulary,) probabilities that its children were drawn from; None if picked."""

    def __getitem__(self, node: int, /) -> Tensor | None: ...


@dataclass(frozen=True)
class Merged:
    """The tree that the target runs, and what its nodes are in the drafts' own trees.

    `own` has every draft's tree. `tokens` are those of `tree`, `nodes[draft][i]` is the node of `tree` that
    node i of a draft's tree became, and `sources[node]` has (draft, its own node) for each draft whose tree
    has the node, in the order of the drafts.
    """

    own: Sequence[TokenTree]
    tree: TokenTree
    tokens: Sequence[int]
    nodes: Sequence[Sequence[int]]
    sources: Sequence[Sequence[tuple[int, int]]]

    def drawn(self, node: int, rows: Sequence[Rows]) -> list[Drawn]:
        """What each draft drew after a node; `rows[draft]` has what it drew from, by its own nodes."""
        return [
            Drawn(rows[draft][own], [self.nodes[draft][child] for child in self.own[draft].children[own]])
            for draft, own in self.sources[node]
            if self.own[draft].children[own]
        ]

    def own_path(self, draft: int, path: Sequence[int]) -> list[int]:
        """A path (nodes, root first) in a draft's own numbers, up to where it leaves that draft's tree."""
        return [own for node in path for source, own in self.sources[node] if source == draft]


def unmerged(tree: TokenTree, tokens: Sequence[int]) -> Merged:
    """The tree of a single draft, as it is."""
    nodes = range(tree.size)
    return Merged((tree,), tree, tokens, (nodes,), [((0, node),) for node in nodes])


def merge(own: Sequence[TokenTree], tokens: Sequence[Sequence[int]]) -> Merged:
    """Merge by prefix the trees of several drafts, which have one token at the root.

    `tokens[draft][i]` is the token of node i of tree `own[draft]`. Where a draft has drawn a token more than
    once for a node, its first copy is one with the others' first copies, its second with their second: a
    draft has a merged node once or not at all. Children stand in the order in which they were proposed: the
    first draft's in the order it drew them, then what the next one adds. Trees of n nodes each give n nodes
    where all agree and drafts * (n - 1) + 1 where no two do.
    """
    parents, merged = [-1], [tokens[0][0]]
    sources: list[list[tuple[int, int]]] = [[(draft, 0) for draft in range(len(tokens))]]
    nodes = [[0] * tree.size for tree in own]
    for node, here in enumerate(sources):  # which grows by this node's children: breadth-first
        found: dict[tuple[int, int], int] = {}
        for draft, parent in here:
            copies: Counter[int] = Counter()
            for child in own[draft].children[parent]:
                token = tokens[draft][child]
                copies[token] += 1
                place = found.setdefault((token, copies[token]), len(parents))
                if place == len(parents):
                    parents.append(node)
                    merged.append(token)
                    sources.append([])
                nodes[draft][child] = place
                sources[place].append((draft, child))
    return Merged(tuple(own), TokenTree(tuple(parents)), merged, nodes, sources)
