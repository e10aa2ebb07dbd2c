"""Timing on a device: the host's clock around work that it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def wait(device: torch.device) -> None:
    """Until everything queued is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def samples(work: Callable[[], object], device: torch.device, runs: int, warm_up: int = 3) -> list[float]:
    """Seconds of each of `runs` runs, after those that warm up (and record)."""
    taken = []
    for run in range(warm_up + runs):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        if run >= warm_up:
            taken.append(time.perf_counter() - start)
    return taken


def copy_samples(device: torch.device, size: int, runs: int) -> list[float]:
    """Bytes per second, read and written, of copying `size` bytes on the device."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    place = torch.empty_like(source)
    return [2 * size / seconds for seconds in samples(lambda: place.copy_(source), device, runs)]
