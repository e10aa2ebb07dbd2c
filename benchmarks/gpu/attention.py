"""Attention with a tree mask: SDPA, which the engine runs, against others that give the same.

FlexAttention knows which blocks are masked; "apart" attends to the prefix without a mask and to the tree's
own rows with one, and merges both by the logarithms of their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu.clock import samples
from gpu.forwards import star
from sequoia_cli.engine.fast.attention import attend, folded
from sequoia_cli.engine.masks import TreeMask
from sequoia_cli.engine.nodes import tree_block


def time_attention(
    sizes: Sequence[int],
    context: int,
    shape: tuple[int, int, int],
    device: torch.device,
    dtype: torch.dtype,
    runs: int,
) -> dict[str, dict[int, Any]]:
    """Seconds of one layer by tree size; `shape` is (heads, key heads, head width).

    FlexAttention is compiled, which needs CUDA. Where one fails the reason stands in place of its times.
    Raises `RuntimeError` if the two parts merged are not the whole.
    """
    heads, key_heads, width = shape
    found: dict[str, dict[int, Any]] = {"sdpa": {}, "apart": {}, "flex": {}}
    for size in sizes:
        mask = TreeMask(tree_block(star(size)), capacity=context + size, dtype=dtype, device=device)
        allowed = mask.over(context + size)
        queries = torch.randn(1, heads, size, width, device=device, dtype=dtype)
        keys, values = torch.randn(2, 1, key_heads, context + size, width, device=device, dtype=dtype)
        whole = folded(allowed, heads // key_heads)

        def sdpa(q: Tensor = queries, k: Tensor = keys, v: Tensor = values, mask: Tensor = whole) -> Tensor:
            return attend(q, k, v, mask, None).transpose(1, 2)

        def parts(q: Tensor = queries, k: Tensor = keys, v: Tensor = values, mask: Tensor = whole) -> Tensor:
            return apart(q, k, v, mask[..., context:], context)

        if not torch.allclose(parts().float(), sdpa().float(), atol=0.02):
            raise RuntimeError("attention in two parts and at once differ")
        found["sdpa"][size] = samples(sdpa, device, runs)
        found["apart"][size] = samples(parts, device, runs)
        if device.type == "cuda":
            try:
                flex = _flex(queries, keys, values, allowed[0, 0] == 0)
                if not torch.allclose(flex(), sdpa(), atol=0.05):
                    raise RuntimeError("FlexAttention and SDPA differ")
                found["flex"][size] = samples(flex, device, runs)
            except Exception as error:  # whatever compiling for this device meets
                found["flex"][size] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return found


def apart(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, context: int) -> Tensor:
    """Attention (1, heads, rows, width) to the first `context` keys, and under `mask` to the others."""
    joined = queries.reshape(1, keys.shape[1], -1, queries.shape[-1])
    flash = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        if queries.device.type == "cpu"
        else torch.ops.aten._scaled_dot_product_flash_attention
    )
    before, before_sum = flash(joined, keys[:, :, :context], values[:, :, :context])[:2]
    scores = (joined @ keys[:, :, context:].mT).float() * queries.shape[-1] ** -0.5 + mask.float()
    own_sum = scores.logsumexp(-1)
    own = (scores - own_sum[..., None]).exp().to(values.dtype) @ values[:, :, context:]
    share = torch.sigmoid(own_sum - before_sum.view_as(own_sum))[..., None]
    return (before + (own - before) * share).to(queries.dtype).view_as(queries)


def _flex(queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(
        lambda text, head, row, column: allowed[row, column], None, None, *allowed.shape, device=keys.device
    )
    compiled = torch.compile(flex_attention, dynamic=False)
    grouped = queries.shape[1] != keys.shape[1]
    return lambda: compiled(queries, keys, values, block_mask=blocks, enable_gqa=grouped)
