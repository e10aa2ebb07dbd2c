"""Decoder layers compiled by torch's own compiler, ahead of time, for this processor.

What is started between a layer's products costs as much as half of them. Compiled, a layer is one call: its
norms, rotation and activation are fused, and no Python runs between them but the products' calls. `FastBlock`
is the slow twin. A package serves all layers of one shape, takes half a minute to make, and is kept.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from sequoia_cli.core.paths import cache_dir
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.fast.block import Compiled, FastBlock, agrees
from sequoia_cli.engine.fast.linear import FastLinear, product, product_onto
from sequoia_cli.engine.fast.norms import FastNorm
from sequoia_cli.engine.loading.devices import cpu_name

#: Layers of fewer weights are not worth the half minute.
_WORTH_IT = 1_000_000

_ops: Any = torch.ops  # which has no types


@functools.cache
def _library() -> torch.library.Library:
    """The products as operators of their own, which the compiler calls and does not look into."""
    library = torch.library.Library("sequoia", "DEF")
    operands = "Tensor weight, Tensor? bias, Tensor? numbers, Tensor? scales"
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


class _Layer(nn.Module):
    """A `FastBlock` over the whole buffers of the cache, as a function of tensors alone."""

    def __init__(self, block: FastBlock) -> None:
        super().__init__()
        self.queries, self.keys, self.width, self.scale = block.queries, block.keys, block.width, block.scale
        self.activation = block.activation
        # As its dtype has it: some checkpoints tell it so, and others as it was written.
        self.eps = [float(norm.weight.new_tensor(norm.eps)) for norm in _norms(block)]
        self.present = [[operand is not None for operand in part.operands] for part in _products(block)]

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
        """(1, rows, hidden) in and out; `keys` and `values` get the new rows as the last that `mask` has."""
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


def _norms(block: FastBlock) -> tuple[Any, Any]:
    return block.before_attention, block.before_mlp


def _products(block: FastBlock) -> tuple[FastLinear, ...]:
    return block.into_attention, block.out_of_attention, block.into_mlp, block.out_of_mlp


def compile_blocks(model: nn.Module, announce: Callable[[str], None]) -> bool:
    """Let the blocks of a model on the CPU run compiled, where that pays; returns whether they do.

    `announce` is told what takes long, and why it could not be done: without a C++ compiler, mostly. What is
    not compiled runs as before.
    """
    _library()
    blocks = [block for block in model.modules() if isinstance(block, FastBlock) and _can_be(block)]
    kinds: dict[str, Compiled | None] = {}
    for block in blocks:
        block.constants = tuple(_constants(block))
        kind = _kind(block)
        if kind not in kinds:
            kinds[kind] = _compiled(block, kind, announce)
        block.compiled = kinds[kind]
    return any(kinds.values())


def _can_be(block: FastBlock) -> bool:
    if not all(isinstance(norm, FastNorm) and norm.weight.device.type == "cpu" for norm in _norms(block)):
        return False
    return sum(part.out_features * part.in_features for part in _products(block)) >= _WORTH_IT


def _constants(block: FastBlock) -> Iterable[Tensor]:
    yield from (norm.weight for norm in _norms(block))
    for part in _products(block):
        yield from (operand for operand in part.operands if operand is not None)


def _kind(block: FastBlock) -> str:
    """A digest of all that the package of a layer depends on, this file included."""
    layer = _Layer(block)
    told = (
        torch.__version__,
        (platform.machine(), cpu_name(), torch.backends.cpu.get_cpu_capability()),
        [(tuple(tensor.shape), tensor.dtype) for tensor in block.constants],
        (layer.queries, layer.keys, layer.width, layer.scale, layer.eps, layer.present),
        (type(block.activation), block.activation),
    )
    return hashlib.sha256(Path(__file__).read_bytes() + repr(told).encode()).hexdigest()[:16]


def _compiled(block: FastBlock, kind: str, announce: Callable[[str], None]) -> Compiled | None:
    """The layer's package, kept or made, if it gives what the layer does."""
    place = cache_dir() / "compiled" / f"{kind}.pt2"
    try:
        if not place.exists():
            announce("compiling the layers for this processor (once; about half a minute)")
            _make(block, place)
        # The public way to load it takes a second, nearly all of it for importing the compiler.
        package = torch._C._aoti.AOTIModelPackageLoader(str(place), "model", False, 1, -1)
        run: Compiled = package.run
        if _gives_the_same(block, run):
            return run
        announce("the compiled layers give other states: they are not used")
    except Exception as failure:  # whatever a compiler, a disk or another torch says
        reason = (str(failure).strip().splitlines() or [""])[0][:160]
        announce(f"the layers run uncompiled, which is slower: {type(failure).__name__}: {reason}")
    return None


def _make(block: FastBlock, place: Path) -> None:
    """Compile into a file aside, which is then renamed: an interrupted attempt leaves nothing."""
    rows, capacity, seen = 8, 64, 24
    dtype = block.out_of_mlp.operands[0].dtype

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    states = zeros(1, rows, block.into_attention.in_features)
    wide = torch.promote_types(dtype, torch.float32)
    turns = [zeros(1, rows, 1, block.width, dtype=wide) for _ in range(2)]
    cache = [zeros(1, block.keys, capacity, block.width) for _ in range(2)]
    mask = zeros(1, 1, rows * block.group, seen)
    # The layout of a packed weight is nothing that can be traced; its shape is all that matters.
    constants = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in block.constants]
    example = (states, *turns, *cache, mask, constants)
    any_number = torch.export.Dim.DYNAMIC
    of_rows, of_capacity = {1: any_number}, {2: any_number}
    varying = (of_rows, of_rows, of_rows, of_capacity, of_capacity, {2: any_number, 3: any_number})
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
        warnings.simplefilter("ignore")  # of torch about torch
        program = torch.export.export(
            _Layer(block), example, dynamic_shapes=(*varying, [None] * len(constants)), strict=False
        )
        made = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(Path(scratch) / place.name),
            inductor_configs={"cpp.dynamic_threads": True},
        )
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = place.with_suffix(f".{Path(scratch).name}.partial")
        aside.write_bytes(Path(made).read_bytes())
        aside.replace(place)


@torch.inference_mode()
def _gives_the_same(block: FastBlock, run: Compiled) -> bool:
    """Compare compiled and not compiled, for a prompt, three rows behind it, and one behind those."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 9, block.into_attention.in_features, generator=generator)
    states = states.to(block.out_of_mlp.operands[0].dtype)
    angles = torch.arange(9 * block.width, dtype=torch.float32).view(1, 9, block.width)
    rotation = angles.cos().to(states.dtype), angles.sin().to(states.dtype)
    mask = torch.zeros(1, 1, 3, 8, dtype=states.dtype)
    mask[..., 5:] = torch.full((3, 3), torch.finfo(states.dtype).min).triu(1)
    found = []
    for compiled in (None, run):
        block.compiled = compiled
        cache, outputs = TreeCache(block.layer_index + 1, 16), []
        for first, end, seen in ((0, 5, None), (5, 8, mask), (8, 9, None)):
            part = slice(first, end)
            turns = rotation[0][:, part], rotation[1][:, part]
            outputs.append(block(states[:, part], seen, position_embeddings=turns, cache=cache))
        found.append(torch.cat(outputs, 1))
    return agrees(found[1], found[0], states)
