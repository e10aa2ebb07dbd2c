"""Wrong programs, tested as the tool is, to show what the check finds with as many samples.

They verify what the draft might have proposed at the steps that the tool took, by the same distributions.
That costs no forward.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sequoia_cli.check.distribution import Distribution, distribution
from sequoia_cli.check.tally import FIRST, Tally
from sequoia_cli.check.watched import Seen
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw, draw_children
from sequoia_cli.engine.verification.walk import Drawn, verify

#: Returns the first token of a step and the rank of the child that it is. Takes the target's distribution,
#: the draft's, children in the order they were drawn, and uniforms:
#: one for each child and one for the token after them.
Choose = Callable[[Tensor, Tensor, Sequence[int], Sequence[float]], tuple[int, int | None]]


def right(
    probs: Tensor, proposed: Tensor, children: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """As the engine does it, for a root and its children."""
    tokens = [0, *children]
    root = [Drawn(proposed, range(1, len(tokens)))]
    verdict = verify(tokens, lambda node: probs, lambda node: [] if node else root, [0.0, *uniforms])
    if len(verdict.path) > 1:
        return tokens[verdict.path[1]], verdict.path[1] - 1
    return verdict.next_token, None


def forgetful(
    probs: Tensor, proposed: Tensor, children: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """Wrong: a rejected child does not change the target's distribution for what comes after it."""
    left = proposed.double().clone()
    for rank, (child, uniform) in enumerate(zip(children, uniforms, strict=False)):
        mass = float(left.sum())
        if mass > 0 and uniform * float(left[child]) < float(probs[child]) * mass:
            return child, rank
        left[child] = 0
    return draw(probs, uniforms[-1]), None


class Controls:
    """Two wrong programs, tallied as the tool is.

    `residual` forgets to update it. `reuse` verifies rightly, but draws the numbers of a text's first step
    again in all later ones (as published code does: once for each prompt).
    """

    def __init__(self, sampling: Sampling, seed: str, samples: int, prompts: Sequence[str] = ()) -> None:
        self._random = random.Random(f"{seed} controls")
        self.residual = Tally(sampling, random.Random(), samples, prompts)
        self.reuse = Tally(sampling, random.Random(), samples, prompts)
        self._sampling = sampling

    def add(self, steps: Sequence[Seen], prompt: str) -> None:
        """Let both choose the first token of each step in the tool's place."""
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
            token, rank = _first(forgetful, row.probs, proposed, fresh)
            residual_given = self.residual.add_start(row, [proposed], token, rank, residual_given)
            if number == 0:
                self.residual.count(prompt, FIRST, None, token, row, self.residual.samples)
            noise += fresh[len(noise) :]
            token, rank = _first(right, row.probs, proposed, noise[:wanted])
            reuse_given = self.reuse.add_start(row, [proposed], token, rank, reuse_given)


def _first(choose: Choose, probs: Tensor, proposed: Tensor, noise: Sequence[float]) -> tuple[int, int | None]:
    count = len(noise) // 2
    drawn = torch.tensor([noise[:count]], dtype=torch.float64)
    (children,) = draw_children(proposed[None], (count,), drawn)
    return choose(probs, proposed, children.tolist(), noise[count:])
