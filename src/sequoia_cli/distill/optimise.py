"""Optimisers and learning-rate schedule of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def optimisers_for(parameters: Sequence[Tensor], rate: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest (AdamW alone took 1.5 times as many steps, see LOG.md)."""
    matrices = [parameter for parameter in parameters if parameter.ndim == 2]
    others = [parameter for parameter in parameters if parameter.ndim != 2]
    found: list[torch.optim.Optimizer] = []
    if matrices:
        # Scaled so that one learning rate suits both.
        found.append(torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    if others:
        found.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0))
    return found


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate: a short warm-up, then half a cosine down to 0."""
    warm = max(1, min(50, steps // 10))
    return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * step / steps))
