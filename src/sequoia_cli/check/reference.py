"""The target's own logits: one forward of transformers over a whole text, without our cache or masks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel


class Reference(Protocol):
    """A target to compare with: logits (count, vocabulary) after each of the last `count` of `ids`."""

    def plain(self, ids: Sequence[int], count: int) -> Tensor:
        """In the dtype that the target runs in."""

    def exact(self, ids: Sequence[int], count: int) -> Tensor:
        """Of the same weights, in the next wider dtype."""


class OwnForward:
    """The model as its library runs it, and a copy of it in the next wider dtype."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        wider = torch.float64 if model.dtype in (torch.float32, torch.float64) else torch.float32
        self._wider = copy.deepcopy(model).to(wider)

    def plain(self, ids: Sequence[int], count: int) -> Tensor:
        """In the dtype that the target runs in."""
        return _rows(self._model, ids, count)

    def exact(self, ids: Sequence[int], count: int) -> Tensor:
        """Of the same weights, in float32 for a target in half precision, else in float64."""
        return _rows(self._wider, ids, count)


class Row(NamedTuple):
    """How well a row of logits is known, in logits.

    `error` is the root mean square by which it differs from the target's in the wider dtype, `rounding` that
    by which the target's own forward in the same dtype does, both apart from what all logits have in common:
    that changes no probability. `rounding` is at least what one rounding of the logits gives.
    """

    error: float
    rounding: float


def compare(found: Tensor, plain: Tensor, exact: Tensor) -> list[Row]:
    """Rows of logits of the tool beside the target's own, (rows, vocabulary) each."""
    true = exact.double()
    errors, roundings = _distance(found, true), _distance(plain, true)
    least = torch.finfo(found.dtype).eps * _distance(true, torch.zeros_like(true))
    return [Row(*row) for row in torch.stack((errors, roundings.maximum(least)), 1).tolist()]


def _distance(logits: Tensor, true: Tensor) -> Tensor:
    off = logits.double() - true
    return (off - off.mean(-1, keepdim=True)).square().mean(-1).sqrt()


@torch.inference_mode()
def _rows(model: PreTrainedModel, ids: Sequence[int], count: int) -> Tensor:
    options = (
        {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    )
    tokens = torch.tensor([list(ids)], device=model.device)
    return model(input_ids=tokens, use_cache=False, **options).logits[0, -count:]
