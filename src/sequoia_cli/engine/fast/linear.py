"""Linear layers with their weights laid out for the processor, and those of one input run as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sequoia_cli.engine.fast.matrix import Matrix, stacked
from sequoia_cli.engine.quantise import quantised

_ops: Any = torch.ops  # which has no types

#: Up to so many rows a product over 8-bit weights is faster than one over the packed wide ones.
_FEW_ROWS = 4


class FastLinear(nn.Module):
    """A layer with its matrix prepared: the fastest product there is for it where it lies.

    Quantised weights are kept as numbers and scales. For few rows, where reading them is what takes the time,
    the numbers are 8 bits wide; for many, as wide as the inputs. Both are exact, and scales come after the
    product, so the matrix is the same for any number of rows.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.weight.shape
        weight, numbers, scales = matrix.weight, None, None
        if matrix.quantised and gains_from_8_bits(weight.device, weight.dtype):
            numbers, scales = quantised(weight)
            weight = numbers.to(weight.dtype)
        packed = _packed(weight)
        #: What `product` and `product_onto` multiply by.
        self.operands: Operands = (
            packed if packed is not None else weight.contiguous(),
            matrix.bias,
            numbers,
            scales,
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., width) in, (..., outputs) out."""
        return product(inputs, *self.operands)

    def onto(self, states: Tensor, inputs: Tensor) -> Tensor:
        """`states` (..., outputs) plus what `forward` gives, rounded once where that is possible."""
        return product_onto(states, inputs, *self.operands)


#: A weight (outputs, width), packed where it can be, and its bias. With 8-bit numbers and their scales, the
#: weight is these numbers in its own dtype.
Operands = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def product(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, numbers: Tensor | None, scales: Tensor | None
) -> Tensor:
    """What `FastLinear` gives, by its `operands`."""
    if numbers is not None and scales is not None:
        found = _scaled(inputs, weight, numbers, scales)
        return found if bias is None else found.add_(bias)
    return _wide(inputs, weight, bias)


def _wide(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.is_mkldnn:
        found: Tensor = _ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
        return found
    return linear(inputs, weight, bias)


def product_onto(
    states: Tensor,
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    numbers: Tensor | None,
    scales: Tensor | None,
) -> Tensor:
    """The same, added to `states`."""
    if numbers is not None:
        return product(inputs, weight, bias, numbers, scales).add_(states)
    if weight.is_mkldnn:
        found: Tensor = _ops.mkldnn._linear_pointwise.binary(inputs, states, weight, bias, "add")
        return found
    return states + linear(inputs, weight, bias)


def _scaled(inputs: Tensor, weight: Tensor, numbers: Tensor, scales: Tensor) -> Tensor:
    if inputs.numel() > _FEW_ROWS * inputs.shape[-1]:
        return _wide(inputs, weight, None).mul_(scales)
    found = torch._weight_int8pack_mm(inputs.reshape(-1, inputs.shape[-1]), numbers, scales)
    return found.view(*inputs.shape[:-1], len(numbers))


class Siblings:
    """Layers that a module applies to one input, one after the other: the first runs them all."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.product = FastLinear(stacked(matrices))
        self.sizes = [len(matrix.weight) for matrix in matrices]
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

    def __init__(self, siblings: Siblings, index: int, matrix: Matrix) -> None:
        super().__init__()
        self.siblings, self.index = siblings, index
        self.out_features, self.in_features = matrix.weight.shape

    def forward(self, inputs: Tensor) -> Tensor:
        return self.siblings.part(self.index, inputs)


def _packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own layout; None where this processor or this torch has none."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return None
    ops = _ops.mkldnn
    supported = {
        torch.bfloat16: ops._is_mkldnn_bf16_supported,
        torch.float16: ops._is_mkldnn_fp16_supported,
    }
    if weight.dtype not in supported or not supported[weight.dtype]():
        return None
    packed: Tensor = ops._reorder_linear_weight(weight.contiguous(), None)
    return packed


def gains_from_8_bits(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether 8-bit weights save time: elsewhere torch's product over them is slower than the wide one."""
    return device.type == "cpu" and dtype == torch.bfloat16
