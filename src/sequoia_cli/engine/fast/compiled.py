"""Decoder layers compiled by torch's own compiler, ahead of time, for this processor.

Launching the operations between a layer's products costs half as much as the products. Compiled, a layer is
one call: its norms, rotation and activation are fused, and no Python runs between them. `FastBlock` is the
slow twin. One package serves all layers of one shape; it takes half a minute to make, and is kept.
"""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from sequoia_cli.core.paths import cache_dir
from sequoia_cli.engine.fast import layer_function
from sequoia_cli.engine.fast.block import Compiled, FastBlock, agrees, trial_outputs
from sequoia_cli.engine.fast.layer_function import LayerFunction, define_products, norms, products
from sequoia_cli.engine.fast.norms import FastNorm
from sequoia_cli.engine.fast.packages import (
    Unusable,
    compiler,
    is_damaged,
    make_folder,
    require_own,
    unpacking,
)
from sequoia_cli.engine.integer.linear import IntegerLinear
from sequoia_cli.engine.loading.devices import cpu_features, cpu_name
from sequoia_cli.errors import out_of_memory

#: Layers of fewer weights are not worth the half minute.
_WORTH_IT = 1_000_000

#: Settings that change what is compiled.
_FLAGS = ("CXX", "CXXFLAGS", "CPPFLAGS", "CFLAGS", "LDFLAGS", "ATEN_CPU_CAPABILITY", "TORCHINDUCTOR_FREEZING")


def compile_blocks(model: nn.Module, announce: Callable[[str], None]) -> bool:
    """Let the blocks of a model on the CPU run compiled where that pays; returns whether some do.

    `announce` gets a message before what takes long, and the reason where compiling fails, mostly
    that there is no C++ compiler. Blocks that are not compiled run as before.
    """
    define_products()
    blocks = [block for block in model.modules() if isinstance(block, FastBlock) and _can_be(block)]
    kinds: dict[str, Compiled | None] = {}
    for block in blocks:
        block.constants = tuple(_constants(block))
        kind = _kind(block)
        if kind not in kinds:
            kinds[kind] = _compiled(block, kind, announce)
        run = kinds[kind]
        block.compiled = run if run is not None and _works(block, run, announce) else None
    return any(block.compiled for block in blocks)


def _can_be(block: FastBlock) -> bool:
    if isinstance(block.into_attention, IntegerLinear):
        return False
    if not all(isinstance(norm, FastNorm) and norm.weight.device.type == "cpu" for norm in norms(block)):
        return False
    if any(True for _ in block.activation.parameters()):  # each layer's own, and one package is for all
        return False
    return sum(part.out_features * part.in_features for part in products(block)) >= _WORTH_IT


def _constants(block: FastBlock) -> Iterable[Tensor]:
    yield from (norm.weight for norm in norms(block))
    for part in products(block):
        yield from (operand for operand in part.operands if operand is not None)


def _kind(block: FastBlock) -> str:
    """A digest of all that the package of a layer depends on, the code that makes it included."""
    layer = LayerFunction(block)
    told = (
        (torch.__version__, transformers.__version__, compiler()),
        (platform.machine(), cpu_name(), cpu_features(), torch.backends.cpu.get_cpu_capability()),
        sorted((name, value) for name, value in os.environ.items() if name in _FLAGS),
        [(tuple(tensor.shape), tensor.dtype) for tensor in block.constants],
        (layer.queries, layer.keys, layer.width, layer.scale, layer.eps, layer.present),
        (type(block.activation), block.activation),
    )
    sources = b"".join(Path(file).read_bytes() for file in (__file__, layer_function.__file__))
    return hashlib.sha256(sources + repr(told).encode()).hexdigest()[:16]


def _compiled(block: FastBlock, kind: str, announce: Callable[[str], None]) -> Compiled | None:
    """The layer's package, kept or made; None where that cannot be done."""
    try:
        place = cache_dir() / "compiled" / f"{kind}.pt2"
        if not place.exists() and compiler() is None:
            announce(
                "no C++ compiler was found: the layers run uncompiled, which is slower "
                "(install g++, or say --forward fast)"
            )
            return None
        make_folder(place.parent)
        with unpacking(place.parent):
            if place.exists():
                require_own(place)
                if not is_damaged(place):
                    return _loaded(place)
                announce(f"{place} is damaged and made again")
            announce("compiling the layers for this processor (once; about half a minute)")
            _make(block, place)
            return _loaded(place)
    except Unusable as failure:
        announce(f"the layers run uncompiled, which is slower: {failure}")
        return None
    except Exception as failure:  # whatever a compiler, a disk or another torch says
        if out_of_memory(failure):
            raise
        reason = (str(failure).strip().splitlines() or [""])[0][:160]
        announce(f"the layers run uncompiled, which is slower: {type(failure).__name__}: {reason}")
        return None


def _works(block: FastBlock, run: Compiled, announce: Callable[[str], None]) -> bool:
    """Whether a loaded package runs, and returns what the block returns without it."""
    try:
        if _gives_the_same(block, run):
            return True
        announce("a compiled layer returns wrong states: it is not used")
    except Exception as failure:  # a package of another machine or library may fail in any way
        if out_of_memory(failure):
            raise
        reason = (str(failure).strip().splitlines() or [""])[0][:160]
        announce(f"a compiled layer fails, so it is not used: {type(failure).__name__}: {reason}")
    finally:
        block.compiled = None
    return False


def _loaded(place: Path) -> Compiled:
    """The function in a package."""
    # torch's public loader takes a second, nearly all of it for importing the compiler.
    run: Compiled = torch._C._aoti.AOTIModelPackageLoader(str(place), "model", False, 1, -1).run
    return run


def _make(block: FastBlock, place: Path) -> None:
    """Compile into a temporary file, then rename it: an interrupted attempt leaves nothing."""
    rows, capacity, seen = 8, 64, 24
    dtype = products(block)[-1].operands[0].dtype

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(*shape, dtype=dtype)

    states = zeros(1, rows, block.into_attention.in_features)
    wide = torch.promote_types(dtype, torch.float32)
    turns = [zeros(1, rows, 1, block.width, dtype=wide) for _ in range(2)]
    cache = [zeros(1, block.keys, capacity, block.width) for _ in range(2)]
    mask = zeros(1, 1, rows * block.group, seen)
    # A packed weight cannot be traced; only its shape matters.
    constants = [torch.zeros(tensor.shape, dtype=tensor.dtype) for tensor in block.constants]
    example = (states, *turns, *cache, mask, constants)
    any_number = torch.export.Dim.DYNAMIC
    of_rows, of_capacity = {1: any_number}, {2: any_number}
    varying = (of_rows, of_rows, of_rows, of_capacity, of_capacity, {2: any_number, 3: any_number})
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
        warnings.simplefilter("ignore")  # of torch about torch
        program = torch.export.export(
            LayerFunction(block), example, dynamic_shapes=(*varying, [None] * len(constants)), strict=False
        )
        made = torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(Path(scratch) / place.name),
            inductor_configs={"cpp.dynamic_threads": True},
        )
        aside = place.with_suffix(f".{Path(scratch).name}.partial")
        aside.write_bytes(Path(made).read_bytes())
        aside.chmod(0o600)
        aside.replace(place)


@torch.inference_mode()
def _gives_the_same(block: FastBlock, run: Compiled) -> bool:
    """Compare the compiled layer with the same layer uncompiled."""
    dtype = products(block)[-1].operands[0].dtype
    block.compiled = None
    states, expected = trial_outputs(block, dtype)
    block.compiled = run
    return agrees(trial_outputs(block, dtype)[1], expected, states)
