"""What a product of 8-bit integers is, in torch's own operations: the slow twin of `kernel.cpp`.

A weight is a whole number from -127 to 127 times the scale of its output. A row of inputs is rounded to such
numbers too, with a scale for each `GROUP` of its values. Sums within a group are exact, so a row's result
does not depend on the rows beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
#: Inputs that share a scale.
GROUP = 64
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


def product(inputs: Tensor, numbers: Tensor, scales: Tensor, outputs: int) -> Tensor:
    """(rows, outputs), float32, of (rows, width) inputs, `packed` numbers and scales of whole blocks."""
    given, given_scales = round_inputs(inputs)
    found = given.new_zeros(len(given), len(scales))
    quads = GROUP // QUAD
    for group in range(given.shape[1]):
        part = numbers[:, group * quads : (group + 1) * quads].transpose(1, 2).reshape(-1, GROUP)
        # Sums of a group stay below 2^24, so that they are exact in float32.
        found += given[:, group] @ part.float().T * given_scales[:, group, None]
    return (found * scales)[:, :outputs]


def packed(numbers: Tensor) -> Tensor:
    """(outputs, width) numbers in the order in which the kernel reads them: (blocks, quads, BLOCK, QUAD).

    Filled up with zeros to whole blocks and whole groups.
    """
    outputs, width = numbers.shape
    blocks, quads = -(-outputs // BLOCK), -(-width // GROUP) * (GROUP // QUAD)
    filled = numbers.new_zeros(blocks * BLOCK, quads * QUAD)
    filled[:outputs, :width] = numbers
    return filled.view(blocks, BLOCK, quads, QUAD).transpose(1, 2).contiguous()


def unpacked(numbers: Tensor, outputs: int, width: int) -> Tensor:
    """What `packed` was made of."""
    blocks, quads = numbers.shape[:2]
    return numbers.transpose(1, 2).reshape(blocks * BLOCK, quads * QUAD)[:outputs, :width]


def rows_of(numbers: Tensor, ids: Tensor, width: int) -> Tensor:
    """(ids, width): some of the rows of `packed` numbers."""
    found = numbers[ids // BLOCK, :, ids % BLOCK]
    return found.flatten(1)[:, :width]
