"""Logits to probabilities: the one place where temperature, top-k and top-p act, for both models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sequoia_cli.core.sampling import Sampling

#: A target's distribution (vocabulary,) after a text, from its logits (vocabulary,) there and the text's ids.
Distribution = Callable[[Tensor, Sequence[int]], Tensor]

#: How many of the most probable tokens a nucleus is looked for in before all are sorted.
_NUCLEUS_CANDIDATES = 1024

#: By how much sums of probabilities in float32 may differ with their order.
_SUM_ROUNDING = 2e-6

#: Below it, logits divided by a temperature could overflow.
_TINY_TEMPERATURE = 1e-3


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Warped probabilities of (rows, vocabulary) logits, float32 or wider.

    Greedy gives each row's most probable token probability 1. A row whose largest logit is not finite, as
    where one is NaN, gets NaN throughout.
    """
    whole = torch.finfo(logits.dtype).bits >= 32  # in half precision equal logits are common
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.greedy:
        most, best = logits.max(-1, keepdim=True)
        nothing = most - most  # 0, and NaN where it is not finite
        return nothing.expand_as(logits).scatter(-1, best, 1 + nothing)
    if sampling.temperature < _TINY_TEMPERATURE:
        logits = logits - logits.amax(-1, keepdim=True)
    scores = logits / max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    if 0 < sampling.top_k < scores.shape[-1]:
        threshold = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < threshold, -math.inf)
    if sampling.top_p < 1:
        scores = scores.masked_fill(_outside(scores, sampling.top_p, exact_ties=whole), -math.inf)
    return scores.softmax(-1)


def _outside(scores: Tensor, top_p: float, *, exact_ties: bool) -> Tensor:
    """Which tokens do not belong to the smallest set of most probable ones whose mass reaches `top_p`.

    The same ones as transformers', with one exception: without `exact_ties`, which of several equal tokens at
    the end of a large vocabulary's nucleus belong to it is up to the order in which they are found.
    """
    # Sorting a whole vocabulary takes ten times as long as finding its largest. An accelerator has sorted it
    # before the host knows whether it must.
    if scores.device.type != "cpu" or scores.shape[-1] <= _NUCLEUS_CANDIDATES:
        return _outside_sorted(scores, top_p)
    probs = scores.softmax(-1)
    values, order = probs.topk(_NUCLEUS_CANDIDATES, dim=-1)
    mass_before = values.cumsum(-1) - values
    left = probs.sum(-1, keepdim=True) - mass_before - (1 - top_p)
    beyond = left <= 0
    beyond[..., 0] = False
    outside = torch.ones_like(probs, dtype=torch.bool).scatter(-1, order, beyond)
    unclear = ~beyond.any(-1)  # a larger nucleus, or a row of NaN
    if exact_ties:
        unclear |= (left.abs() < _SUM_ROUNDING).any(-1)
        least = values.masked_fill(beyond, math.inf).amin(-1)
        unclear |= least == values.masked_fill(~beyond, -math.inf).amax(-1)
    if bool(unclear.any()):
        outside[unclear] = _outside_sorted(scores[unclear], top_p)
    return outside


def _outside_sorted(scores: Tensor, top_p: float) -> Tensor:
    """As transformers finds them: it sorts from the least probable up, and leaves equal ones to the sort."""
    ordered, order = scores.sort(dim=-1)
    outside = ordered.softmax(-1).cumsum(-1) <= 1 - top_p
    outside[..., -1] = False
    return outside.scatter(-1, order, outside)
