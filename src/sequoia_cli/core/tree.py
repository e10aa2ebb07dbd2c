"""A speculation tree as its parent list; everything else is derived from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from sequoia_cli.core.parsing import shown
from sequoia_cli.errors import BadInput


@dataclass(frozen=True)
class TokenTree:
    """A rooted ordered tree of token slots.

    `parents[i]` is the parent of node `i`. Node 0 is the root (parent -1), the last committed token.
    Nodes are numbered breadth-first and siblings in the order of their draft rank, so `parents` never
    decreases. Size and depth both count the root, as in Sequoia (arXiv 2402.12374).

    Raises `BadInput` naming the first node that breaks these rules.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents:
            raise BadInput("the tree has no nodes; the root alone is [-1]")
        for node, parent in enumerate(self.parents):
            if not isinstance(parent, int) or isinstance(parent, bool):
                raise BadInput(f"node {node} has parent {shown(parent)}; a parent is a whole number")
            if node == 0:
                if parent != -1:
                    raise BadInput(f"node 0 has parent {parent}; the root comes first, with parent -1")
            elif parent == -1:
                raise BadInput(f"node {node} is a second root; only node 0 has parent -1")
            elif not 0 <= parent < node:
                raise BadInput(f"node {node} has parent {parent}; a parent comes before its children")
            elif parent < self.parents[node - 1]:
                raise BadInput(
                    f"node {node} has parent {parent} after node {node - 1} with parent "
                    f"{self.parents[node - 1]}; nodes are numbered breadth-first"
                )

    @property
    def size(self) -> int:
        """Number of nodes, root included."""
        return len(self.parents)

    @property
    def depth(self) -> int:
        """Number of layers, root included."""
        return len(self.levels)

    @cached_property
    def node_depths(self) -> tuple[int, ...]:
        """Distance of each node from the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Rank of each node among its siblings, from 0; 0 for the root."""
        ranks = [0]
        for node in range(1, self.size):
            ranks.append(ranks[-1] + 1 if self.parents[node] == self.parents[node - 1] else 0)
        return tuple(ranks)

    @cached_property
    def children(self) -> tuple[range, ...]:
        """Children of each node, in rank order. Breadth-first numbering makes them one run."""
        counts = [0] * self.size
        for parent in self.parents[1:]:
            counts[parent] += 1
        runs, first = [], 1
        for count in counts:
            runs.append(range(first, first + count))
            first += count
        return tuple(runs)

    @cached_property
    def levels(self) -> tuple[range, ...]:
        """Nodes of each layer, the root's first. Breadth-first numbering makes each one run."""
        runs, first = [], 0
        for node in range(1, self.size + 1):
            if node == self.size or self.node_depths[node] != self.node_depths[first]:
                runs.append(range(first, node))
                first = node
        return tuple(runs)

    @cached_property
    def expanded(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each layer that have children: one draft forward each. The last layer has none."""
        return tuple(
            tuple(node for node in level if self.children[node]) for level in self.levels[: self.depth - 1]
        )

    @property
    def max_branch(self) -> int:
        """Largest number of children of a node."""
        return max(len(run) for run in self.children)

    @property
    def is_chain(self) -> bool:
        """Whether each node has at most one child and there is more than the root."""
        return self.size > 1 and self.max_branch == 1

    @property
    def is_chains(self) -> bool:
        """Whether only the root has more than one child: one chain or several."""
        return self.size > 1 and all(len(run) <= 1 for run in self.children[1:])

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        nodes = [node]
        while nodes[-1] != 0:
            nodes.append(self.parents[nodes[-1]])
        return nodes[::-1]

    def limited(self, depth: int) -> TokenTree:
        """The first `depth` layers."""
        if depth >= self.depth:
            return self
        return TokenTree(self.parents[: self.levels[depth].start])

    @classmethod
    def from_child_counts(cls, layers: Sequence[Sequence[int]]) -> TokenTree:
        """Build a tree from the number of children of each node, layer by layer, the root's layer first."""
        parents, node = [-1], 0
        for layer in layers:
            for count in layer:
                parents.extend([node] * count)
                node += 1
        return cls(tuple(parents))


#: The tree of plain decoding: the root, and nothing speculated.
ROOT_ONLY = TokenTree((-1,))


def chain(tokens: int) -> TokenTree:
    """A chain of `tokens` nodes, root included: sequence speculation."""
    return TokenTree(tuple(range(-1, tokens - 1)))
