"""Wrong programs that the check has to catch, with the same number of samples: else it has too little power.

They verify what the draft might have proposed at the steps that the tool took, by the same laws: that costs
no forward.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sequoia_cli.check.tally import FIRST, Tally
from sequoia_cli.check.watched import Seen
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw, draw_children
from sequoia_cli.engine.verify import Drawn, verify
from sequoia_cli.engine.warp import probabilities

#: The first token of a step, and the rank of the child that it is: of the target's law, what the draft
#: proposes, children in the order they were drawn, and uniforms for each and for the token behind.
Choose = Callable[[Tensor, Tensor, Sequence[int], Sequence[float]], tuple[int, int | None]]


def right(
    law: Tensor, proposed: Tensor, children: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """As the engine does it, for a root and its children."""
    tokens = [0, *children]
    root = [Drawn(proposed, range(1, len(tokens)))]
    verdict = verify(tokens, lambda node: law, lambda node: [] if node else root, [0.0, *uniforms])
    if len(verdict.path) > 1:
        return tokens[verdict.path[1]], verdict.path[1] - 1
    return verdict.next_token, None


def forgetful(
    law: Tensor, proposed: Tensor, children: Sequence[int], uniforms: Sequence[float]
) -> tuple[int, int | None]:
    """Wrong: a rejected child leaves the target's law as it was, for its siblings and the token behind."""
    left = proposed.double().clone()
    for rank, (child, uniform) in enumerate(zip(children, uniforms, strict=False)):
        mass = float(left.sum())
        if mass > 0 and uniform * float(left[child]) < float(law[child]) * mass:
            return child, rank
        left[child] = 0
    return draw(law, uniforms[-1]), None


class Controls:
    """Two wrong programs, tallied as the tool is.

    `residual` forgets to update it. `reuse` verifies rightly, but draws the numbers of a text's first step
    again in all later ones (as published code does: once for each prompt).
    """

    def __init__(self, sampling: Sampling, seed: str, samples: int) -> None:
        self._random = random.Random(f"{seed} controls")
        self.residual = Tally(sampling, random.Random(), samples)
        self.reuse = Tally(sampling, random.Random(), samples)
        self._sampling = sampling

    def add(self, steps: Sequence[Seen], prompt: str | None = None) -> None:
        """Let both choose the first token of each step in the tool's place."""
        given: float | None = None
        given_anew: float | None = None
        noise: list[float] = []
        for number, step in enumerate(steps):
            if step.proposed is None:
                continue
            law, wanted = probabilities(step.logits[:1], self._sampling)[0], 2 * step.children + 1
            fresh = [self._random.random() for _ in range(wanted)]
            token, rank = _first(forgetful, law, step.proposed, fresh)
            given = self.residual.add_start(law, step.proposed, token, rank, given)
            if prompt is not None and number == 0:
                self.residual.count(prompt, FIRST, None, token, law)
            noise += fresh[len(noise) :]
            token, rank = _first(right, law, step.proposed, noise[:wanted])
            given_anew = self.reuse.add_start(law, step.proposed, token, rank, given_anew)


def _first(choose: Choose, law: Tensor, proposed: Tensor, noise: Sequence[float]) -> tuple[int, int | None]:
    count = len(noise) // 2
    drawn = torch.tensor([noise[:count]], dtype=torch.float64)
    (children,) = draw_children(proposed[None], (count,), drawn)
    return choose(law, proposed, children.tolist(), noise[count:])
