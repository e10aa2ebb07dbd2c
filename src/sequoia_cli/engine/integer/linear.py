"""Linear layers and embeddings whose weights are 8-bit numbers with a scale for each output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sequoia_cli.engine.integer.arithmetic import BLOCK, packed, product, round_weight, rows_of, unpacked

if TYPE_CHECKING:
    from sequoia_cli.engine.integer.kernel import Kernel


class IntegerLinear(nn.Module):
    """A product with rounded weights over inputs that are rounded too (see `arithmetic`).

    With a `kernel` it is fast for few rows; without one it is the same sums in torch's operations.
    """

    numbers: Tensor
    scales: Tensor
    bias: Tensor | None

    def __init__(self, numbers: Tensor, scales: Tensor, bias: Tensor | None = None) -> None:
        """Of (outputs, width) numbers, (outputs,) scales and (outputs,) bias."""
        super().__init__()
        self.out_features, self.in_features = numbers.shape
        room = -(-self.out_features // BLOCK) * BLOCK
        self.register_buffer("numbers", packed(numbers))
        self.register_buffer("scales", _filled(scales, room))
        self.register_buffer("bias", None if bias is None else _filled(bias, room))
        self.kernel: Kernel | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> IntegerLinear:
        """The nearest to (outputs, width) weights."""
        return cls(*round_weight(weight), bias)

    @classmethod
    def stacked(cls, parts: Sequence[IntegerLinear]) -> IntegerLinear:
        """Several over one input as one: their outputs side by side."""
        biases = [part.bias[: part.out_features] if part.bias is not None else None for part in parts]
        bias = None
        if any(found is not None for found in biases):
            bias = torch.cat(
                [
                    part.scales.new_zeros(part.out_features) if found is None else found
                    for part, found in zip(parts, biases, strict=True)
                ]
            )
        scales = torch.cat([part.scales[: part.out_features] for part in parts])
        return cls(torch.cat([part._rows() for part in parts]), scales, bias)

    def only(self, ids: Tensor) -> IntegerLinear:
        """The layer for some of its outputs, in the order of `ids`, as a copy."""
        bias = self.bias[ids] if self.bias is not None else None
        return type(self)(rows_of(self.numbers, ids, self.in_features), self.scales[ids], bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., width) in, (..., outputs) out, in the inputs' dtype."""
        rows = inputs.reshape(-1, self.in_features)
        if self.kernel is not None and rows.device.type == "cpu":
            found = self.kernel.product(self, rows)
        else:
            found = product(rows, self._rows(), self.scales[: self.out_features])
            if self.bias is not None:
                found += self.bias[: self.out_features]
        return found.to(inputs.dtype).view(*inputs.shape[:-1], self.out_features)

    def onto(self, states: Tensor, inputs: Tensor) -> Tensor:
        """`states` (..., outputs) plus what `forward` gives."""
        return states + self(inputs)

    def rows(self, ids: Tensor) -> Tensor:
        """The weights (ids, width), float32, of the outputs `ids`: (ids,) int64.

        Raises `IndexError` for an id that there is no output for.
        """
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.out_features:
            raise IndexError(f"ids reach from {int(ids.min())} to {int(ids.max())} of {self.out_features}")
        if self.kernel is not None and ids.device.type == "cpu":
            return self.kernel.rows(self, ids)
        return rows_of(self.numbers, ids, self.in_features) * self.scales[ids, None]

    @property
    def weight(self) -> Tensor:
        """The weights that the numbers stand for, (outputs, width) in float32, made anew."""
        return self._rows() * self.scales[: self.out_features, None]

    def _rows(self) -> Tensor:
        return unpacked(self.numbers, self.out_features, self.in_features)


class IntegerEmbedding(nn.Module):
    """An embedding that reads the numbers of the output head it is tied to."""

    _like: Tensor

    def __init__(self, head: IntegerLinear, dtype: torch.dtype) -> None:
        super().__init__()
        # Not a module of its own: the head has its place elsewhere.
        self._head = (head,)
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        # Of the dtype of the states, which changes with the model's.
        self.register_buffer("_like", head.scales.new_empty(0, dtype=dtype), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) ids in, (..., width) out."""
        found = self._head[0].rows(ids.flatten())
        return found.to(self._like.dtype).view(*ids.shape, -1)

    @property
    def weight(self) -> Tensor:
        """The whole embedding, made anew."""
        return self._head[0].weight.to(self._like.dtype)


def _filled(values: Tensor, room: int) -> Tensor:
    filled = values.new_zeros(room, dtype=torch.float32)
    filled[: len(values)] = values
    return filled
