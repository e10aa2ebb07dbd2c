"""A `FastBlock` as a function of tensors only, as the compiler needs it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.fast.linear import FastLinear, product, product_onto

_ops: Any = torch.ops  # which has no types


@functools.cache
def define_products() -> torch.library.Library:
    """Register the products as operators, which the compiler calls without compiling them."""
    library = torch.library.Library("sequoia", "DEF")
    operands = "Tensor weight, Tensor? bias"
    library.define(f"product(Tensor inputs, {operands}) -> Tensor")
    library.define(f"product_onto(Tensor states, Tensor inputs, {operands}) -> Tensor")
    library.impl("product", product, "CompositeExplicitAutograd")
    library.impl("product_onto", product_onto, "CompositeExplicitAutograd")

    def shape(inputs: Tensor, weight: Tensor, *_: Tensor | None) -> Tensor:
        return inputs.new_empty((*inputs.shape[:-1], weight.shape[0]))

    def shape_onto(states: Tensor, *_: Tensor | None) -> Tensor:
        return torch.empty_like(states)

    torch.library.register_fake("sequoia::product", shape, lib=library)
    torch.library.register_fake("sequoia::product_onto", shape_onto, lib=library)
    return library


class LayerFunction(nn.Module):
    """A `FastBlock` over the whole buffers of the cache, as a function of tensors only."""

    def __init__(self, block: FastBlock) -> None:
        super().__init__()
        self.queries, self.keys, self.width, self.scale = block.queries, block.keys, block.width, block.scale
        self.activation = block.activation
        # Rounded to the norm's dtype, as the module itself does.
        self.eps = [float(norm.weight.new_tensor(norm.eps)) for norm in norms(block)]
        self.present = [[operand is not None for operand in part.operands] for part in products(block)]

    def forward(
        self,
        states: Tensor,
        cosines: Tensor,
        sines: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        constants: list[Tensor],
    ) -> Tensor:
        """(1, rows, hidden) in and out; the new rows of `keys` and `values` are the last ones of `mask`."""
        before_attention, before_mlp, *rest = constants
        into_attention, out_of_attention, into_mlp, out_of_mlp = self._operands(rest)
        texts, rows, _ = states.shape
        normed = _normed(states, before_attention, self.eps[0])
        heads = _ops.sequoia.product(normed, *into_attention).view(texts, rows, -1, self.width)
        turned, new_values = heads.split((self.queries + self.keys, self.keys), 2)
        first, second = turned.chunk(2, -1)
        turned = (turned * cosines + torch.cat((second, first), -1) * sines).to(states.dtype)
        queries, new_keys = turned.split((self.queries, self.keys), 2)
        end = mask.shape[-1]
        keys.narrow(2, end - rows, rows).copy_(new_keys.transpose(1, 2))
        values.narrow(2, end - rows, rows).copy_(new_values.transpose(1, 2))
        below = queries.transpose(1, 2).reshape(texts, self.keys, -1, self.width)
        seen = keys.narrow(2, 0, end), values.narrow(2, 0, end)
        taken = scaled_dot_product_attention(below, *seen, attn_mask=mask, scale=self.scale)
        taken = taken.view(texts, self.queries, rows, self.width).transpose(1, 2).reshape(texts, rows, -1)
        states = _ops.sequoia.product_onto(states, taken, *out_of_attention)
        gate, up = _ops.sequoia.product(_normed(states, before_mlp, self.eps[1]), *into_mlp).chunk(2, -1)
        return _ops.sequoia.product_onto(states, self.activation(gate) * up, *out_of_mlp)

    def _operands(self, tensors: list[Tensor]) -> Iterator[list[Tensor | None]]:
        remaining = iter(tensors)
        return ([next(remaining) if there else None for there in part] for part in self.present)


def _normed(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = states.to(weight.dtype)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(states.dtype)


def norms(block: FastBlock) -> tuple[Any, Any]:
    return block.before_attention, block.before_mlp


def products(block: FastBlock) -> tuple[FastLinear, ...]:
    """The products of a block whose weights are not rounded."""
    parts = block.into_attention, block.out_of_attention, block.into_mlp, block.out_of_mlp
    return cast("tuple[FastLinear, ...]", parts)
