"""How weights and inputs are rounded to small integers, and the order in which `kernel.cpp` reads weights.

A row of inputs is rounded to whole numbers from -127 to 127, with a scale for each `GROUP` of its values.
Sums of their products with weights of few bits are exact, so a row's result does not depend on the rows
beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
#: Inputs that share a scale.
GROUP = 64
#: Weights of one output that share a scale, where not all of an output's do.
SPAN = 32
#: Outputs whose weights lie side by side, and inputs of each that do.
BLOCK, QUAD = 16, 4


def round_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest numbers (outputs, width), int8, and scales (outputs,), float32.

    Rounding the weights that these represent gives the same numbers.
    """
    wide = weight.float()
    scales = wide.abs().amax(1) / LARGEST
    # A row of zeros has the scale 0, and any numbers do.
    numbers = torch.round(wide / scales[:, None]).nan_to_num_(0)
    return numbers.clamp_(-LARGEST, LARGEST).to(torch.int8), scales


def round_inputs(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers (rows, groups, GROUP) as float32 and scales (rows, groups) of (rows, width) inputs.

    The last group is filled up with zeros. A group with a value that is not finite has no finite scale.
    """
    rows, width = inputs.shape
    filled = inputs.new_zeros(rows, -(-width // GROUP) * GROUP, dtype=torch.float32)
    filled[:, :width] = inputs
    grouped = filled.view(rows, -1, GROUP)
    peaks = grouped.abs().amax(-1)
    # A number over a tensor is its reciprocal times the number in torch, which rounds twice.
    factors = torch.where(peaks > 0, torch.full_like(peaks, LARGEST) / peaks, 0)
    numbers = torch.round(grouped * factors[..., None]).nan_to_num_(0).clamp_(-LARGEST, LARGEST)
    return numbers, peaks / LARGEST + (grouped * 0).sum(-1)


def filled_up(values: Tensor, size: int, dimension: int = 0) -> Tensor:
    """`values` followed by zeros, so that a dimension is a multiple of `size`."""
    missing = -values.shape[dimension] % size
    if not missing:
        return values
    shape = [*values.shape]
    shape[dimension] = missing
    return torch.cat((values, values.new_zeros(shape)), dimension)


def spread_ids(outputs: int, most: int) -> Tensor:
    """At most `most` of so many outputs, from the first to the last, to compare a layer by."""
    return torch.linspace(0, outputs - 1, min(outputs, most)).long()


def packed(numbers: Tensor) -> Tensor:
    """(outputs, width) numbers in the order in which the kernel reads them: (blocks, quads, BLOCK, QUAD).

    Filled up with zeros to whole blocks and whole groups.
    """
    filled = filled_up(filled_up(numbers, GROUP, 1), BLOCK)
    return filled.unflatten(1, (-1, QUAD)).unflatten(0, (-1, BLOCK)).transpose(1, 2).contiguous()


def unpacked(numbers: Tensor, outputs: int, width: int, ids: Tensor | None = None) -> Tensor:
    """What `packed` was made of, or its rows `ids`."""
    if ids is not None:
        return numbers[ids // BLOCK, :, ids % BLOCK].flatten(1)[:, :width]
    return numbers.transpose(1, 2).flatten(2).flatten(0, 1)[:outputs, :width]
