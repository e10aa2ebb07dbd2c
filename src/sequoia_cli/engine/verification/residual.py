"""Acceptance of the children of one node against a residual: the rule that most verifiers use."""

from __future__ import annotations

import torch
from torch import Tensor


class ResidualRule:
    """Tests the children of one node in the order in which they were drawn.

    Holds the paper's R (the residual of the target P) and D (the draft Q without the rejected children); both
    are updated when they are next needed. (arXiv 2402.12374, Algorithm 2) The rule is lossless for any
    sequence of proposals whose distributions D are known, so children of another draft may follow: R is kept,
    D starts from that draft's Q.

    `weight` is the probability with which the path to the node is to be accepted: 1 where that is decided
    already, as in a walk from the root (see `engine/verification/traversal.py` for others).
    """

    def __init__(
        self,
        target: Tensor,
        draft: Tensor | None = None,
        *,
        replacement: bool = False,
        weight: float = 1.0,
    ) -> None:
        """`draft` has the (vocabulary,) probabilities that the first children were drawn from.

        With `replacement` they were drawn with it, and D is always Q. (SpecInfer, arXiv 2305.09781,
        Theorem 4.2)
        """
        self._target, self._residual = target, target
        self._draft = target if draft is None else draft  # a node without children needs none
        self._replacement, self._weight = replacement, weight
        self._rejected: list[int] = []
        self._rejected_of_draft: list[int] = []
        self._stale = False
        #: Residuals that had no mass left because of rounding.
        self.fallbacks = 0

    def turn_to(self, draft: Tensor) -> None:
        """The next children were drawn by another draft, independently, from `draft`."""
        if self._stale:
            self._update()
        self._draft, self._rejected_of_draft = draft, []

    def chance(self, token: int) -> float:
        """min(1, w R(x) / D(x)) for the next child, given that those before were rejected."""
        residual, draft = self.distributions()
        proposed, wanted = float(draft[token]), self._weight * float(residual[token])
        return min(1.0, wanted / proposed) if proposed > 0 else float(wanted > 0)

    def distributions(self) -> tuple[Tensor, Tensor]:
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
        """The distribution of the token after the node once all children are rejected."""
        if self._stale:
            self._update()
        return self._residual

    def weight(self) -> float:
        """The probability with which the node itself is to be accepted once all children are rejected."""
        if self._stale:
            self._update()
        return self._weight

    def _update(self) -> None:
        """R <- norm(max(w R - D, 0)), w <- s / (s + 1 - w), where s is the mass before it was normalised.

        At weight 1 a rejection leaves mass. Where rounding leaves none, R and D were equal: the fallback is
        the target without the rejected tokens, or the whole target where it has no other token. At a lower
        weight the children may have taken all of the node's probability, so that none is left for itself.
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
        """D without its rejected children, renormalised; uniform over the other tokens if no mass is left."""
        rest = self._draft.clone()
        rest[self._rejected_of_draft] = 0
        mass = rest.sum()
        if not mass > 0:
            rest = torch.ones_like(rest)
            rest[self._rejected_of_draft] = 0
            mass = rest.sum()
        return rest / mass
