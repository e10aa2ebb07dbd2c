"""Negative controls: wrong verifiers, tested like the tool, to show what the check detects with its samples.

They verify new proposals from the distributions recorded at the tool's steps, so they need no forward.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sequoia_cli.check.distribution import Distribution, distribution
from sequoia_cli.check.observed import ObservedStep
from sequoia_cli.check.tally import FIRST, Tally
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw, draw_children
from sequoia_cli.engine.verification.walk import Drawn, verify

#: A verifier of one level: (target's distribution, draft's distribution, children in the order they were
#: drawn, uniforms) -> (first token of the step, rank of the accepted child or None). There is one uniform for
#: each child and one for the token after them.
VerifyChildren = Callable[[Tensor, Tensor, Sequence[int], Sequence[float]], tuple[int, int | None]]


def verify_correctly(
    probs: Tensor, proposed: Tensor, children: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """The engine's verification of a root and its children."""
    tokens = [0, *children]
    root = [Drawn(proposed, range(1, len(tokens)))]
    verdict = verify(tokens, lambda node: probs, lambda node: [] if node else root, [0.0, *uniforms])
    if len(verdict.path) > 1:
        return tokens[verdict.path[1]], verdict.path[1] - 1
    return verdict.next_token, None


def verify_without_residual(
    probs: Tensor, proposed: Tensor, children: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """Wrong: the target's distribution is not replaced by the residual after a rejection."""
    remaining = proposed.double().clone()
    for rank, (child, uniform) in enumerate(zip(children, uniforms, strict=False)):
        mass = float(remaining.sum())
        if mass > 0 and uniform * float(remaining[child]) < float(probs[child]) * mass:
            return child, rank
        remaining[child] = 0
    return draw(probs, uniforms[-1]), None


class Controls:
    """Two negative controls, tallied like the tool.

    `residual` does not update the residual. `reuse` verifies correctly, but reuses the random numbers of a
    text's first step in all later ones, as published code does.
    """

    def __init__(self, sampling: Sampling, seed: str, samples: int, prompts: Sequence[str] = ()) -> None:
        self._random = random.Random(f"{seed} controls")
        self.residual = Tally(sampling, random.Random(), samples, prompts)
        self.reuse = Tally(sampling, random.Random(), samples, prompts)
        self._sampling = sampling

    def add(self, steps: Sequence[ObservedStep], prompt: str) -> None:
        """Let both controls choose the first token of each step."""
        residual_given: float | None = None
        reuse_given: float | None = None
        noise: list[float] = []
        for number, step in enumerate(steps):
            if not step.proposed:
                continue
            proposed, wanted = step.proposed[0], 2 * step.children + 1
            probs, tied = distribution(step.logits[:1], self._sampling)
            row = Distribution(probs[0], tied[0])
            fresh = [self._random.random() for _ in range(wanted)]
            token, rank = _first(verify_without_residual, row.probs, proposed, fresh)
            residual_given = self.residual.add_start(row, [proposed], token, rank, residual_given)
            if number == 0:
                self.residual.count(prompt, FIRST, None, token, row, self.residual.samples)
            noise += fresh[len(noise) :]
            token, rank = _first(verify_correctly, row.probs, proposed, noise[:wanted])
            reuse_given = self.reuse.add_start(row, [proposed], token, rank, reuse_given)


def _first(
    verify_children: VerifyChildren, probs: Tensor, proposed: Tensor, noise: Sequence[float]
) -> tuple[int, int | None]:
    count = len(noise) // 2
    drawn = torch.tensor([noise[:count]], dtype=torch.float64)
    (children,) = draw_children(proposed[None], (count,), drawn)
    return verify_children(probs, proposed, children.tolist(), noise[count:])
