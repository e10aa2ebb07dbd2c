"""Linear layers with weights laid out for the processor; layers over one input run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sequoia_cli.engine.fast.layouts import laid_out, multiply
from sequoia_cli.engine.fast.matrix import AnyMatrix, Matrix, stacked
from sequoia_cli.engine.integer.linear import IntegerLinear

_ops: Any = torch.ops  # which has no types


class FastLinear(nn.Module):
    """A linear layer whose weight is laid out for the processor where that makes the product faster."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.weight.shape
        #: What `product` and `product_onto` multiply by.
        self.operands: Operands = (laid_out(matrix.weight), matrix.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., width) in, (..., outputs) out."""
        return product(inputs, *self.operands)

    def onto(self, states: Tensor, inputs: Tensor) -> Tensor:
        """`states` (..., outputs) plus the result of `forward`, rounded once where that is possible."""
        return product_onto(states, inputs, *self.operands)


#: A prepared linear layer.
AnyLinear = FastLinear | IntegerLinear


def prepared(matrix: AnyMatrix) -> AnyLinear:
    """The layer of a matrix, prepared for speed."""
    return matrix if isinstance(matrix, IntegerLinear) else FastLinear(matrix)


#: A weight (outputs, width), packed where it can be, and its bias.
Operands = tuple[Tensor, Tensor | None]


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The result of a `FastLinear` with these `operands`."""
    return multiply(inputs, weight, bias)


def product_onto(states: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same, added to `states`."""
    if weight.is_mkldnn:
        found: Tensor = _ops.mkldnn._linear_pointwise.binary(inputs, states, weight, bias, "add")
        return found
    return states + linear(inputs, weight, bias)


class Siblings:
    """Layers that a module applies to one input one after the other: the first call runs them all."""

    def __init__(self, matrices: Sequence[AnyMatrix]) -> None:
        self.product = prepared(stacked(matrices))
        self.sizes = [matrix.out_features for matrix in matrices]
        self._input: Tensor | None = None
        self._parts: tuple[Tensor, ...] = ()

    def part(self, index: int, inputs: Tensor) -> Tensor:
        """The output of sibling `index`."""
        if inputs is not self._input:
            self._input, self._parts = inputs, self.product(inputs).split(self.sizes, -1)
        found = self._parts[index]
        if index == len(self.sizes) - 1:
            self._input, self._parts = None, ()
        return found


class SiblingLinear(nn.Module):
    """One of `Siblings`."""

    def __init__(self, siblings: Siblings, index: int, matrix: AnyMatrix) -> None:
        super().__init__()
        self.siblings, self.index = siblings, index
        self.out_features, self.in_features = matrix.out_features, siblings.product.in_features

    def forward(self, inputs: Tensor) -> Tensor:
        return self.siblings.part(self.index, inputs)
