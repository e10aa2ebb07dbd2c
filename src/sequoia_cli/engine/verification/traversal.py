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

    A node has a weight w: the chance with which the path down to it is to be accepted, 1 for the root. Its
    children's subtrees are asked first, one after the other. The next child x, drawn from D, is given the
    weight min(1, w R(x) / D(x)). Where its whole subtree is rejected, what the child could have had is taken
    out: R <- norm(max(w R - D, 0)), and w falls to s / (s + 1 - w), where s is the mass of that. A node whose
    children are all rejected is itself accepted with what is left of w, and its R has the next token.

    By induction from the leaves a node is accepted, or a path through it, with chance w exactly, and with the
    target's distribution of what follows: child x takes min(D(x), w R(x)), and the chance 1 - w + s that it
    is rejected, times the new w, is the s that was left. So nothing is decided above before the subtree had
    its chance, and a ratio above 1 makes up for one below 1 further up. At one level this is Sequoia's rule.
    """
    # The nodes from the root down whose subtrees are being asked, in a list of our own: a tree may be deeper
    # than Python's stack.
    open_nodes = [_Asked(0, 1.0, target_probs, drawn)]
    while True:
        asked = open_nodes[-1]
        child = next(asked.children, None)
        if child is not None:
            chance = asked.trial.chance(tokens[child])
            offered = drawn(child)
            if chance > 0 and (offered or uniforms[child] < chance):
                open_nodes.append(_Asked(child, chance, target_probs, drawn))
            else:
                asked.trial.reject(tokens[child])
        elif asked.is_leaf or uniforms[asked.node] < asked.trial.weight():
            path = tuple(one.node for one in open_nodes)
            fallbacks = sum(one.trial.fallbacks for one in open_nodes)
            return Verdict(path, draw(asked.trial.residual(), uniforms[-1]), fallbacks)
        else:
            open_nodes.pop()
            open_nodes[-1].trial.reject(tokens[asked.node])  # the root's own weight stays 1


class _Asked:
    """A node with weight whose subtree is being asked; a leaf is one that has passed its test."""

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
        self.trial = ResidualRule(target_probs(node), weight=weight)
        self.children = self._each_child(offered)

    def _each_child(self, offered: Sequence[Drawn]) -> Iterator[int]:
        for probs, children in offered:
            assert probs is not None
            self.trial.turn_to(probs)
            yield from children
