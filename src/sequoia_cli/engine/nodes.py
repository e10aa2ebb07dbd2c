"""Tree nodes in the order in which a model runs them: where each stands, and which others it attends to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from sequoia_cli.core.tree import TokenTree


class NodeBlock:
    """The nodes of one forward, which come after `first` others of the same step.

    `allowed` (rows, first + rows), booleans, says which of all these nodes each row attends to: its ancestors
    and itself. Depths count from 0, that of a node which follows the committed text; `row_depths` and
    `column_depths` are those of the rows and columns of `allowed`. `depths` and `parents`, (rows,), are on
    the device.
    """

    def __init__(self, parents: Sequence[int], first: int, device: torch.device) -> None:
        depths: list[int] = []
        for parent in parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        self.allowed = torch.from_numpy(_ancestors(parents)[first:])
        self.column_depths = torch.tensor(depths, dtype=torch.long)
        self.row_depths = self.column_depths[first:]
        self.depths = self.row_depths.to(device)
        self.parents = torch.tensor(parents[first:], dtype=torch.long, device=device)
        #: Whether each node of the step follows the one before it.
        self.is_chain = list(parents) == list(range(-1, len(parents) - 1))


@lru_cache(maxsize=4096)
def node_block(parents: tuple[int, ...], first: int = 0, device: torch.device | None = None) -> NodeBlock:
    """The nodes from `first` on of a tree that has these `parents`, -1 for what follows the committed text.

    The same object for the same arguments, as long as it is in use.
    """
    return NodeBlock(parents, first, device or torch.device("cpu"))


def tree_block(tree: TokenTree, device: torch.device | None = None) -> NodeBlock:
    """All nodes of a tree."""
    return node_block(tree.parents, 0, device)


def chain_block(tokens: int, device: torch.device | None = None) -> NodeBlock:
    """A chain of `tokens` nodes."""
    return node_block(tuple(range(-1, tokens - 1)), 0, device)


def _ancestors(parents: Sequence[int]) -> np.ndarray:
    """(nodes, nodes) booleans: entry (i, j) says whether node j is node i or one of its ancestors."""
    count = len(parents)
    if list(parents) == list(range(-1, count - 1)):
        return np.tri(count, dtype=bool)
    found = np.eye(count, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            found[node] |= found[parent]
    return found
