"""Traversal verification: from the leaves to the root, whole paths at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.walk import Drawn, Verdict


def verify_leaf_first(
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    drawn: Callable[[int], Sequence[Drawn]],
    uniforms: Sequence[float],
) -> Verdict:
    """As `verify`, by paths instead of tokens (arXiv 2505.12398, with children without replacement).

    A node has a weight w: the probability with which the path to it is to be accepted, 1 for the root. The
    subtrees of its children are verified first, one after the other. The next child x, drawn from D, gets the
    weight min(1, w R(x) / D(x)). If its whole subtree is rejected, the probability that the child could have
    had is removed: R <- norm(max(w R - D, 0)), and w falls to s / (s + 1 - w), where s is the mass before
    normalising. A node whose children are all rejected is itself accepted with the remaining w, and its R has
    the next token.

    By induction from the leaves, a node or a path through it is accepted with probability w exactly, and what
    follows has the target's distribution: child x takes min(D(x), w R(x)), and the probability 1 - w + s that
    it is rejected, times the new w, is the s that is left. So no node is rejected before its subtree has been
    verified, and a ratio above 1 makes up for one below 1 nearer to the root. At one level this is Sequoia's
    rule.
    """
    # A stack of our own: a tree may be deeper than Python's.
    stack = [_Subtree(0, 1.0, target_probs, drawn)]
    while True:
        top = stack[-1]
        child = next(top.children, None)
        if child is not None:
            chance = top.rule.chance(tokens[child])
            offered = drawn(child)
            if chance > 0 and (offered or uniforms[child] < chance):
                stack.append(_Subtree(child, chance, target_probs, drawn))
            else:
                top.rule.reject(tokens[child])
        elif top.is_leaf or uniforms[top.node] < top.rule.weight():
            path = tuple(each.node for each in stack)
            fallbacks = sum(each.rule.fallbacks for each in stack)
            return Verdict(path, draw(top.rule.residual(), uniforms[-1]), fallbacks)
        else:
            stack.pop()
            stack[-1].rule.reject(tokens[top.node])  # the root's own weight stays 1


class _Subtree:
    """A subtree being verified: its root with the weight; a leaf is one that has passed its test."""

    def __init__(
        self,
        node: int,
        weight: float,
        target_probs: Callable[[int], Tensor],
        drawn: Callable[[int], Sequence[Drawn]],
    ) -> None:
        self.node = node
        offered = drawn(node)
        self.is_leaf = not offered
        self.rule = ResidualRule(target_probs(node), weight=weight)
        self.children = self._each_child(offered)

    def _each_child(self, offered: Sequence[Drawn]) -> Iterator[int]:
        for probs, children in offered:
            assert probs is not None
            self.rule.turn_to(probs)
            yield from children
