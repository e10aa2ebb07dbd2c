"""Logits to probabilities: the one place where temperature, top-k and top-p act, for both models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sequoia_cli.core.sampling import Sampling

#: How many of the most probable tokens are sorted before a nucleus is looked for among all of them.
_NUCLEUS_CANDIDATES = 1024


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Warped probabilities of (rows, vocabulary) logits, float32 or wider.

    Greedy gives each row's most probable token probability 1. A row whose largest logit is not finite, as
    where one is NaN, gets NaN throughout.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.greedy:
        most, best = logits.max(-1, keepdim=True)
        nothing = most - most  # 0, and NaN where it is not finite
        return nothing.expand_as(logits).scatter(-1, best, 1 + nothing)
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
    values, order = _most_probable(probs, top_p)
    before = values.cumsum(-1) - values
    return torch.zeros_like(probs).scatter(-1, order, values.masked_fill(before >= top_p, 0.0))


def _most_probable(probs: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Each row's most probable tokens in order, as many as have a mass of `top_p` at least."""
    # An accelerator has sorted them all before the host knows whether it must.
    if probs.device.type == "cpu" and probs.shape[-1] > _NUCLEUS_CANDIDATES:
        values, order = probs.topk(_NUCLEUS_CANDIDATES, dim=-1)
        if not bool((values.sum(-1) < top_p).any()):
            return values, order
    return probs.sort(dim=-1, descending=True, stable=True)
