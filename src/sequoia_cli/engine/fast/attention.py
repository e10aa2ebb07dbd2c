"""Attention over the rows of the cache in place, without a copy for each query head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

#: The name under which transformers finds this attention.
NAME = "sequoia"
#: Arguments of some models that this attention does not support.
_FOREIGN = ("softcap", "position_bias", "s_aux", "head_mask")


def grouped_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers' `sdpa`: (texts, heads, rows, width) in, contiguous (texts, rows, heads, width) out.

    A mask of fewer columns than there are keys is over the last of them.
    """
    key, value = under(attention_mask, key, value)
    if any(others.get(name) is not None for name in _FOREIGN):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is None and causal and query.shape[2] > 1:
        taken = scaled_dot_product_attention(
            query, key, value, scale=scaling, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )
        return taken.transpose(1, 2).contiguous(), None
    shared = query.shape[1] // key.shape[1]
    mask = attention_mask if attention_mask is None else folded(attention_mask, shared)
    return attend(query, key, value, mask, scaling).contiguous(), None


def under(mask: Tensor | None, *states: Tensor) -> tuple[Tensor, ...]:
    """The last of keys or values (texts, heads, rows, width), as many as the mask has columns."""
    if mask is None or mask.shape[-1] >= states[0].shape[2]:
        return states
    return tuple(part[:, :, -mask.shape[-1] :] for part in states)


def folded(mask: Tensor, shared: int) -> Tensor:
    """The mask (texts, 1, rows, keys) for `attend`: its rows again for each query head that shares keys."""
    return mask.repeat(1, 1, shared, 1) if shared > 1 else mask


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """(texts, rows, heads, width) of queries (texts, heads, rows, width) over keys and values of fewer heads.

    `mask` is `folded`. The queries that share keys are joined along the rows, so that a kernel reads the keys
    once.
    """
    texts, heads, rows, width = query.shape
    below = query.reshape(texts, key.shape[1], -1, width)
    taken = scaled_dot_product_attention(below, key, value, attn_mask=mask, scale=scale)
    return taken.view(texts, heads, rows, -1).transpose(1, 2)


AttentionInterface.register(NAME, grouped_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
