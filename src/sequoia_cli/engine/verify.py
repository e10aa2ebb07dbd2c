"""Verification: which path of a drafted tree the target accepts, and the token that follows it.

Pure functions of probabilities, tokens and uniforms; no model, no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draw import draw


@dataclass(frozen=True)
class Verdict:
    """The accepted path (nodes, root first) and the target's token behind it (the bonus token).

    `fallbacks` counts residuals that rounding had emptied (see `_residual`).
    """

    path: tuple[int, ...]
    next_token: int
    fallbacks: int = 0


def verify(
    tree: TokenTree,
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    draft_probs: Callable[[int], Tensor],
    uniforms: Sequence[float],
) -> Verdict:
    """Walk down from the root, accepting at most one child of each node, by Sequoia's rule.

    `tokens[i]` is the token of node i, whose children were drawn without replacement from
    `draft_probs(i)`; `target_probs(i)` is the target's distribution behind node i. Both are (vocabulary,)
    and are asked for only at nodes that are reached. `uniforms` has one number in [0, 1) per node (its
    acceptance test), and one more for the token behind the path. The law of what is returned, whatever the
    draft, is the target's own (arXiv 2402.12374, Algorithm 2).
    """
    node, path, fallbacks = 0, [0], 0
    while True:
        # P, Q, D, R as in the paper: target, draft, draft without the rejected, residual of the target.
        target = target_probs(node)
        children = tree.children[node]
        residual, accepted = target, None
        draft = draft_probs(node) if children else target
        for child in children:
            token = tokens[child]
            if uniforms[child] * float(draft[token]) < float(residual[token]):
                accepted = child
                break
            tried = [tokens[other] for other in children[: child - children.start + 1]]
            residual, emptied = _residual(residual, draft, target, tried)
            fallbacks += emptied
            if child != children[-1]:
                draft = _without(draft, tried)
        if accepted is None:
            return Verdict(tuple(path), draw(residual, uniforms[tree.size]), fallbacks)
        node = accepted
        path.append(node)


def verify_greedy(tree: TokenTree, tokens: Sequence[int], choices: Sequence[int]) -> Verdict:
    """The same for a greedy target, whose choice behind node i is `choices[i]`: follow the equal child."""
    node, path = 0, [0]
    while True:
        accepted = next((child for child in tree.children[node] if tokens[child] == choices[node]), None)
        if accepted is None:
            return Verdict(tuple(path), choices[node])
        node = accepted
        path.append(node)


def _residual(residual: Tensor, draft: Tensor, target: Tensor, tried: list[int]) -> tuple[Tensor, bool]:
    """norm(max(R - D, 0)), and whether rounding had left nothing of it.

    Exactly, a rejection leaves mass; where rounding says otherwise R and D were equal, so the target's own
    distribution without the tried tokens stands in, or all of it where it has no other token.
    """
    rest = (residual - draft).clamp_(min=0)
    mass = rest.sum()
    if mass > 0:
        return rest / mass, False
    rest = target.clone()
    rest[tried] = 0
    mass = rest.sum()
    return (rest / mass, True) if mass > 0 else (target, True)


def _without(draft: Tensor, tried: list[int]) -> Tensor:
    """The draft without the tried tokens, renormalised; uniform over the others where nothing is left."""
    rest = draft.clone()
    rest[tried] = 0
    mass = rest.sum()
    if mass > 0:
        return rest / mass
    rest = torch.ones_like(draft)
    rest[tried] = 0
    return rest / rest.sum()
