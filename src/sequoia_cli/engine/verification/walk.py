"""Verification from the root down: which path of a drafted tree the target accepts, and the token after it.

Pure functions of probabilities, tokens and uniforms; no model, no cache. `engine/verification/verifiers.py`
says which verifier uses which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.finite import NotFinite
from sequoia_cli.engine.verification.residual import ResidualRule


@dataclass(frozen=True)
class Verdict:
    """The accepted path (nodes, root first) and the target's token after it (the bonus token).

    `fallbacks` counts residuals without mass (see `ResidualRule`).
    """

    path: tuple[int, ...]
    next_token: int
    fallbacks: int = 0


class Drawn(NamedTuple):
    """Children of one node, in the order in which one draft drew them from `probs`, (vocabulary,).

    None where they were not drawn but picked, for a rule that does not ask.
    """

    probs: Tensor | None
    children: Sequence[int]


class Rule(Protocol):
    """How the children of one node are tested, one after the other (see `ResidualRule`, `KSequential`)."""

    fallbacks: int

    def turn_to(self, draft: Tensor) -> None: ...
    def chance(self, token: int) -> float: ...
    def reject(self, token: int) -> None: ...
    def residual(self) -> Tensor: ...


def sequoia_rule(target: Tensor, count: int) -> Rule:
    """For `count` children drawn without replacement."""
    return ResidualRule(target)


def verify(
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    drawn: Callable[[int], Sequence[Drawn]],
    uniforms: Sequence[float],
    rule: Callable[[Tensor, int], Rule] = sequoia_rule,
) -> Verdict:
    """Walk down from the root, accepting at most one child of each node, by Sequoia's rule or another.

    `tokens[i]` is the token of node i and `drawn(i)` has its children: none, those of the one draft, or
    those of several drafts in turn, each of which drew on its own. `target_probs(i)` is the target's
    distribution after node i, (vocabulary,). Both are asked for only at nodes that are reached. `uniforms`
    has one number in [0, 1) per node (its acceptance test), and a last one for the token after the path.
    `rule` makes the tests of a node from its distribution and its number of children.

    The returned tokens have the target's distribution, whatever the drafts (arXiv 2402.12374, Algorithm 2;
    for several drafts arXiv 2305.09781). Two drafts may have proposed the same child. It is tested for each,
    with the same number: after a rejection the residual has no mass on its token.
    """
    path, fallbacks = [0], 0
    while True:
        node = path[-1]
        offered = drawn(node)
        trial = rule(target_probs(node), sum(len(children) for _, children in offered))
        accepted = _accepted(trial, offered, tokens, uniforms)
        if accepted is None:
            next_token = draw(trial.residual(), uniforms[-1])
            return Verdict(tuple(path), next_token, fallbacks + trial.fallbacks)
        path.append(accepted)
        fallbacks += trial.fallbacks


def verify_greedy(tree: TokenTree, tokens: Sequence[int], choices: Sequence[int]) -> Verdict:
    """The same for a greedy target, whose choice after node i is `choices[i]`: follow the equal child.

    A choice below 0 is that of a row that is not finite: `NotFinite` is raised where the path reaches it.
    """
    node, path = 0, [0]
    while True:
        if choices[node] < 0:
            raise NotFinite(node=node)
        accepted = next((child for child in tree.children[node] if tokens[child] == choices[node]), None)
        if accepted is None:
            return Verdict(tuple(path), choices[node])
        node = accepted
        path.append(node)


def verify_matching(
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    drawn: Callable[[int], Sequence[Drawn]],
    uniforms: Sequence[float],
) -> Verdict:
    """The same without a test: draw from the target, node by node, as long as a child has the drawn token.

    The distribution is the target's, whatever the children are and however they were picked. Node i's number
    in `uniforms` draws the token after it.
    """
    path = [0]
    while True:
        token = draw(target_probs(path[-1]), uniforms[path[-1]])
        children = (child for _, proposed in drawn(path[-1]) for child in proposed)
        accepted = next((child for child in children if tokens[child] == token), None)
        if accepted is None:
            return Verdict(tuple(path), token)
        path.append(accepted)


def _accepted(
    trial: Rule, drawn: Sequence[Drawn], tokens: Sequence[int], uniforms: Sequence[float]
) -> int | None:
    """The child that passes its test first, if one does."""
    for probs, children in drawn:
        assert probs is not None
        trial.turn_to(probs)
        for child in children:
            if uniforms[child] < trial.chance(tokens[child]):
                return child
            trial.reject(tokens[child])
    return None
