"""Models of rounded weights run by the kernel: each product, and whole layers of the plan that it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from sequoia_cli.engine.fast.block import FastBlock, agrees, trial_outputs
from sequoia_cli.engine.fast.linear import SiblingLinear
from sequoia_cli.engine.fast.norms import FastNorm
from sequoia_cli.engine.fast.packages import Unusable
from sequoia_cli.engine.integer.arithmetic import BLOCK, spread_ids
from sequoia_cli.engine.integer.kernel import Kernel, load_kernel
from sequoia_cli.engine.integer.linear import IntegerLinear
from sequoia_cli.engine.integer.stack import stack_layers

#: How far a product may be off from its slow twin, relative to its largest result.
_PRODUCT_TOLERANCE = 1e-5

#: Outputs of a layer at which they are compared.
_COMPARED = 1024

_Norm = tuple[Tensor, float]


def _gelu_tanh(states: Tensor) -> Tensor:
    return gelu(states, approximate="tanh")


#: The activations that the kernel has, by their number there.
_ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (silu, _gelu_tanh)


def use_kernel(model: nn.Module, announce: Callable[[str], None]) -> bool:
    """Let the rounded layers of a model on the CPU run in the kernel; returns whether they do.

    In a fast model, whole decoder layers do. `announce` is told why not: without a C++ compiler, mostly. They
    run as before then, which is slow.
    """
    linears = [linear for linear in integer_layers(model) if linear.device.type == "cpu"]
    if not linears:
        return False
    try:
        kernel = load_kernel()
        require_right_products(kernel, linears)
    except (Unusable, OSError) as failure:
        announce(f"products of integers run without their kernel, which is slow: {failure}")
        return False
    if not kernel.has_threads and torch.get_num_threads() > 1:
        announce("products of integers run on one thread: the C++ compiler has no OpenMP")
    for linear in linears:
        linear.kernel = kernel
    for block in (module for module in model.modules() if isinstance(module, FastBlock)):
        _run_whole(block, kernel, announce)
    stack_layers(model)
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
    """Compare some outputs of a layer of each kind with its slow twin. Raises `Unusable` if they differ."""
    kinds = {
        (linear.out_features, linear.in_features, type(linear.weights), linear.weights.numbers.dtype): linear
        for linear in linears
    }
    generator = torch.Generator().manual_seed(0)
    for linear in kinds.values():
        inputs = torch.randn(3, linear.in_features, generator=generator)
        ids = spread_ids(linear.out_features, _COMPARED)
        some = linear.only(ids)
        some.kernel = None
        expected, found = some(inputs), kernel.product(linear, inputs)[:, ids]
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
    with torch.inference_mode():
        states, expected = trial_outputs(block, torch.float32)
        block.in_kernel = call
        _, found = trial_outputs(block, torch.float32)
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
