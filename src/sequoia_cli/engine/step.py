"""What one decoding step brought and what it cost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

#: Reasons for the last step: an end-of-text id, the token budget, the model's context.
STOP, LENGTH, CONTEXT = "stop", "length", "context"


@dataclass(frozen=True)
class Step:
    """One step: a target forward, what it brought, and what it cost.

    `tokens` are the new tokens, cut at an end-of-text id or the budget. `ranks` are the child ranks of the
    accepted path; `size` and `depth` are those of the step's tree, which shrinks near the end of the budget
    or context. With several drafts that is the merged tree. `seconds` has the time of each stage: draft,
    target, verify, other, and in the first step prefill; `level_seconds` has the draft's by level,
    `level_widths` the nodes expanded there, one draft's levels behind another's. `finish` is set on the last
    step.
    """

    tokens: tuple[int, ...]
    ranks: tuple[int, ...]
    size: int
    depth: int
    seconds: Mapping[str, float]
    level_seconds: tuple[float, ...] = ()
    level_widths: tuple[int, ...] = ()
    fallbacks: int = 0
    finish: str | None = None


@dataclass
class Stopwatch:
    """Seconds since the last lap. On an accelerator a lap waits for the work that was queued."""

    device: torch.device
    _last: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.lap()

    def lap(self) -> float:
        """Seconds since the lap before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds
