"""Values of the host on their way to the device, without a wait."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def upload(values: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    """`values` on `device`.

    A plain copy to an accelerator has the host wait for all that was queued before it; one from pinned
    memory is queued like any other work.
    """
    tensor = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.long)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=4096)
def indices(values: tuple[int, ...], device: torch.device) -> Tensor:
    """`values` on `device`, (count,) int64, made once: the same rows are read in every step."""
    return torch.tensor(values, dtype=torch.long, device=device)
