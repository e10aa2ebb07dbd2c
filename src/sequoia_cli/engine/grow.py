"""A draft's tree, grown level by level: which tokens stand in it, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import draw_children, top_children
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.step import Stopwatch
from sequoia_cli.engine.warp import Sampling


@dataclass(frozen=True)
class Grown:
    """Tokens of all nodes, the draft's probabilities behind each expanded one, and its seconds by level."""

    tokens: list[int]
    rows: dict[int, Tensor]
    level_seconds: list[float]


def grow(
    draft: Draft,
    target: LanguageModel,
    layout: Layout,
    root: int,
    sampling: Sampling,
    uniforms: Tensor,
    watch: Stopwatch,
    *,
    greedy: bool,
) -> Grown:
    """Let a draft propose a tree behind the token `root`; `uniforms` has a number in [0, 1) for each node.

    `sampling` is the draft's; `greedy` says whether the target is, which wants the most probable children.
    """
    tokens = [root] + [0] * (layout.tree.size - 1)
    rows: dict[int, Tensor] = {}
    seconds = []
    for level, nodes in enumerate(layout.expanded):
        level_tokens = torch.tensor([tokens[node] for node in nodes], device=target.device)
        probs = draft.expand(layout, level, level_tokens, sampling)
        counts = layout.child_counts[level]
        runs = [layout.tree.children[node] for node in nodes]
        noise = torch.zeros(len(nodes), max(counts), dtype=torch.float64)
        for row, run in enumerate(runs):
            noise[row, : len(run)] = uniforms[run.start : run.stop]
        drawn, probs = pick_children(probs, counts, noise, target.vocabulary, greedy=greedy, ids=draft.ids)
        # The children of a level's nodes, one after the other, are the next level.
        tokens[runs[0].start : runs[-1].stop] = torch.cat(drawn).tolist()
        rows.update(zip(nodes, probs, strict=True))
        seconds.append(watch.lap())
    return Grown(tokens, rows, seconds)


def pick_children(
    probs: Tensor,
    counts: Sequence[int],
    uniforms: Tensor,
    vocabulary: int,
    *,
    greedy: bool,
    ids: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Children of a level's nodes, and the probabilities (nodes, vocabulary) they were drawn from.

    The columns are the draft's `ids`; the target's other ids, up to its `vocabulary`, have probability 0.
    For a greedy target, which asks for no probabilities, the draft's columns may be returned as they are.
    """
    if greedy and ids is not None and max(counts) <= len(ids):
        return [ids[picked] for picked in top_children(probs, counts)], probs
    probs = over_vocabulary(probs, vocabulary, ids)
    return (top_children(probs, counts) if greedy else draw_children(probs, counts, uniforms)), probs


def over_vocabulary(probs: Tensor, vocabulary: int, ids: Tensor | None) -> Tensor:
    """A draft's columns, which are its `ids`, as (nodes, vocabulary); it never proposes the other ids."""
    if ids is not None:
        return probs.new_zeros(len(probs), vocabulary).index_copy_(1, ids, probs)
    missing = vocabulary - probs.shape[-1]
    return pad(probs, (0, missing)) if missing > 0 else probs
