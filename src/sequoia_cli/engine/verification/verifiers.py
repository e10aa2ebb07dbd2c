"""The verifiers by name: how each draws the children of a node and verifies the tree. All are lossless."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from sequoia_cli.engine.draw import draw_children, draw_independently, top_children
from sequoia_cli.engine.proposals import Draw
from sequoia_cli.engine.verification.at_once import (
    DeviceKSequential,
    DeviceMatch,
    DeviceResidual,
    DeviceRule,
    MakeRule,
)
from sequoia_cli.engine.verification.k_sequential import KSequential
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.traversal import verify_leaf_first
from sequoia_cli.engine.verification.walk import Drawn, Rule, Verdict, verify, verify_matching
from sequoia_cli.errors import BadInput

#: What `verify` is: tokens, target's probabilities, what was drawn, uniforms.
JudgeTree = Callable[
    [Sequence[int], Callable[[int], Tensor], Callable[[int], Sequence[Drawn]], Sequence[float]], Verdict
]


@dataclass(frozen=True)
class Verifier:
    """A rule of acceptance, with the way of drawing children that its proof needs.

    `several` says whether it takes the merged tree of several drafts. `on_device` is the rule for a walk on
    the device (`engine/verification/at_once.py`); None where the host is needed. `positional` says whether
    the acceptance of a child depends on its node alone, so that it can be measured node by node. `stops` says
    whether the number of a node's children may depend on what was read of the first ones
    (`engine/adaptive.py`).

    A greedy target accepts its own choice only, by each of these rules: all then take the draft's most
    probable children and are the same (`verify_greedy`).
    """

    name: str
    draw: Draw
    judge: JudgeTree
    several: bool = False
    on_device: MakeRule | None = None
    positional: bool = True
    stops: bool = True

    def check_drafts(self, count: int) -> None:
        """Raise `BadInput` for several drafts where the rule takes one."""
        if count > 1 and not self.several:
            raise BadInput(
                f"--verifier {self.name} takes one draft, and {count} are given",
                hint="sequoia and specinfer verify what several have proposed",
            )


def specinfer_rule(target: Tensor, count: int) -> Rule:
    """For `count` children drawn with replacement."""
    return ResidualRule(target, replacement=True)


def _without_replacement(target: Tensor, draft: Tensor, count: Tensor, uniform: Tensor) -> DeviceRule:
    return DeviceResidual(target, draft, replacement=False)


def _with_replacement(target: Tensor, draft: Tensor, count: Tensor, uniform: Tensor) -> DeviceRule:
    return DeviceResidual(target, draft, replacement=True)


def _k_sequential(target: Tensor, draft: Tensor, count: Tensor, uniform: Tensor) -> DeviceRule:
    return DeviceKSequential(target, draft, count)


def _matching(target: Tensor, draft: Tensor, count: Tensor, uniform: Tensor) -> DeviceRule:
    return DeviceMatch(target, uniform)


#: Without replacement, token by token from the root (arXiv 2402.12374, Algorithm 2).
SEQUOIA = Verifier("sequoia", draw_children, verify, several=True, on_device=_without_replacement)

#: With replacement: multi-step speculative sampling (arXiv 2305.09781, Theorem 4.2).
SPECINFER = Verifier(
    "specinfer",
    draw_independently,
    partial(verify, rule=specinfer_rule),
    several=True,
    on_device=_with_replacement,
)

#: With replacement: k-sequential selection (arXiv 2310.15141).
SPECTR = Verifier(
    "spectr", draw_independently, partial(verify, rule=KSequential), on_device=_k_sequential, stops=False
)

#: The draft's most probable children, and the target's own token if it is among them.
NAIVE = Verifier("naive", top_children, verify_matching, on_device=_matching)

#: Without replacement, path by path from the leaves (arXiv 2505.12398).
TRAVERSAL = Verifier("traversal", draw_children, verify_leaf_first, positional=False)

VERIFIERS = {each.name: each for each in (SEQUOIA, SPECINFER, SPECTR, NAIVE, TRAVERSAL)}


def verifier_named(name: str) -> Verifier:
    """The verifier of that name. Raises `BadInput` for an unknown one."""
    if name not in VERIFIERS:
        raise BadInput(f"--verifier is '{name}'; expected one of {', '.join(VERIFIERS)}")
    return VERIFIERS[name]
