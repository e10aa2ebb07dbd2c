"""Linear layers and embeddings whose weights are small integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sequoia_cli.engine.integer.arithmetic import BLOCK, filled_up
from sequoia_cli.engine.integer.weights import IntegerWeights

if TYPE_CHECKING:
    from sequoia_cli.engine.integer.kernel import Kernel

#: The weights of layers that run `unrounded`, by layer; None while layers round their inputs.
_weights: dict[IntegerLinear, Tensor] | None = None


@contextmanager
def unrounded() -> Iterator[None]:
    """Let layers multiply by their weights in bfloat16 without rounding the inputs, as a linear layer does.

    Two ways to compute a model are compared like this: with rounded inputs the smallest difference sends a
    value that lies half way between two numbers to the other one, and what comes of it hides a fault.
    """
    global _weights
    before, _weights = _weights, {}
    try:
        yield
    finally:
        _weights = before


class IntegerLinear(nn.Module):
    """A product with weights that are small integers over inputs that are rounded too (see `arithmetic`).

    With a `kernel` it is fast for few rows; without one it is the same sums in torch's operations. It stays
    in its own dtypes whatever its model is converted to.
    """

    padded_bias: Tensor | None

    def __init__(self, weights: IntegerWeights, bias: Tensor | None = None) -> None:
        """`bias` is (outputs,)."""
        super().__init__()
        self.weights = weights
        self.out_features, self.in_features = weights.outputs, weights.width
        self.register_buffer("padded_bias", None if bias is None else filled_up(bias.float(), BLOCK))
        self.kernel: Kernel | None = None

    @classmethod
    def stacked(cls, parts: Sequence[IntegerLinear]) -> IntegerLinear:
        """Several over one input as one: their outputs side by side. Their weights are of one kind."""
        bias = None
        if any(part.bias is not None for part in parts):
            none = [torch.zeros(part.out_features, device=part.device) for part in parts]
            bias = torch.cat(
                [zeros if part.bias is None else part.bias for part, zeros in zip(parts, none, strict=True)]
            )
        found = cls(type(parts[0].weights).stacked([part.weights for part in parts]), bias)
        found.kernel = parts[0].kernel
        return found

    def only(self, ids: Tensor) -> IntegerLinear:
        """The layer for some of its outputs, in the order of `ids`, as a copy."""
        found = type(self)(self.weights.only(ids), self.bias[ids] if self.bias is not None else None)
        found.kernel = self.kernel
        return found

    @property
    def device(self) -> torch.device:
        return self.weights.numbers.device

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., width) in, (..., outputs) out, in the inputs' dtype."""
        if _weights is not None:
            if self not in _weights:
                # For the memory: whatever is compared like this has the same weights.
                _weights[self] = self.weight.bfloat16()
            bias = self.bias.to(inputs.dtype) if self.bias is not None else None
            return linear(inputs, _weights[self].to(inputs.dtype), bias)
        rows = inputs.reshape(-1, self.in_features)
        if self.kernel is not None and rows.device.type == "cpu":
            found = self.kernel.product(self, rows)
        else:
            found = self.weights.product(rows)
            if self.bias is not None:
                found += self.bias
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
        return self.weights.rows(ids)

    @property
    def weight(self) -> Tensor:
        """The weights that the numbers represent, (outputs, width) in float32, made anew."""
        return self.weights.rows()

    @property
    def bias(self) -> Tensor | None:
        """(outputs,), float32."""
        return self.padded_bias[: self.out_features] if self.padded_bias is not None else None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> IntegerLinear:
        """As for any module, but that the bias keeps its dtype: the kernel reads it as it is."""
        bias = self.padded_bias
        super()._apply(fn, recurse)
        self.padded_bias = bias.to(self.device) if bias is not None else None
        return self


class IntegerEmbedding(nn.Module):
    """An embedding that reads the numbers of the output head it is tied to."""

    def __init__(self, head: IntegerLinear, dtype: torch.dtype) -> None:
        super().__init__()
        # Not a module of its own: the head has its place elsewhere.
        self._head = (head,)
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        # Of the dtype of the states, which changes with the model's. A model has the dtype of its parameters.
        self._like = nn.Parameter(torch.empty(0, dtype=dtype, device=head.device), requires_grad=False)

    def forward(self, ids: Tensor) -> Tensor:
        """(...) ids in, (..., width) out."""
        found = self._head[0].rows(ids.flatten())
        return found.to(self._like.dtype).view(*ids.shape, -1)

    @property
    def weight(self) -> Tensor:
        """The whole embedding, made anew."""
        return self._head[0].weight.to(self._like.dtype)
