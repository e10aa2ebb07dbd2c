"""The children of one node tried one after the other: the rule that most verifiers are made of."""

from __future__ import annotations

import torch
from torch import Tensor


class Trial:
    """The children of one node, tried in the order they were drawn.

    Holds the paper's R (the residual of the target P) and D (the draft Q without the rejected), each brought
    up to date only when it is needed. (arXiv 2402.12374, Algorithm 2) The rule is lossless for any sequence
    of proposals whose laws D are known, so another draft's children may follow: R goes on, D begins anew.

    `weight` is the chance with which the path down to the node is to be accepted: 1 where that was settled
    before, as it is for a walk from the root (see `engine/traversal.py`).
    """

    def __init__(
        self,
        target: Tensor,
        draft: Tensor | None = None,
        *,
        replacement: bool = False,
        weight: float = 1.0,
    ) -> None:
        """`draft` has the probabilities, (vocabulary,), that the first children were drawn from.

        With `replacement` they were, so that D stays Q. (SpecInfer, arXiv 2305.09781, Theorem 4.2)
        """
        self._target, self._residual = target, target
        self._draft = target if draft is None else draft  # a node without children needs none
        self._replacement, self._weight = replacement, weight
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
        """min(1, w R(x) / D(x)) for the next child, given that those before were rejected."""
        residual, draft = self.laws()
        proposed, wanted = float(draft[token]), self._weight * float(residual[token])
        return min(1.0, wanted / proposed) if proposed > 0 else float(wanted > 0)

    def laws(self) -> tuple[Tensor, Tensor]:
        """R and D for the next child, given that those before were rejected."""
        if self._stale:
            self._update()
            if not self._replacement:
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

    def weight(self) -> float:
        """The chance with which the node itself is to be accepted once all children are rejected."""
        if self._stale:
            self._update()
        return self._weight

    def _update(self) -> None:
        """R <- norm(max(w R - D, 0)), w <- s / (s + 1 - w), where s is the mass before it was normalised.

        At weight 1 a rejection leaves mass there; where rounding says otherwise R and D were equal, so the
        target without the rejected tokens stands in, or all of it where it has no other token. At a lower
        weight the children may have had all that the node was to get: nothing is left to accept it with.
        """
        self._stale = False
        rest = (self._weight * self._residual - self._draft).clamp_(min=0)
        mass = rest.sum()
        if self._weight < 1:
            left = float(mass)
            self._weight = left / (left + 1 - self._weight)
        elif not mass > 0:
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
