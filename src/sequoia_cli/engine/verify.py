"""Verification: which path of a drafted tree the target accepts, and the token that follows it.

Pure functions of probabilities, tokens and uniforms; no model, no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draw import draw


@dataclass(frozen=True)
class Verdict:
    """The accepted path (nodes, root first) and the target's token behind it (the bonus token).

    `fallbacks` counts residuals that rounding had emptied (see `Trial`).
    """

    path: tuple[int, ...]
    next_token: int
    fallbacks: int = 0


class Drawn(NamedTuple):
    """Children of one node, in the order in which one draft drew them from `probs`, without replacement."""

    probs: Tensor
    children: Sequence[int]


def verify(
    tokens: Sequence[int],
    target_probs: Callable[[int], Tensor],
    drawn: Callable[[int], Sequence[Drawn]],
    uniforms: Sequence[float],
) -> Verdict:
    """Walk down from the root, accepting at most one child of each node, by Sequoia's rule.

    `tokens[i]` is the token of node i and `drawn(i)` has its children: none, those of the one draft, or
    those of several drafts in turn, each of which drew on its own. `target_probs(i)` is the target's
    distribution behind node i, (vocabulary,). Both are asked for only at nodes that are reached. `uniforms`
    has one number in [0, 1) per node (its acceptance test), and a last one for the token behind the path.

    The law of what is returned, whatever the drafts, is the target's own (arXiv 2402.12374, Algorithm 2; for
    several drafts arXiv 2305.09781). Two drafts may have proposed the same child. It is tested
    for each, but one number is enough: once it was rejected, the residual has nothing left of its token.
    """
    path, fallbacks = [0], 0
    while True:
        node = path[-1]
        trial = Trial(target_probs(node))
        accepted = _accepted(trial, drawn(node), tokens, uniforms)
        if accepted is None:
            next_token = draw(trial.residual(), uniforms[-1])
            return Verdict(tuple(path), next_token, fallbacks + trial.fallbacks)
        path.append(accepted)
        fallbacks += trial.fallbacks


def verify_greedy(tree: TokenTree, tokens: Sequence[int], choices: Sequence[int]) -> Verdict:
    """The same for a greedy target, whose choice behind node i is `choices[i]`: follow the equal child."""
    node, path = 0, [0]
    while True:
        accepted = next((child for child in tree.children[node] if tokens[child] == choices[node]), None)
        if accepted is None:
            return Verdict(tuple(path), choices[node])
        node = accepted
        path.append(node)


def _accepted(
    trial: Trial, drawn: Sequence[Drawn], tokens: Sequence[int], uniforms: Sequence[float]
) -> int | None:
    """The child that passes its test first, if one does."""
    for probs, children in drawn:
        trial.turn_to(probs)
        for child in children:
            if uniforms[child] < trial.chance(tokens[child]):
                return child
            trial.reject(tokens[child])
    return None


class Trial:
    """The children of one node, tried in the order they were drawn.

    Holds the paper's R (the residual of the target P) and D (the draft Q without the rejected), each brought
    up to date only when it is needed. (arXiv 2402.12374, Algorithm 2) The rule is lossless for any sequence
    of proposals whose laws D are known, so another draft's children may follow: R goes on, D begins anew.
    """

    def __init__(self, target: Tensor, draft: Tensor | None = None) -> None:
        """`draft` has the probabilities, (vocabulary,), that the first children were drawn from."""
        self._target, self._residual = target, target
        self._draft = target if draft is None else draft  # a node without children needs none
        self._rejected: list[int] = []
        self._rejected_of_draft: list[int] = []
        self._stale = False
        #: Residuals that rounding had emptied.
        self.fallbacks = 0

    def turn_to(self, draft: Tensor) -> None:
        """From here on the children are those that another draft drew, on its own, from `draft`."""
        if self._stale:
            self._update()
        self._draft, self._rejected_of_draft = draft, []

    def chance(self, token: int) -> float:
        """min(1, R(x) / D(x)) for the next child, given that those before were rejected."""
        residual, draft = self.laws()
        proposed, wanted = float(draft[token]), float(residual[token])
        return min(1.0, wanted / proposed) if proposed > 0 else float(wanted > 0)

    def laws(self) -> tuple[Tensor, Tensor]:
        """R and D for the next child, given that those before were rejected."""
        if self._stale:
            self._update()
            self._draft = self._without_rejected()
        return self._residual, self._draft

    def reject(self, token: int) -> None:
        """Note that the child just asked about was not accepted."""
        self._rejected.append(token)
        self._rejected_of_draft.append(token)
        self._stale = True

    def residual(self) -> Tensor:
        """The law of the token behind the node once all children are rejected."""
        if self._stale:
            self._update()
        return self._residual

    def _update(self) -> None:
        """R <- norm(max(R - D, 0)).

        A rejection leaves mass there; where rounding says otherwise R and D were equal, so the target without
        the rejected tokens stands in, or all of it where it has no other token.
        """
        self._stale = False
        rest = (self._residual - self._draft).clamp_(min=0)
        mass = rest.sum()
        if not mass > 0:
            self.fallbacks += 1
            rest = self._target.clone()
            rest[self._rejected] = 0
            mass = rest.sum()
        self._residual = rest / mass if mass > 0 else self._target

    def _without_rejected(self) -> Tensor:
        """D without its own rejected, renormalised; uniform over the others where nothing is left of it."""
        rest = self._draft.clone()
        rest[self._rejected_of_draft] = 0
        mass = rest.sum()
        if not mass > 0:
            rest = torch.ones_like(rest)
            rest[self._rejected_of_draft] = 0
            mass = rest.sum()
        return rest / mass
