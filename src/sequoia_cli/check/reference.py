"""Reference logits: one forward of transformers over a whole text, without our cache and masks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel


class Reference(Protocol):
    """A reference for logits: (count, vocabulary), one row after each of the last `count` of `ids`."""

    def plain(self, ids: Sequence[int], count: int) -> Tensor:
        """In the dtype of the target."""

    def exact(self, ids: Sequence[int], count: int) -> Tensor:
        """With the same weights in the next wider dtype."""


class TransformersReference:
    """The model as transformers runs it, and a copy in the next wider dtype."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        wider = torch.float64 if model.dtype in (torch.float32, torch.float64) else torch.float32
        self._wider = copy.deepcopy(model).to(wider)

    def plain(self, ids: Sequence[int], count: int) -> Tensor:
        """In the dtype of the target."""
        return _rows(self._model, ids, count)

    def exact(self, ids: Sequence[int], count: int) -> Tensor:
        """With the same weights, in float32 for a target in half precision, else in float64."""
        return _rows(self._wider, ids, count)


class RowError(NamedTuple):
    """The error of a row of logits, in units of logits.

    `error` is the root-mean-square difference of the tool's row from the target's in the wider dtype.
    `rounding` is that of the target's own forward in its dtype, and at least that of rounding the logits
    once. Both ignore a constant added to all logits, which changes no probability.
    """

    error: float
    rounding: float


def compare(found: Tensor, plain: Tensor, exact: Tensor) -> list[RowError]:
    """Errors of the tool's rows of logits, `found`; all arguments are (rows, vocabulary)."""
    true = exact.double()
    errors, roundings = _distance(found, true), _distance(plain, true)
    least = torch.finfo(found.dtype).eps * _distance(true, torch.zeros_like(true))
    return [RowError(*row) for row in torch.stack((errors, roundings.maximum(least)), 1).tolist()]


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
