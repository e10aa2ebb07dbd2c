"""Attention with a tree mask: SDPA, which the engine runs, against FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gpu.clock import samples
from gpu.forwards import star
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

    FlexAttention is compiled, which needs CUDA. Where it fails the reason stands in place of its times.
    """
    heads, key_heads, width = shape
    found: dict[str, dict[int, Any]] = {"sdpa": {}, "flex": {}}
    for size in sizes:
        mask = TreeMask(tree_block(star(size)), capacity=context + size, dtype=dtype, device=device)
        allowed = mask.over(context + size)
        queries = torch.randn(1, heads, size, width, device=device, dtype=dtype)
        keys, values = torch.randn(2, 1, key_heads, context + size, width, device=device, dtype=dtype)

        def sdpa(q: Tensor = queries, k: Tensor = keys, v: Tensor = values, mask: Tensor = allowed) -> Tensor:
            grouped = heads != key_heads
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)

        found["sdpa"][size] = samples(sdpa, device, runs)
        if device.type == "cuda":
            try:
                flex = _flex(queries, keys, values, allowed[0, 0] == 0)
                if not torch.allclose(flex(), sdpa(), atol=0.05):
                    raise RuntimeError("FlexAttention and SDPA differ")
                found["flex"][size] = samples(flex, device, runs)
            except Exception as error:  # whatever compiling for this device meets
                found["flex"][size] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return found


def _flex(queries: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    blocks = create_block_mask(
        lambda text, head, row, column: allowed[row, column], None, None, *allowed.shape, device=keys.device
    )
    compiled = torch.compile(flex_attention, dynamic=False)
    grouped = queries.shape[1] != keys.shape[1]
    return lambda: compiled(queries, keys, values, block_mask=blocks, enable_gqa=grouped)
