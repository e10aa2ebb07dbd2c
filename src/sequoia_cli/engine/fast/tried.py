"""Measure how much a change to a model moves its logits; it should not move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

#: Where the texts stand: at the beginning and at the end of the context. Some families scale by position.
_PLACES = (0, 1)
#: Texts at each place, and their tokens.
_TEXTS, _TOKENS = 3, 8
#: The end of a context without one.
_FAR = 1 << 17


def trial_texts(vocabulary: int, context_limit: int) -> tuple[Tensor, Tensor]:
    """Ids and positions (texts, tokens) at both ends of the context.

    Random ids: after a run of control tokens a real model's bfloat16 logits are off by 0.8 anyway.
    """
    tokens = min(_TOKENS, context_limit)
    last = min(context_limit, _FAR) - tokens
    firsts = [place * last for place in _PLACES for _ in range(_TEXTS)]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (len(firsts), tokens), generator=generator)
    return ids, torch.tensor(firsts)[:, None] + torch.arange(tokens)


@torch.inference_mode()
def changed_by(
    change: Callable[[nn.Module, Mapping[str, Any]], None], model: nn.Module, arguments: Mapping[str, Any]
) -> float:
    """How far the logits of `trial_texts` move, relative to how far they spread.

    At each place the median of the texts counts, since rounding can switch between two experts that are
    nearly tied. Texts whose logits were not finite before are left out; NaN if none is left at a place.
    """
    before = model(**arguments).logits.double()
    change(model, arguments)
    after = model(**arguments).logits.double()
    errors = (after - before).flatten(1).norm(dim=1)
    errors /= (before - before.mean(-1, keepdim=True)).flatten(1).norm(dim=1)
    finite = [logits.flatten(1).isfinite().all(1) for logits in (before, after)]
    errors = errors.where(finite[1], torch.inf).where(finite[0], torch.nan)
    return float(errors.view(len(_PLACES), -1).nanmedian(1).values.max())
