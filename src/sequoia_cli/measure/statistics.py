"""Totals over the steps of texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sequoia_cli.engine.step import Step

STAGES = ("draft", "target", "verify", "other")


@dataclass
class Speculation:
    """Totals over decoding steps. `add` adds a step, `total` sums several texts."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    fallbacks: int = 0
    accepted_by_depth: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    prefill_seconds: float = 0.0

    def add(self, step: Step, kept: int | None = None) -> None:
        """Add a step; only the first `kept` of its tokens count, all by default."""
        tokens = len(step.tokens) if kept is None else kept
        accepted = min(len(step.ranks), tokens)
        self.steps += 1
        self.tokens += tokens
        self.drafted += step.size - 1
        self.accepted += accepted
        self.fallbacks += step.fallbacks
        self.accepted_by_depth += [0] * (accepted - len(self.accepted_by_depth))
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1
        for stage in STAGES:
            self.seconds[stage] += step.seconds[stage]
        self.prefill_seconds += step.seconds.get("prefill", 0.0)

    @classmethod
    def of(cls, steps: Iterable[Step], tokens: int) -> Speculation:
        """The totals of a text's steps, counting its first `tokens` tokens."""
        whole = cls()
        for step in steps:
            whole.add(step, min(len(step.tokens), tokens - whole.tokens))
        return whole

    @classmethod
    def total(cls, parts: Iterable[Speculation]) -> Speculation:
        """The sum of several texts' totals."""
        whole = cls()
        for part in parts:
            whole.steps += part.steps
            whole.tokens += part.tokens
            whole.drafted += part.drafted
            whole.accepted += part.accepted
            whole.fallbacks += part.fallbacks
            whole.prefill_seconds += part.prefill_seconds
            whole.accepted_by_depth += [0] * (len(part.accepted_by_depth) - len(whole.accepted_by_depth))
            for depth, count in enumerate(part.accepted_by_depth):
                whole.accepted_by_depth[depth] += count
            for stage in STAGES:
                whole.seconds[stage] += part.seconds[stage]
        return whole

    @property
    def decode_seconds(self) -> float:
        """Seconds of all steps, prefill excluded."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of decoding; None before the first step."""
        return self.tokens / self.decode_seconds if self.steps else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per target forward, the bonus token included; None before the first step."""
        return self.tokens / self.steps if self.steps else None

    @property
    def acceptance_rate(self) -> float | None:
        """The share of drafted tokens that were accepted; None if none was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def to_dict(self) -> dict[str, object]:
        """The totals under the names that `generate --json` prints."""
        return {
            "steps": self.steps,
            "mean_acceptance_length": _rounded(self.mean_acceptance_length),
            "acceptance_rate": _rounded(self.acceptance_rate),
            "accepted_by_depth": self.accepted_by_depth,
            "drafted_tokens": self.drafted,
            "seconds_by_stage": {stage: round(seconds, 6) for stage, seconds in self.seconds.items()},
            "residual_fallbacks": self.fallbacks,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
