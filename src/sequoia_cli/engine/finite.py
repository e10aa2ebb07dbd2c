"""Numbers that are not finite: noticed before they choose a token, and reported in words."""

from __future__ import annotations

import torch
from torch import Tensor

from sequoia_cli.errors import SequoiaError


class NotFinite(ArithmeticError):
    """The target's row after `node` is needed and not finite; or one of draft number `draft` is not."""

    def __init__(self, *, node: int = 0, draft: int | None = None) -> None:
        super().__init__(node, draft)
        self.node, self.draft = node, draft


def finite_rows(probs: Tensor) -> Tensor:
    """(rows,) booleans for (rows, vocabulary) of `probabilities`: false where the logits were not finite.

    Such a row is NaN throughout, so one column tells.
    """
    return ~probs[:, 0].isnan()


def checked(probs: Tensor, node: int) -> Tensor:
    """The probabilities (vocabulary,) after `node`, as they are. Raises `NotFinite`; here the host waits."""
    if bool(probs[0].isnan()):
        raise NotFinite(node=node)
    return probs


def not_finite(whose: str, dtype: torch.dtype, where: str) -> SequoiaError:
    """What ends a text at `where`, with what `whose` logits are NaN or infinite."""
    width = str(dtype).removeprefix("torch.")
    return SequoiaError(
        f"the {whose}'s logits are not finite (NaN or infinity) at {where}, in {width}",
        hint="its weights may be damaged; where numbers overflow, a wider dtype such as float32 holds them",
    )
