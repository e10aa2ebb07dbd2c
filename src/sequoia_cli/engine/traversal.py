"""Traversal verification: from the leaves to the root, whole paths at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.trial import Trial
from sequoia_cli.engine.verify import Drawn, Verdict


def verify_leaf_first(
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    drawn: Callable[[int], Sequence[Drawn]],
    uniforms: Sequence[float],
) -> Verdict:
    """As `verify`, by paths instead of tokens (arXiv 2505.12398, with children without replacement).

    A node has a weight w: the chance with which the path down to it is to be accepted, 1 for the root. Its
    children's subtrees are asked first, one after the other. The next child x, drawn from D, is given the
    weight min(1, w R(x) / D(x)). Where its whole subtree is rejected, what the child could have had is taken
    out: R <- norm(max(w R - D, 0)), and w falls to s / (s + 1 - w), where s is the mass of that. A node whose
    children are all rejected is itself accepted with what is left of w, and its R has the next token.

    By induction from the leaves a node is accepted, or a path through it, with chance w exactly, and with the
    target's law of what follows: child x takes min(D(x), w R(x)), and the chance 1 - w + s that it is
    rejected, times the new w, is the s that was left. So nothing is decided above before the subtree had its
    chance, and a ratio above 1 makes up for one below 1 further up. At one level this is Sequoia's rule.
    """
    found = _settle(0, 1.0, tokens, target_probs, drawn, uniforms)
    assert found is not None  # the root's weight stays 1
    return found


def _settle(
    node: int,
    weight: float,
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    drawn: Callable[[int], Sequence[Drawn]],
    uniforms: Sequence[float],
) -> Verdict | None:
    """The path that is accepted from `node` down; None where all that begins with it is rejected."""
    offered = drawn(node)
    if weight == 0 or (not offered and not uniforms[node] < weight):
        return None
    trial = Trial(target_probs(node), weight=weight)
    for probs, children in offered:
        trial.turn_to(probs)
        for child in children:
            chance = trial.chance(tokens[child])
            found = _settle(child, chance, tokens, target_probs, drawn, uniforms)
            if found is not None:
                return Verdict((node, *found.path), found.next_token, found.fallbacks + trial.fallbacks)
            trial.reject(tokens[child])
    if offered and not uniforms[node] < trial.weight():
        return None
    return Verdict((node,), draw(trial.residual(), uniforms[-1]), trial.fallbacks)
