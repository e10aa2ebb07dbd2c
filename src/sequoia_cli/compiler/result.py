"""The result of compiling: the chosen tree, the candidates that it was chosen over, and how far it leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from sequoia_cli.compiler.families import TIE
from sequoia_cli.compiler.value import Rows, expected_tokens
from sequoia_cli.core.costs import StepCosts
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.plan import Prediction, TreePlan
from sequoia_cli.core.tree import TokenTree


@dataclass(frozen=True)
class Candidate:
    """A tree with what a step with it brings and costs, also by `parts`. `shape` names it for people."""

    shape: str
    tree: TokenTree
    tokens_per_step: float
    seconds: float
    parts: Mapping[str, float]

    @classmethod
    def of(
        cls, tree: TokenTree, profile: HardwareProfile, rows: Rows, shape: str | None = None
    ) -> Candidate | None:
        """`tree` with its value and cost; None where the profile does not cover it."""
        widths = [len(level) for level in tree.expanded]
        seconds = profile.costs.seconds(tree.size, widths)
        if not isfinite(seconds):
            return None
        if shape is None:
            shape = "no speculation" if tree.size == 1 else "chain" if tree.is_chain else "tree"
        parts = profile.model.parts(tree.size, widths)
        return cls(shape, tree, expected_tokens(tree, rows), seconds, parts)

    @property
    def seconds_per_token(self) -> float:
        """What the choice minimises."""
        return self.seconds / self.tokens_per_step


def slower_than_plain(chosen: Candidate, plain: Candidate) -> tuple[str, ...]:
    """A warning if a tree that was asked for is slower than plain decoding."""
    ratio = plain.seconds_per_token / chosen.seconds_per_token
    if ratio * (1 + TIE) >= 1:
        return ()
    return (f"the tree of {chosen.tree.size} nodes asked for is slower than plain decoding: {ratio:.3g}x",)


@dataclass(frozen=True)
class Lead:
    """How much faster the chosen tree is than another shape: 0.1 is 10%. No `interval` without counts."""

    shape: str
    share: float
    interval: tuple[float, float] | None = None

    @property
    def within_noise(self) -> bool:
        """Whether the counts do not tell which of the two is faster."""
        return self.interval is not None and self.interval[0] <= 0


@dataclass(frozen=True)
class Confidence:
    """Intervals of the prediction, which are lower by its `optimism`: the share that it is too high.

    A tree that is the best by some counts is on average less good on other prompts. `speedup` is over plain
    decoding. All are None without counts, or where nothing is speculated. `prompts` is the number they are
    over, 0 where trials were taken as independent.
    """

    tokens_per_step: tuple[float, float] | None = None
    speedup: tuple[float, float] | None = None
    optimism: float | None = None
    leads: tuple[Lead, ...] = ()
    prompts: int = 0

    def figures(self) -> dict[str, Any]:
        """What `Prediction` has of it, to three digits."""

        def short(ends: tuple[float, float] | None) -> tuple[float, float] | None:
            return ends and (float(f"{ends[0]:.3g}"), float(f"{ends[1]:.3g}"))

        return {
            "tokens_per_step_interval": short(self.tokens_per_step),
            "speedup_interval": short(self.speedup),
            "optimism": None if self.optimism is None else round(self.optimism, 3),
        }


@dataclass(frozen=True)
class CurvePoint:
    """The best tree of one size: its layers, tokens per step and seconds per step."""

    size: int
    depth: int
    tokens_per_step: float
    seconds_per_step: float


@dataclass(frozen=True)
class Choice:
    """The chosen tree, plain decoding, the runners-up (fastest first) and points of the curve chosen from.

    `not_considered` says what lay beyond the profile, `warnings` what the user should act on. `costs` are
    those of trees within the budget.
    """

    chosen: Candidate
    plain: Candidate
    runners_up: tuple[Candidate, ...]
    curve: tuple[CurvePoint, ...]
    not_considered: tuple[str, ...]
    warnings: tuple[str, ...]
    costs: StepCosts

    def speedup(self, candidate: Candidate) -> float:
        """Over plain decoding of the same engine."""
        return self.plain.seconds_per_token / candidate.seconds_per_token

    def plan(
        self,
        inputs: Mapping[str, Any],
        record: Mapping[str, Any],
        confidence: Confidence | None = None,
    ) -> TreePlan:
        """The choice as the plan that is written to a file, figures to six digits, intervals to three."""
        trusted: dict[str, Any] = confidence.figures() if confidence else {}
        return TreePlan(
            self.chosen.tree,
            Prediction(**self._figures(self.chosen) | trusted),
            inputs,
            tuple(
                {"shape": other.shape, "size": other.tree.size, "depth": other.tree.depth}
                | self._figures(other)
                for other in self.runners_up
            ),
            record,
            self.costs,
        )

    def _figures(self, candidate: Candidate) -> dict[str, float]:
        figures = {
            "tokens_per_step": candidate.tokens_per_step,
            "seconds_per_step": candidate.seconds,
            "speedup": self.speedup(candidate),
        }
        return {key: float(f"{value:.6g}") for key, value in figures.items()}
