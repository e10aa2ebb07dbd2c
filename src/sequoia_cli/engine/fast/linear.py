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

    Quantised weights are kept twice: as 8-bit numbers for few rows, where reading them is what takes the
    time, and wide for many.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.out_features, self.in_features = matrix.weight.shape
        self._bias = matrix.bias
        packed = _packed(matrix.weight)
        self._packed = packed is not None
        self._weight = packed if packed is not None else matrix.weight.contiguous()
        # In other dtypes, and elsewhere, torch's product over 8-bit weights is slower than the plain one.
        self._quantised = (
            quantised(matrix.weight) if matrix.quantised and _has_8_bits(matrix.weight) else None
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., width) in, (..., outputs) out."""
        if (few := self._of_few_rows(inputs)) is not None:
            return few
        if self._packed:
            return _ops.mkldnn._linear_pointwise(inputs, self._weight, self._bias, "none", [], "")
        return linear(inputs, self._weight, self._bias)

    def onto(self, states: Tensor, inputs: Tensor) -> Tensor:
        """`states` (..., outputs) plus what `forward` gives, rounded once where that is possible."""
        if (few := self._of_few_rows(inputs)) is not None:
            return few.add_(states)
        if self._packed:
            return _ops.mkldnn._linear_pointwise.binary(inputs, states, self._weight, self._bias, "add")
        return states + linear(inputs, self._weight, self._bias)

    def _of_few_rows(self, inputs: Tensor) -> Tensor | None:
        """The product by the 8-bit numbers; None where there are none, or too many rows for them."""
        if self._quantised is None or inputs.numel() > _FEW_ROWS * self.in_features:
            return None
        rows = inputs.reshape(-1, self.in_features)
        found = torch._weight_int8pack_mm(rows, self._quantised.numbers, self._quantised.scales)
        if self._bias is not None:
            found.add_(self._bias)
        return found.view(*inputs.shape[:-1], self.out_features)


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


def _has_8_bits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.bfloat16
