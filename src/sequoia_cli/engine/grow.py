"""A draft's tree, grown level by level: which tokens stand in it, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import Noise, top_children
from sequoia_cli.engine.merge import Rows
from sequoia_cli.engine.proposals import Draw, Proposed
from sequoia_cli.engine.step import DRAFT, Stopwatch
from sequoia_cli.engine.upload import indices, upload


class Shape(Protocol):
    """What decides, level by level, which nodes a draft's trees have. One for each text.

    Lossless is what decides on each node before its token is read, and never takes back a node that the
    draft has run, which reads it (see `engine/adaptive.py`).
    """

    def start(self, layers: int) -> int:
        """Begin a step whose tree has at most `layers` layers; returns the most nodes that it can have.

        Both count the root.
        """

    def run(self, nodes: range) -> Sequence[int]:
        """Of the new `nodes`, at first the root alone, those that the draft is to run, in order.

        None of them ends the tree.
        """

    def children(self, nodes: Sequence[int], largest: Callable[[int], Tensor]) -> Sequence[int]:
        """The number of children to draw for each of these nodes, which the draft has run.

        `largest(count)` has the (nodes, count) largest probabilities that they are drawn from.
        """

    def keep(self, size: int) -> Sequence[int]:
        """Of the `size` nodes that were drawn, those that the target is to run, in order.

        Those that the draft has run are among them, and of each node's children the first ones.
        """

    def learn(self, ranks: Sequence[int]) -> None:
        """The step is over: the target has accepted the path of these ranks among siblings."""


class FixedShape:
    """The same tree in every step, cut off where a step has no room for all of it."""

    def __init__(self, tree: TokenTree) -> None:
        self._whole = self._tree = tree
        self._cut: dict[int, TokenTree] = {}

    def start(self, layers: int) -> int:
        """See `Shape`."""
        if layers not in self._cut:
            self._cut[layers] = self._whole.limited(layers)
        self._tree = self._cut[layers]
        return self._tree.size

    def run(self, nodes: range) -> Sequence[int]:
        """The nodes that have children."""
        level = self._tree.node_depths[nodes.start]
        return self._tree.expanded[level] if level < len(self._tree.expanded) else ()

    def children(self, nodes: Sequence[int], largest: Callable[[int], Tensor]) -> Sequence[int]:
        """As the tree has them."""
        return [len(self._tree.children[node]) for node in nodes]

    def keep(self, size: int) -> Sequence[int]:
        """All."""
        return range(size)

    def learn(self, ranks: Sequence[int]) -> None:
        """Nothing."""


@dataclass(frozen=True)
class Level:
    """Nodes that a draft has run together, and what their children were drawn from.

    None where the children are the most probable ones: then nobody asks.
    """

    nodes: Sequence[int]
    proposed: Proposed | None


@dataclass(frozen=True)
class Grown:
    """A draft's tree: tokens of all nodes, (nodes,) on the device.

    `numbers` has the draft's number of each node that it ran; `finite`, a single boolean on the device, says
    whether all of its logits are finite.
    """

    tree: TokenTree
    tokens: Tensor
    levels: Sequence[Level]
    numbers: dict[int, int]
    finite: Tensor

    def probs(self, node: int, vocabulary: int) -> Tensor | None:
        """The (vocabulary,) probabilities that a node's children were drawn from; None if picked."""
        for level in self.levels:
            if node in level.nodes:
                return level.proposed and level.proposed.over(vocabulary, level.nodes.index(node))
        raise KeyError(node)

    def rows(self, vocabulary: int) -> Rows:
        """The same by node, each computed where it is asked for."""
        return _Rows(self, vocabulary)

    def all_probs(self, vocabulary: int) -> Tensor:
        """The same of all nodes with children, (nodes, vocabulary); no rows where children were picked."""
        parts = []
        for level in self.levels:
            if level.proposed is None:
                continue
            rows = tuple(row for row, node in enumerate(level.nodes) if self.tree.children[node])
            probs = level.proposed.over(vocabulary)
            parts.append(probs if len(rows) == len(probs) else probs[indices(rows, probs.device)])
        return torch.cat(parts) if parts else torch.empty(0, vocabulary, device=self.tokens.device)


@dataclass(frozen=True)
class _Rows:
    grown: Grown
    vocabulary: int

    def __getitem__(self, node: int) -> Tensor | None:
        return self.grown.probs(node, self.vocabulary)


def grow(
    draft: Draft,
    shape: Shape,
    size: int,
    root: int,
    vocabulary: int,
    device: torch.device,
    sampling: Sampling,
    noise: Noise,
    draw: Draw,
    watch: Stopwatch,
) -> Grown:
    """Let a draft propose a tree of at most `size` nodes after the token `root`; each level is a lap `DRAFT`.

    `shape` has been told to start. `vocabulary` and `device` are the target's. `noise` has a number in [0, 1)
    for each node, or is a generator on the device. `sampling` is the draft's, `draw` how children are drawn
    from its probabilities.
    """
    tokens = torch.full((size,), root, dtype=torch.long, device=device)
    parents, numbers = [-1], {-1: -1}
    levels: list[Level] = []
    finite: list[Tensor] = []
    nodes = shape.run(range(1))
    while nodes:
        proposals = draft.extend(
            [numbers[parents[node]] for node in nodes], tokens[indices(tuple(nodes), device)]
        )
        for node in nodes:
            numbers[node] = len(numbers) - 1
        proposed = None if draw is top_children else proposals.probabilities(sampling)
        finite.append((proposed or proposals).finite)
        counts = shape.children(nodes, (proposed or proposals).largest)
        first = len(parents)
        parents += [node for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
        if len(parents) > first:
            if proposed is None:
                drawn = proposals.top(counts, vocabulary)
            else:
                uniforms = _of_children(noise, counts, first) if isinstance(noise, Tensor) else noise
                drawn = proposed.children(counts, uniforms, vocabulary, draw)
            tokens[first : len(parents)] = torch.cat(drawn)
        levels.append(Level(nodes, proposed))
        nodes = shape.run(range(first, len(parents))) if len(parents) > first else ()
        watch.lap(DRAFT)
    del numbers[-1]
    kept = shape.keep(len(parents))
    if len(kept) < len(parents):
        tokens = tokens[upload(kept, device)]
    place = {node: number for number, node in enumerate(kept)} | {-1: -1}
    tree = _tree(tuple(place[parents[node]] for node in kept))
    return Grown(
        tree,
        tokens[: tree.size],
        [Level([place[node] for node in level.nodes], level.proposed) for level in levels],
        {place[node]: number for node, number in numbers.items()},
        torch.cat(finite).all() if finite else tokens.new_ones((), dtype=torch.bool),
    )


#: Trees come again, and so do their children and depths, which they compute once.
_tree = lru_cache(maxsize=4096)(TokenTree)


def _of_children(uniforms: Tensor, counts: Sequence[int], first: int) -> Tensor:
    """(nodes, most) numbers of the children of each node, which are numbered from `first` on."""
    table = torch.zeros(len(counts), max(counts), dtype=torch.float64)
    for row, count in enumerate(counts):
        table[row, :count] = uniforms[first : first + count]
        first += count
    return table
