"""Logits to probabilities: the one place where temperature, top-k and top-p act, for both models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sequoia_cli.errors import BadInput

#: How many of the most probable tokens are sorted before a nucleus is looked for among all of them.
_NUCLEUS_CANDIDATES = 1024


@dataclass(frozen=True)
class Sampling:
    """Temperature, top-k and top-p with the meaning and in the order of Hugging Face's `generate`.

    Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off. Raises `BadInput` for impossible values.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"temperature is {self.temperature}; expected a number from 0 (greedy) up")
        if self.top_k < 0:
            raise BadInput(f"top-k is {self.top_k}; expected a whole number from 0 (off) up")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top-p is {self.top_p}; expected a number above 0 and up to 1 (off)")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Warped probabilities of (rows, vocabulary) logits, float32 or wider.

    Greedy gives each row's most probable token probability 1.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.greedy:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    # Shifted first: a tiny temperature must not overflow what softmax would shift afterwards.
    logits = (logits - logits.amax(-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        threshold = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < threshold, -math.inf)
    probs = logits.softmax(-1)
    if sampling.top_p < 1:
        probs = _nucleus(probs, sampling.top_p)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def _nucleus(probs: Tensor, top_p: float) -> Tensor:
    """Zero all but the smallest set of most probable tokens whose mass reaches `top_p`."""
    size = probs.shape[-1]
    count = min(_NUCLEUS_CANDIDATES, size)
    values, order = probs.topk(count, dim=-1)
    if count < size and bool((values.sum(-1) < top_p).any()):
        values, order = probs.sort(dim=-1, descending=True, stable=True)
    before = values.cumsum(-1) - values
    return torch.zeros_like(probs).scatter(-1, order, values.masked_fill(before >= top_p, 0.0))
