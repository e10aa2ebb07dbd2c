"""SpecTr's rule: children drawn independently, each tested with the same reduced acceptance."""

from __future__ import annotations

import torch
from torch import Tensor

#: Halvings of the interval in which the division factor lies: to 1e-12 of it.
HALVINGS = 40


class KSequential:
    """The children of one node by k-sequential selection (SpecTr, arXiv 2310.15141): see `ResidualRule`.

    Each of k children, drawn independently from Q, is accepted with min(1, P(x) / (g Q(x))), so with chance
    b = sum of min(Q, P / g), and one of them with 1 - (1 - b)^k. Accepted tokens come with mass
    f min(Q, P / g), where f = 1 + (1 - b) + ... + (1 - b)^(k - 1), which leaves max(P - f min(Q, P / g), 0)
    for the token after the node: nothing of that is cut off where f <= g (see `division_factor`).
    """

    def __init__(self, target: Tensor, count: int) -> None:
        """`count` is the number of children."""
        self._target, self.count = target, count
        #: Residuals that had no mass left because of rounding.
        self.fallbacks = 0
        self.accepted = torch.zeros_like(target)

    def turn_to(self, draft: Tensor) -> None:
        """The children were drawn from `draft`, (vocabulary,)."""
        self._draft = draft
        self.factor = division_factor(self._target, draft, self.count)
        kept = torch.minimum(draft.double(), self._target.double() / self.factor)
        #: The chance that a child is accepted, if those before were not.
        self.each = min(1.0, float(kept.sum()))
        #: (vocabulary,) the chance that a child with this token is accepted.
        self.accepted = kept * sum((1 - self.each) ** tries for tries in range(self.count))

    def chance(self, token: int) -> float:
        """min(1, P(x) / (g Q(x))) for the next child."""
        proposed, wanted = float(self._draft[token]), float(self._target[token]) / self.factor
        return min(1.0, wanted / proposed) if proposed > 0 else float(wanted > 0)

    def reject(self, token: int) -> None:
        """The next child is tested as this one was."""

    def residual(self) -> Tensor:
        """The distribution of the token after the node once all children are rejected.

        Only rounding can leave nothing there: then P and Q were equal, and P stands in.
        """
        rest = (self._target.double() - self.accepted).clamp_(min=0)
        mass = rest.sum()
        if not mass > 0:
            self.fallbacks += 1
            return self._target
        return rest / mass


def division_factor(target: Tensor, draft: Tensor, count: int) -> float:
    """The smallest g in [1, count] with 1 - (1 - b)^count <= g b, where b = sum of min(Q, P / g).

    From there on the rule is lossless; a larger one accepts less. The left side falls as g grows and the
    right side does not, so it is found by bisection (SpecTr, arXiv 2310.15141, which has the inequality).
    """
    shared = (target > 0) & (draft > 0)  # which is few tokens of a large vocabulary
    target, draft = target[shared].double(), draft[shared].double()

    def lossless(factor: float) -> bool:
        each = float(torch.minimum(draft, target / factor).sum())
        return 1 - (1 - each) ** count <= factor * each

    low, high = 1.0, float(count)
    if lossless(low):
        return low
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if lossless(middle) else (middle, high)
    return high
