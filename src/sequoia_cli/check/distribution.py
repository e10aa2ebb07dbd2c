"""The distribution that a token should have, by transformers' own warpers, without the engine's code."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from sequoia_cli.core.sampling import Sampling

#: Tolerance of top-p before a token outside the nucleus counts as impossible: the engine sums probabilities
#: in float32.
_NUCLEUS_ROUNDING = 1e-4


def warpers(sampling: Sampling) -> LogitsProcessorList:
    """The warpers that transformers' `generate` uses for a temperature above 0, in its order."""
    found = LogitsProcessorList()
    if sampling.temperature != 1:
        found.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        found.append(TopPLogitsWarper(sampling.top_p))
    return found


class Distribution(NamedTuple):
    """(rows, vocabulary) probabilities, and which tokens are `tied` at the end of a nucleus.

    If a nucleus ends among tokens of equal logits, the sort order decides which of them are in it. Only their
    total probability is known; here they share it equally.
    """

    probs: Tensor
    tied: Tensor


def distribution(logits: Tensor, sampling: Sampling) -> Distribution:
    """The distributions, in float64, of (rows, vocabulary) logits at a temperature above 0."""
    scores = logits.double()
    # A shift changes no probability, and keeps a tiny temperature from overflowing.
    scores = scores - scores.amax(-1, keepdim=True)
    nothing = torch.empty(len(scores), 0, dtype=torch.long, device=scores.device)
    warped = warpers(sampling)(nothing, scores)
    kept, probs = warped > -math.inf, warped.softmax(-1)
    least = scores.masked_fill(~kept, math.inf).amin(-1, keepdim=True)
    last = scores == least
    tied = last & (last & ~kept).any(-1, keepdim=True)
    shared = (probs * tied).sum(-1, keepdim=True) / tied.sum(-1, keepdim=True).clamp(min=1)
    return Distribution(torch.where(tied, shared, probs), tied)


def possible(token: int, logits: Tensor, sampling: Sampling) -> bool:
    """Whether a token has positive probability given (vocabulary,) logits, allowing for rounding."""
    wider = replace(sampling, top_p=min(1.0, sampling.top_p + _NUCLEUS_ROUNDING))
    return bool(distribution(logits[None], wider).probs[0, token] > 0)
