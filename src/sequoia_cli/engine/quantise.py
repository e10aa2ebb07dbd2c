"""Weights of 8 bits: each row of a matrix as whole numbers from -127 to 127 times a scale of its own.

The quantised model is then the model: what is decoded from it, with speculation or without, is its own text.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from sequoia_cli.engine.fast.matrix import matrix_of

_LARGEST = 127


class Quantised(NamedTuple):
    """`numbers` (outputs, width), int8, and `scales` (outputs,) in the dtype of the weights meant."""

    numbers: Tensor
    scales: Tensor

    @property
    def weight(self) -> Tensor:
        """The weights that they stand for, rounded to their dtype, as layers without numbers have them."""
        return self.numbers.to(self.scales.dtype) * self.scales[:, None]


def quantised(weight: Tensor) -> Quantised:
    """The numbers nearest to (outputs, width). Of their own `weight` they are the same numbers again."""
    scales = (weight.abs().amax(1).float() / _LARGEST).to(weight.dtype)
    # A row of zeros has the scale 0, and any numbers do.
    rounded = torch.round(weight.float() / scales.float()[:, None]).nan_to_num_(0)
    return Quantised(rounded.clamp_(-_LARGEST, _LARGEST).to(torch.int8), scales)


@torch.no_grad()
def quantise(model: nn.Module) -> None:
    """Round the weights of all linear layers of `model`, in place, and with them embeddings tied to one.

    The layers still hold them in their dtype. What they are is told by a mark, for `FastLinear`.
    """
    for module in model.modules():
        if (matrix := matrix_of(module)) is not None and not matrix.quantised:
            matrix.weight.copy_(quantised(matrix.weight).weight)
            module.quantised = True  # type: ignore[assignment]
