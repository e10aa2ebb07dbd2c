"""A draft's tree, grown level by level: which tokens stand in it, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import Noise, top_children
from sequoia_cli.engine.finite import finite_rows
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.step import DRAFT, Stopwatch
from sequoia_cli.engine.warp import Sampling

#: Children of each of (rows, vocabulary) probabilities, by counts and noise: a function of `engine/draw.py`.
Draw = Callable[[Tensor, Sequence[int], Noise], list[Tensor]]


@dataclass(frozen=True)
class Grown:
    """Tokens of all nodes, (nodes,) on the device, and what children were drawn from.

    `probs[level]` has the draft's probabilities after the nodes `layout.expanded[level]`; `finite`, a single
    boolean on the device, says whether they are numbers.
    """

    tokens: Tensor
    probs: list[Tensor]
    finite: Tensor

    def rows(self, layout: Layout) -> dict[int, Tensor]:
        """The probabilities behind each expanded node."""
        levels = zip(layout.expanded, self.probs, strict=True)
        return {node: row for nodes, probs in levels for node, row in zip(nodes, probs, strict=True)}


def grow(
    draft: Draft,
    target: LanguageModel,
    layout: Layout,
    root: int,
    sampling: Sampling,
    noise: Noise,
    watch: Stopwatch,
    draw: Draw,
) -> Grown:
    """Let a draft propose a tree behind the token `root`; each level is a lap `DRAFT`.

    `noise` has a number in [0, 1) for each node, or is a generator on the device. `sampling` is the draft's,
    `draw` how children are drawn from its probabilities.
    """
    tree = layout.tree
    tokens = torch.full((tree.size,), root, dtype=torch.long, device=target.device)
    levels, finite = [], []
    for level, nodes in enumerate(layout.expanded):
        probs = draft.expand(layout, level, tokens[layout.expanded_rows[level]], sampling)
        runs = [tree.children[node] for node in nodes]
        finite.append(finite_rows(probs))
        drawn, probs = pick_children(
            probs,
            layout.child_counts[level],
            _of_children(noise, runs) if isinstance(noise, Tensor) else noise,
            target.vocabulary,
            draw,
            draft.ids,
        )
        # The children of a level's nodes, one after the other, are the next level.
        tokens[runs[0].start : runs[-1].stop] = torch.cat(drawn)
        levels.append(probs)
        watch.lap(DRAFT)
    return Grown(tokens, levels, torch.cat(finite).all() if finite else tokens.new_ones((), dtype=torch.bool))


def _of_children(uniforms: Tensor, runs: Sequence[range]) -> Tensor:
    """(runs, longest) numbers of the nodes of each run."""
    table = torch.zeros(len(runs), max(map(len, runs)), dtype=torch.float64)
    for row, run in enumerate(runs):
        table[row, : len(run)] = uniforms[run.start : run.stop]
    return table


def pick_children(
    probs: Tensor,
    counts: Sequence[int],
    noise: Noise,
    vocabulary: int,
    draw: Draw,
    ids: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Children of a level's nodes, and the probabilities (nodes, vocabulary) they were drawn from.

    The columns are the draft's `ids`; the target's other ids, up to its `vocabulary`, have probability 0.
    Where the most probable are picked nobody asks for probabilities, and the columns may be returned as they
    are.
    """
    if draw is top_children and ids is not None and max(counts) <= len(ids):
        return [ids[picked] for picked in top_children(probs, counts)], probs
    probs = over_vocabulary(probs, vocabulary, ids)
    return draw(probs, counts, noise), probs


def over_vocabulary(probs: Tensor, vocabulary: int, ids: Tensor | None) -> Tensor:
    """A draft's columns, which are its `ids`, as (nodes, vocabulary); it never proposes the other ids."""
    if ids is not None:
        return probs.new_zeros(len(probs), vocabulary).index_copy_(1, ids, probs)
    missing = vocabulary - probs.shape[-1]
    return pad(probs, (0, missing)) if missing > 0 else probs
