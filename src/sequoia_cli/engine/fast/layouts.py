"""Which layout of a weight multiplies few rows fastest here: measured once for each shape, and kept.

oneDNN's own layout wins on most processors, torch's plain one on some; a dtype's name does not tell. What
was measured is kept in the cache, so that a model multiplies the same way, and writes the same text, in every
run; without a cache that can be written, within a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from sequoia_cli.core.locks import locked
from sequoia_cli.core.parsing import parse_json
from sequoia_cli.core.paths import cache_dir
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.engine.loading.devices import cpu_features, cpu_name
from sequoia_cli.errors import SequoiaError

_ops: Any = torch.ops  # which has no types

PLAIN, PACKED = LAYOUTS = ("plain", "packed")

#: The numbers of rows that are timed: a plain step, and a small tree.
ROWS = (1, 8)
#: Each is timed so often, the layouts by turns, and the shortest time counts.
_TIMES = 7

#: Seconds by layout for each of `ROWS`.
Seconds = dict[str, list[float]]

#: Timings by file, for where the cache cannot be written: a shape must not be measured twice in a process.
_known: dict[str, dict[str, Seconds]] = {}
#: The shapes that this process has asked for.
_used: set[str] = set()


def laid_out(weight: Tensor) -> Tensor:
    """`weight` (outputs, width) in the layout whose product is the fastest where it lies."""
    weight = weight.contiguous()
    if not can_pack(weight):
        return weight
    packed = None
    seconds = _timings().get(name := _name(weight))
    if seconds is None:
        packed = pack(weight)
        seconds = _measured(weight, packed)
        _keep(name, seconds)
    _used.add(name)
    if faster(seconds) == PLAIN:
        return weight
    return pack(weight) if packed is None else packed


def faster(seconds: Seconds) -> str:
    """The layout with the shorter time; plain and speculative steps count alike."""
    return min(LAYOUTS, key=lambda layout: sum(seconds[layout]))


def used_timings() -> dict[str, Seconds]:
    """Of the shapes that this process has laid out."""
    return {name: seconds for name, seconds in _timings().items() if name in _used}


def _timings() -> dict[str, Seconds]:
    """What is known of this processor with these libraries and threads, by shape."""
    place = _place()
    if (found := _known.get(str(place))) is None:
        found = {}
        with suppress(OSError):
            found = _kept(place)
        _known[str(place)] = found
    return found


def multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(..., width) times a weight of either layout: (..., outputs)."""
    if weight.is_mkldnn:
        found: Tensor = _ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
        return found
    return linear(inputs, weight, bias)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN has a layout of its own for a weight on this processor, with this torch."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    ops = _ops.mkldnn
    supported = {
        torch.float32: lambda: True,
        torch.bfloat16: ops._is_mkldnn_bf16_supported,
        torch.float16: ops._is_mkldnn_fp16_supported,
    }
    return weight.dtype in supported and bool(supported[weight.dtype]())


def pack(weight: Tensor) -> Tensor:
    """The weight in that layout."""
    packed: Tensor = _ops.mkldnn._reorder_linear_weight(weight, None)
    return packed


@torch.inference_mode()
def _measured(weight: Tensor, packed: Tensor) -> Seconds:
    found: Seconds = {layout: [] for layout in LAYOUTS}
    for rows in ROWS:
        inputs = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
        best = dict.fromkeys(LAYOUTS, float("inf"))
        for _ in range(_TIMES):
            for layout, matrix in ((PLAIN, weight), (PACKED, packed)):
                start = time.perf_counter()
                multiply(inputs, matrix, None)
                best[layout] = min(best[layout], time.perf_counter() - start)
        for layout, seconds in best.items():
            found[layout].append(seconds)
    return found


def _keep(name: str, seconds: Seconds) -> None:
    _timings()[name] = seconds
    place = _place()
    with suppress(OSError, SequoiaError):  # a convenience: without it the next run measures again
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(place):
            write_atomically(place, json.dumps({**_kept(place), name: seconds}, indent=1, allow_nan=False))


def _kept(place: Path) -> dict[str, Seconds]:
    """What a file of `_keep` holds. What is damaged counts as nothing, so that it is measured again."""
    try:
        found = parse_json(place.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: seconds for name, seconds in found.items() if _is_whole(seconds)}


def _is_whole(seconds: Any) -> bool:
    if not isinstance(seconds, dict) or set(seconds) != set(LAYOUTS):
        return False
    return all(
        isinstance(values, list) and [type(value) for value in values] == [float] * len(ROWS)
        for values in seconds.values()
    )


def _name(weight: Tensor) -> str:
    outputs, width = weight.shape
    return f"{str(weight.dtype).removeprefix('torch.')} {outputs} x {width}"


def _place() -> Path:
    flags = sorted((name, os.environ.get(name)) for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"))
    told = (torch.__version__, platform.machine(), cpu_name(), cpu_features(), torch.get_num_threads(), flags)
    return cache_dir() / "compiled" / f"layouts-{hashlib.sha256(repr(told).encode()).hexdigest()[:16]}.json"
