"""Models of rounded weights run by the kernel: each product, and whole layers of the plan that it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.fast.block import FastBlock, agrees
from sequoia_cli.engine.fast.linear import SiblingLinear
from sequoia_cli.engine.fast.norms import FastNorm
from sequoia_cli.engine.fast.packages import Unusable
from sequoia_cli.engine.integer.arithmetic import BLOCK
from sequoia_cli.engine.integer.kernel import Kernel, load_kernel
from sequoia_cli.engine.integer.linear import IntegerLinear

#: How far a product may be off from its slow twin, relative to its largest result.
_PRODUCT_TOLERANCE = 1e-5

_Norm = tuple[Tensor, float]


def _gelu_tanh(states: Tensor) -> Tensor:
    return gelu(states, approximate="tanh")


#: The activations that the kernel has, by their number there.
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (silu, _gelu_tanh)


def use_kernel(model: nn.Module, announce: Callable[[str], None]) -> bool:
    """Let the rounded layers of a fast model on the CPU run in the kernel; returns whether they do.

    `announce` is told why not: without a C++ compiler, mostly. They run as before then, which is slow.
    """
    linears = [linear for linear in integer_layers(model) if linear.numbers.device.type == "cpu"]
    if not linears:
        return False
    try:
        kernel = load_kernel()
        require_right_products(kernel, linears)
    except (Unusable, OSError) as failure:
        announce(f"products of 8-bit integers run without their kernel, which is slow: {failure}")
        return False
    for linear in linears:
        linear.kernel = kernel
    for block in (module for module in model.modules() if isinstance(module, FastBlock)):
        _run_whole(block, kernel, announce)
    return True


def integer_layers(model: nn.Module) -> Iterator[IntegerLinear]:
    """All rounded layers, those that were joined with others over the same input included."""
    for module in model.modules():
        if isinstance(module, IntegerLinear):
            yield module
        elif isinstance(module, SiblingLinear) and isinstance(module.siblings.product, IntegerLinear):
            yield module.siblings.product


def kernel_of(model: nn.Module) -> Kernel | None:
    """The kernel that the rounded layers of a model run in; None where there is none."""
    return next((linear.kernel for linear in integer_layers(model) if linear.kernel is not None), None)


@torch.inference_mode()
def require_right_products(kernel: Kernel, linears: list[IntegerLinear]) -> None:
    """Compare one layer of each shape with its slow twin. Raises `Unusable` where they differ."""
    shapes = {(linear.out_features, linear.in_features): linear for linear in linears}
    generator = torch.Generator().manual_seed(0)
    for linear in shapes.values():
        inputs = torch.randn(3, linear.in_features, generator=generator)
        linear.kernel = None
        expected, found = linear(inputs), kernel.product(linear, inputs)
        if not (found - expected).abs().max() <= _PRODUCT_TOLERANCE * expected.abs().max():
            raise Unusable("its products are not those of its slow twin")


def _run_whole(block: FastBlock, kernel: Kernel, announce: Callable[[str], None]) -> None:
    linears = (block.into_attention, block.out_of_attention, block.into_mlp, block.out_of_mlp)
    norms = (block.before_attention, block.before_mlp)
    activation = _activation(block.activation)
    if activation is None or block.width % BLOCK or block.inner % BLOCK:
        return
    if not all(isinstance(linear, IntegerLinear) for linear in linears):
        return
    if not all(isinstance(norm, FastNorm) and norm.weight.dtype == torch.float32 for norm in norms):
        return
    call = kernel.layer(
        cast("tuple[IntegerLinear, IntegerLinear, IntegerLinear, IntegerLinear]", linears),
        cast("tuple[_Norm, _Norm]", tuple((norm.weight, norm.eps) for norm in norms)),
        (block.queries, block.keys, block.width),
        block.scale,
        activation,
    )
    states, expected = _outputs(block)
    block.in_kernel = call
    _, found = _outputs(block)
    if not agrees(found, expected, states, rounded=True):
        block.in_kernel = None
        announce("a layer gives other states in the kernel than it should: it runs without")


def _activation(module: nn.Module) -> int | None:
    """The number of the activation that a module computes; None for one that the kernel does not have."""
    places = torch.linspace(-8, 8, 257)
    if any(True for _ in module.parameters()):
        return None
    found = module(places)
    for number, known in enumerate(_ACTIVATIONS):
        if (found - known(places)).abs().max() <= 1e-6:
            return number
    return None


@torch.inference_mode()
def _outputs(block: FastBlock) -> tuple[Tensor, Tensor]:
    """Random states, and a block's for them: three rows after a prompt of five, and one row after those."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 9, block.into_attention.in_features, generator=generator)
    angles = torch.arange(9 * block.width, dtype=torch.float32).view(1, 9, block.width)
    mask = torch.zeros(1, 1, 3, 8)
    mask[..., 5:] = torch.full((3, 3), torch.finfo(torch.float32).min).triu(1)
    cache, outputs = TreeCache(block.layer_index + 1, 16), []
    for first, end, seen in ((0, 5, None), (5, 8, mask), (8, 9, None)):
        part = slice(first, end)
        rotation = angles[:, part].cos(), angles[:, part].sin()
        outputs.append(block(states[:, part], seen, position_embeddings=rotation, cache=cache))
    return states, torch.cat(outputs, 1)
