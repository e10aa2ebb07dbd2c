"""Weights in blocks of GGUF: what rounds them to 4 bits, and their values as the kernel's numbers.

`Q4_1` has 4 bits, a scale and an offset for each 32 weights of an output, `Q8_0` 8 bits and a scale. Rounding
and the layout of a block are the `gguf` package's.
"""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray
from torch import Tensor

from sequoia_cli.engine.integer.arithmetic import SPAN
from sequoia_cli.engine.integer.weights import BySpan

Q4_1, Q8_0 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0
KINDS = (Q4_1, Q8_0)


def rounded(weight: Tensor, kind: GGMLQuantizationType) -> BySpan:
    """(outputs, width) weights in blocks of a kind of `KINDS`.

    Raises `ValueError` for a block whose scale or offset is beyond float16.
    """
    wide = weight.detach().to("cpu", torch.float32)
    missing = -wide.shape[1] % SPAN
    if missing:  # the last value again, so that it widens no block
        wide = torch.cat((wide, wide[:, -1:].expand(-1, missing)), 1)
    with np.errstate(over="ignore"):
        found = of_blocks(quants.quantize(wide.numpy(), kind), kind, weight.shape[1])
    return found.to(weight.device)


def of_blocks(blocks: NDArray[np.uint8], kind: GGMLQuantizationType, width: int) -> BySpan:
    """The weights of (outputs, bytes) of blocks of a kind of `KINDS`.

    Raises `ValueError` for a scale or an offset that is not finite.
    """
    ahead = 4 if kind == Q4_1 else 2  # bytes of scales and offsets, in each block
    whole = blocks.reshape(len(blocks), -(-width // SPAN), -1)
    halves = torch.from_numpy(np.ascontiguousarray(whole[..., :ahead]).view(np.float16))
    if not halves.isfinite().all():
        raise ValueError("a scale is not finite")
    numbers = whole[..., ahead:]
    # The first half of a span of 4 bits stands in the low halves of its bytes.
    numbers = np.concatenate((numbers & 15, numbers >> 4), -1) if kind == Q4_1 else numbers.view(np.int8)
    flat = torch.from_numpy(np.ascontiguousarray(numbers)).flatten(1)[:, :width]
    return BySpan(flat, halves[..., 0], halves[..., 1] if kind == Q4_1 else None)
