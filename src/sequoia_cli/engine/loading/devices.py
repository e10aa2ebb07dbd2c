"""Device and dtype as a user writes them, and what `auto` means on this machine."""

from __future__ import annotations

import platform

import torch

from sequoia_cli.errors import BadInput

_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
}


def parse_device(text: str) -> torch.device:
    """The device named `auto`, `cpu`, `cuda` or `cuda:N`; `auto` is the first CUDA device, else the CPU.

    Raises `BadInput` for another name, and for a CUDA device that this machine does not have.
    """
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if text == "auto":
        return torch.device("cuda:0" if available else "cpu")
    if text == "cpu":
        return torch.device("cpu")
    kind, _, index = text.partition(":")
    if kind != "cuda" or (text != "cuda" and not (index.isascii() and index.isdigit())):
        raise BadInput(f"device '{text}' is not known; expected auto, cpu, cuda or cuda:N")
    if not available:
        raise BadInput(
            f"device '{text}' was asked for, but torch {torch.__version__} finds no CUDA device here",
            hint="run on the CPU with --device cpu",
        )
    if int(index or 0) >= available:
        last = f"cuda:0 to cuda:{available - 1}" if available > 1 else "cuda:0 only"
        raise BadInput(
            f"device '{text}' was asked for, but this machine has {last}",
            hint="choose one of these, or run on the CPU with --device cpu",
        )
    return torch.device("cuda", int(index or 0))


def parse_dtype(text: str, device: torch.device) -> torch.dtype:
    """The dtype named `auto` or by its name; `auto` is the fastest half-width one `device` computes in.

    Raises `BadInput` for another name.
    """
    if text == "auto":
        return _auto_dtype(device)
    if text not in _DTYPES:
        raise BadInput(f"dtype '{text}' is not known; expected auto, {', '.join(_DTYPES)}")
    return _DTYPES[text]


def _auto_dtype(device: torch.device) -> torch.dtype:
    if device.type == "cuda":
        # Emulated bfloat16 on older cards is slower than their float16.
        native = torch.cuda.get_device_capability(device) >= (8, 0) or torch.version.hip is not None
        return torch.bfloat16 if native else torch.float16
    return torch.bfloat16 if _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    if not torch.backends.mkldnn.is_available():
        return False
    if platform.machine().lower() in ("x86_64", "amd64"):
        # oneDNN says yes to any AVX-512 machine and then emulates, so ask for the instructions themselves.
        return torch.cpu._is_avx512_bf16_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def cpu_name() -> str:
    """The processor's name where the system tells it, else its architecture."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_features() -> str:
    """What the processor can do, as the system lists it, else as torch knows it."""
    return _cpuinfo("flags") or _cpuinfo("Features") or torch.backends.cpu.get_cpu_capability()


def _cpuinfo(key: str) -> str | None:
    """The first line of that name in Linux's account of the processor."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(key)), None)
    except OSError:
        return None
