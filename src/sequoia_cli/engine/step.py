"""The result of one decoding step, and the time it took."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

#: Reasons for the last step: an end-of-text id, the token budget, the model's context.
STOP, LENGTH, CONTEXT = "stop", "length", "context"

#: Stages of a step.
PREFILL, DRAFT, TARGET, VERIFY, OTHER = "prefill", "draft", "target", "verify", "other"


@dataclass(frozen=True)
class Step:
    """One step: a target forward, its tokens, and its times.

    `tokens` are the new tokens, cut at an end-of-text id or the budget. `path` has the accepted nodes, root
    first, `ranks` their ranks among their siblings, the root's left out; `size` and `depth` are those of the
    step's tree, which shrinks near the end of the budget or context. With several drafts that is the merged
    tree. `seconds` has the time of each stage: draft, target, verify, other, and in the first step prefill;
    `level_seconds` has the draft's by level, `level_widths` the nodes run there; the levels of several drafts
    follow each other. `finish` is set on the last step.
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
    path: tuple[int, ...] = (0,)


class Stopwatch:
    """Seconds of a step's stages, lap by lap.

    An accelerator works through a queue. There laps end at events in the queue, which are read when the host
    has waited for results anyway: waiting at each lap would keep the queue empty.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._laps: list[tuple[str, float]] = []
        self._last = time.perf_counter()
        self._queued = [("", self._mark())] if device.type == "cuda" else []

    def lap(self, stage: str) -> None:
        """The time since the lap before belongs to `stage`."""
        if self._queued:
            self._queued.append((stage, self._mark()))
        else:
            self._laps.append((stage, self._since()))

    def awaited(self, stage: str) -> None:
        """The same where the host has just waited for everything in the queue, so that its own clock counts.

        Time that no event accounts for, as where the queue was empty, belongs to `stage`.
        """
        seconds = self._since()
        for (_, start), (marked, end) in itertools.pairwise(self._queued):
            self._laps.append((marked, start.elapsed_time(end) / 1000))
            seconds -= self._laps[-1][1]
        self._queued = []
        self._laps.append((stage, max(0.0, seconds)))

    def seconds(self, stage: str) -> tuple[float, ...]:
        """Seconds of each lap of `stage`, in order. Laps after the last `awaited` may be of the host only."""
        return tuple(seconds for named, seconds in self._laps if named == stage)

    def _since(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
