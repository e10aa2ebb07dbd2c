"""`kernel.cpp` built for this processor, at its first use, and called on tensors.

It takes a few seconds to build and is kept beside the compiled layers. A library's name tells the digest of
all that it depends on and that of its own bytes, so that one that was cut short is never loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from sequoia_cli.core.paths import cache_dir
from sequoia_cli.engine.fast.packages import (
    Unusable,
    compiler,
    folder_for_libraries,
    holds_libraries,
    make_folder,
    require_own,
)
from sequoia_cli.engine.integer.arithmetic import BLOCK, GROUP, QUAD, SPAN
from sequoia_cli.engine.integer.linear import IntegerLinear
from sequoia_cli.engine.integer.weights import BySpan
from sequoia_cli.engine.loading.devices import cpu_features, cpu_name

_SOURCE = Path(__file__).with_name("kernel.cpp")
#: All that is compiled.
_SOURCES = (_SOURCE, *map(_SOURCE.with_name, ("products.h", "floats.h", "instructions.h")))

#: Nothing may be contracted or reordered: a row's results are the same wherever it stands.
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", "-w")

#: Instruction sets to build for where ATEN_CPU_CAPABILITY restricts torch.
_INSTRUCTIONS = {"avx2": ("-mavx2", "-mfma", "-mf16c"), "default": ()}


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("numbers", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("span_scales", ctypes.c_void_p),
        ("span_offsets", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int32),
        ("width", ctypes.c_int32),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("into_attention", _Matrix),
        ("out_of_attention", _Matrix),
        ("into_mlp", _Matrix),
        ("out_of_mlp", _Matrix),
        ("before_attention", ctypes.c_void_p),
        ("before_mlp", ctypes.c_void_p),
        ("before_attention_eps", ctypes.c_float),
        ("before_mlp_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("query_heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("activation", ctypes.c_int32),
    )


class LayersCall:
    """Decoder layers ready for the kernel, one or several in their order; keeps what it points to."""

    def __init__(self, kernel: Kernel, layers: Sequence[_Layer], kept: tuple[object, ...]) -> None:
        self.kernel, self.layers, self.kept = kernel, tuple(layers), kept
        self.seen = kernel.seen
        self._array = (_Layer * len(self.layers))(*self.layers)
        self._pointers = ctypes.c_void_p * len(self.layers)

    @classmethod
    def joined(cls, calls: Sequence[LayersCall]) -> LayersCall:
        """Several calls of one kernel as one, their layers one after the other."""
        layers = [layer for call in calls for layer in call.layers]
        return cls(calls[0].kernel, layers, tuple(call.kept for call in calls))

    def __call__(
        self,
        states: Tensor,
        rotation: tuple[Tensor, Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        end: int,
        seen: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """States (1, rows, hidden) after the layers, whose new keys and values are the rows before `end`.

        `keys` and `values` have those of each layer, (1, heads, capacity, width), all of one capacity.
        `rotation` are cosines and sines (1, rows, width); `seen` says which rows of the cache each row sees
        (see `Kernel.seen`), None that one row sees all of them.
        """
        found = states.clone(memory_format=torch.contiguous_format)
        cosines, sines = (turns.contiguous() for turns in rotation)
        columns, counts = (part.data_ptr() for part in seen) if seen is not None else (None, None)
        self.kernel.library.sequoia_layers(
            self._array,
            len(self.layers),
            torch.get_num_threads(),
            states.shape[1],
            found.data_ptr(),
            cosines.data_ptr(),
            sines.data_ptr(),
            self._pointers(*(part.data_ptr() for part in keys)),
            self._pointers(*(part.data_ptr() for part in values)),
            keys[0].shape[2],
            end,
            columns,
            counts,
        )
        return found


class Kernel:
    """The functions of a loaded library."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` where it cannot be loaded, `Unusable` where it is of another layout."""
        self.library = ctypes.CDLL(str(path))
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        self.library.sequoia_layout.argtypes = [pointer] * 4
        self.library.sequoia_product.argtypes = [pointer, number, number, pointer, pointer]
        self.library.sequoia_layers.argtypes = [
            *(pointer, number, number, number, pointer, pointer, pointer, pointer, pointer),
            *(number, number, pointer, pointer),
        ]
        self.library.sequoia_seen.argtypes = [pointer, number, number, number, pointer, pointer]
        self.library.sequoia_rows.argtypes = [pointer, number, pointer, pointer]
        for name in ("layout", "product", "layers", "seen", "rows"):
            getattr(self.library, f"sequoia_{name}").restype = None
        self.library.sequoia_instructions.restype = ctypes.c_char_p
        #: What its products are made of.
        self.has_threads = bool(self.library.sequoia_has_threads())
        self.instructions: str = self.library.sequoia_instructions().decode()
        layout = [ctypes.c_int32() for _ in range(4)]
        self.library.sequoia_layout(*map(ctypes.byref, layout))
        if [part.value for part in layout] != [GROUP, SPAN, BLOCK, QUAD]:
            raise Unusable(f"{path} has another layout of weights")

    def product(self, linear: IntegerLinear, inputs: Tensor) -> Tensor:
        """(rows, outputs), float32, of (rows, width) inputs."""
        given = inputs.to(torch.float32).contiguous()
        found = given.new_empty(len(given), linear.out_features)
        matrix = _matrix(linear)
        self.library.sequoia_product(
            ctypes.byref(matrix), torch.get_num_threads(), len(given), given.data_ptr(), found.data_ptr()
        )
        return found

    def rows(self, linear: IntegerLinear, ids: Tensor) -> Tensor:
        """The weights (ids, width), float32, of the outputs `ids`, (ids,) int64, all of which there are."""
        found = torch.empty(len(ids), linear.in_features)
        matrix, given = _matrix(linear), ids.contiguous()
        self.library.sequoia_rows(ctypes.byref(matrix), len(given), given.data_ptr(), found.data_ptr())
        return found

    def seen(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Of a mask (1, 1, rows, columns), additive or of booleans: the columns each row sees, and how many.

        (rows, columns) and (rows,), int32; a row of the first is filled up with anything.
        """
        if mask.dtype == torch.bool:
            mask = (~mask).to(torch.float32)
        rows, columns = mask.shape[-2:]
        mask = mask if mask.stride(-1) == 1 else mask.contiguous()
        found = torch.empty(rows, columns, dtype=torch.int32), torch.empty(rows, dtype=torch.int32)
        self.library.sequoia_seen(
            mask.data_ptr(), mask.stride(-2), rows, columns, found[0].data_ptr(), found[1].data_ptr()
        )
        return found

    def layer(
        self,
        linears: tuple[IntegerLinear, IntegerLinear, IntegerLinear, IntegerLinear],
        norms: tuple[tuple[Tensor, float], tuple[Tensor, float]],
        heads: tuple[int, int, int],
        scale: float,
        activation: int,
    ) -> LayersCall:
        """A layer of the products into and out of attention and mlp, the norms before both (weight, eps),
        (queries, keys, width) of its heads, the scale of its scores and the number of its activation."""
        weights = tuple(weight.contiguous() for weight, _ in norms)
        layer = _Layer(
            *map(_matrix, linears),
            *(weight.data_ptr() for weight in weights),
            *(eps for _, eps in norms),
            scale,
            *heads,
            activation,
        )
        return LayersCall(self, [layer], (linears, weights))


def _matrix(linear: IntegerLinear) -> _Matrix:
    weights = linear.weights
    scales = (
        (None, weights.scales, weights.offsets)
        if isinstance(weights, BySpan)
        else (weights.scales, None, None)
    )
    parts = (weights.numbers, *scales, linear.padded_bias)
    pointers = (part.data_ptr() if isinstance(part, Tensor) else None for part in parts)
    return _Matrix(*pointers, linear.out_features, linear.in_features)


@functools.cache
def load_kernel() -> Kernel:
    """The kernel for this processor, kept or built. Raises `Unusable`, saying why, where there is none."""
    if compiler() is None:
        raise Unusable("no C++ compiler was found (install g++)")
    kept, prefix = cache_dir() / "compiled", f"integers-{_kind()}-"
    for place in sorted(kept.glob(f"{prefix}*.so")):
        require_own(place)
        if place.name == _name(prefix, place.read_bytes()):
            with suppress(OSError):  # the folder may be noexec here, and not where it was put there
                return Kernel(place)
    if (folder := _folder_to_keep(kept)) is not None:
        return Kernel(_build(folder, prefix))
    with tempfile.TemporaryDirectory(prefix="sequoia-", dir=folder_for_libraries()) as folder_of_its_own:
        return Kernel(_build(Path(folder_of_its_own), prefix))  # loaded, it needs its file no more


def _folder_to_keep(kept: Path) -> Path | None:
    """The folder that libraries are kept in, made; None where it cannot be written to or loaded from."""
    try:
        make_folder(kept)
    except OSError:
        return None
    return kept if holds_libraries(kept) else None


def _name(prefix: str, content: bytes) -> str:
    return f"{prefix}{hashlib.sha256(content).hexdigest()[:16]}.so"


def _kind() -> str:
    """A digest of all that a library depends on."""
    told = (compiler(), platform.machine(), cpu_name(), cpu_features(), _instructions(), _FLAGS)
    content = b"".join(source.read_bytes() for source in _SOURCES)
    return hashlib.sha256(content + repr(told).encode()).hexdigest()[:16]


def _instructions() -> tuple[str, ...]:
    if (told := os.environ.get("ATEN_CPU_CAPABILITY", "")) in _INSTRUCTIONS:
        return _INSTRUCTIONS[told]
    return ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ("-mcpu=native",)


def _build(folder: Path, prefix: str) -> Path:
    """Compile aside and rename, so that an interrupted attempt leaves nothing."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as scratch:
        made = Path(scratch) / "kernel.so"
        # Threads need OpenMP: the same that torch has loaded. Without it the kernel runs on one.
        found = compiler()
        assert found is not None
        for threads in (("-fopenmp",), ()):
            command = [found[0], *_FLAGS, *_instructions(), *threads, "-o", str(made), str(_SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if done.returncode == 0:
                break
        else:
            raise Unusable(f"{command[0]} failed: {(done.stderr.strip().splitlines() or [''])[0][:160]}")
        made.chmod(0o600)
        return made.replace(folder / _name(prefix, made.read_bytes()))
