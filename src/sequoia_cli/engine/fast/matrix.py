"""The matrix of a linear layer, whichever module holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from sequoia_cli.engine.integer.linear import IntegerLinear


class Matrix(NamedTuple):
    """`weight` (outputs, width) and `bias` (outputs,)."""

    weight: Tensor
    bias: Tensor | None

    @property
    def out_features(self) -> int:
        return len(self.weight)


#: A rounded layer is used as its own matrix.
AnyMatrix = Matrix | IntegerLinear


def matrix_of(module: nn.Module) -> AnyMatrix | None:
    """The matrix of a layer that only multiplies by it; None for any other module."""
    if isinstance(module, IntegerLinear):
        return module
    if type(module) not in (nn.Linear, Conv1D):
        return None
    weight, bias = cast(Tensor, module.weight), cast("Tensor | None", module.bias)
    return Matrix(weight if type(module) is nn.Linear else weight.T, bias)


def matrix_named(parent: nn.Module, name: str) -> AnyMatrix:
    """The matrix of a submodule that is known to be a linear layer."""
    matrix = matrix_of(parent.get_submodule(name))
    assert matrix is not None
    return matrix


def stacked(matrices: Sequence[AnyMatrix]) -> AnyMatrix:
    """Several matrices over one input as one: their outputs side by side. All are rounded, or none."""
    rounded = [matrix for matrix in matrices if isinstance(matrix, IntegerLinear)]
    if rounded:
        assert len(rounded) == len(matrices)
        return IntegerLinear.stacked(rounded)
    wide = [matrix for matrix in matrices if isinstance(matrix, Matrix)]
    weight = torch.cat([matrix.weight for matrix in wide])
    if all(matrix.bias is None for matrix in wide):
        return Matrix(weight, None)
    biases = [
        matrix.bias if matrix.bias is not None else weight.new_zeros(len(matrix.weight)) for matrix in wide
    ]
    return Matrix(weight, torch.cat(biases))
