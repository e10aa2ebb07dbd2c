"""What a layer multiplies by, apart from the module it is kept in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D


class Matrix(NamedTuple):
    """`weight` (outputs, width) and `bias` (outputs,); `quantised` weights are 8-bit numbers times scales."""

    weight: Tensor
    bias: Tensor | None
    quantised: bool = False


def matrix_of(module: nn.Module) -> Matrix | None:
    """The matrix of a layer that is a product with it and nothing else; None for any other module."""
    if type(module) not in (nn.Linear, Conv1D):
        return None
    weight, bias = cast(Tensor, module.weight), cast("Tensor | None", module.bias)
    weight = weight if type(module) is nn.Linear else weight.T
    return Matrix(weight, bias, getattr(module, "quantised", False))


def matrix_named(parent: nn.Module, name: str) -> Matrix:
    """That of a layer which is known to be a product."""
    matrix = matrix_of(parent.get_submodule(name))
    assert matrix is not None
    return matrix


def stacked(matrices: Sequence[Matrix]) -> Matrix:
    """Several matrices over one input as one: their outputs side by side."""
    weight = torch.cat([matrix.weight for matrix in matrices])
    quantised = all(matrix.quantised for matrix in matrices)
    if all(matrix.bias is None for matrix in matrices):
        return Matrix(weight, None, quantised)
    biases = [
        matrix.bias if matrix.bias is not None else weight.new_zeros(len(matrix.weight))
        for matrix in matrices
    ]
    return Matrix(weight, torch.cat(biases), quantised)
