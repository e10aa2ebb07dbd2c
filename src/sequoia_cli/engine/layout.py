"""A TokenTree as tensors: which rows each node may attend to, and where it stands."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from sequoia_cli.core.tree import TokenTree

#: What a model takes for its attention mask: one, or one by name for each kind of attention layer.
MaskArgument = Tensor | dict[str, Tensor]


def ancestor_matrix(tree: TokenTree) -> Tensor:
    """(n, n) booleans: entry (i, j) says whether node j is node i or one of its ancestors."""
    seen = torch.eye(tree.size, dtype=torch.bool)
    for level in tree.levels[1:]:
        nodes = slice(level.start, level.stop)
        seen[nodes] |= seen[list(tree.parents[nodes])]
    return seen


class TreeMask:
    """An additive attention mask for a block of nodes behind a prefix of any length.

    Built once: the node columns stand at the right end of a buffer of `capacity` columns and the prefix
    extends to the left, so the mask for every prefix is a view of it. Positions relative to the root do not
    depend on the prefix either, which is why a sliding window can be part of the buffer.

    `block` is (rows, columns) of booleans, `column_depths` the depth of each column's node below the root
    and `row_depths` of each row's. `window` is a number of positions, or None for full attention.
    """

    def __init__(
        self,
        block: Tensor,
        row_depths: Tensor,
        column_depths: Tensor,
        *,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        window: int | None = None,
    ) -> None:
        rows, columns = block.shape
        allowed = torch.ones(rows, capacity, dtype=torch.bool)
        allowed[:, capacity - columns :] = block
        if window is not None:
            prefix = torch.arange(columns - capacity, 0)
            distance = row_depths[:, None] - torch.cat((prefix, column_depths))[None, :]
            allowed &= distance < window
        # The largest negative number, not minus infinity: what a model may add to it must not make a NaN.
        self._buffer = torch.zeros(rows, capacity, dtype=dtype).masked_fill_(~allowed, torch.finfo(dtype).min)
        self._buffer = self._buffer.to(device)[None, None]

    def over(self, length: int) -> Tensor:
        """The mask over `length` cache rows, prefix and nodes together: (1, 1, rows, length)."""
        mask = self._view(length)
        if mask.device.type == "cpu":
            return mask
        # The fused kernels of accelerators want rows and their start on multiples of 8 elements.
        aligned = mask.new_empty((*mask.shape[:-1], -(-length // 8) * 8))[..., :length]
        return aligned.copy_(mask)

    #: A single mask has no kinds to tell apart (see `FixedMasks`).
    kinds: tuple[str, ...] = ()

    def buffers(self, columns: int) -> Tensor:
        """Room for the mask over `columns` cache rows."""
        return self._buffer.new_empty(*self._buffer.shape[:-1], columns)

    def fill(self, buffers: MaskArgument, length: int) -> None:
        """Write `over(length)` into the buffer's first columns, and forbid the others."""
        assert isinstance(buffers, Tensor)
        buffers[..., :length].copy_(self._view(length))
        buffers[..., length:].fill_(torch.finfo(buffers.dtype).min)

    def _view(self, length: int) -> Tensor:
        return self._buffer[..., self._buffer.shape[-1] - length :]


class Layout:
    """What one tree looks like to the target, which sees it whole, and to a draft, which grows it by levels.

    A draft runs only the nodes that have children; its rows are those nodes, breadth-first
    (`draft_slots[node]` is the row of a node behind the root's). What a step needs of it on `device` is
    there.
    """

    def __init__(self, tree: TokenTree, device: torch.device | None = None) -> None:
        self.tree, self.device = tree, device or torch.device("cpu")
        self.node_depths = torch.tensor(tree.node_depths)
        self.expanded = tree.expanded
        self.child_counts = tuple(
            tuple(len(tree.children[node]) for node in level) for level in self.expanded
        )
        nodes = [node for level in self.expanded for node in level]
        self.draft_slots = {node: slot for slot, node in enumerate(nodes)}
        self._draft_nodes = torch.tensor(nodes, dtype=torch.long)

    @cached_property
    def depths(self) -> Tensor:
        """(n,) distance of each node from the root, on the device."""
        return self.node_depths.to(self.device)

    @cached_property
    def expanded_rows(self) -> tuple[Tensor, ...]:
        """The nodes of each level of `expanded`, on the device."""
        return tuple(torch.tensor(nodes, device=self.device) for nodes in self.expanded)

    @cached_property
    def parent_rows(self) -> tuple[Tensor, ...]:
        """For each level of `expanded`, its nodes' parents as rows of the level before, on the device."""
        places = [{node: row for row, node in enumerate(nodes)} for nodes in ((-1,), *self.expanded)]
        return tuple(
            torch.tensor([place[self.tree.parents[node]] for node in nodes], device=self.device)
            for place, nodes in zip(places, self.expanded, strict=False)
        )

    @cached_property
    def ancestors(self) -> Tensor:
        """(n, n) booleans of `ancestor_matrix`."""
        return ancestor_matrix(self.tree)

    def target_block(self) -> tuple[Tensor, Tensor, Tensor]:
        """Block, row depths and column depths of the target's mask: all nodes."""
        return self.ancestors, self.node_depths, self.node_depths

    def draft_block(self, level: int) -> tuple[Tensor, Tensor, Tensor]:
        """The same for the draft's forward that expands `level`: its nodes, over all expanded so far."""
        rows = torch.tensor(self.expanded[level], dtype=torch.long)
        columns = self._draft_nodes[: sum(len(nodes) for nodes in self.expanded[: level + 1])]
        return self.ancestors[rows][:, columns], self.node_depths[rows], self.node_depths[columns]
