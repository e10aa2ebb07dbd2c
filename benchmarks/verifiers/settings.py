"""The grid: how the target samples, and how each verifier's children are drawn there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from sequoia_cli.engine.draw import Noise, top_children
from sequoia_cli.engine.grow import Draw
from sequoia_cli.engine.verification.verifiers import Verifier
from sequoia_cli.engine.warp import Sampling

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
TOP_PS = (0.8, 0.9, 1.0)


@dataclass(frozen=True)
class Setting:
    """How the target samples, and whether the draft does as it (`as target`) or as `generate` has it."""

    sampling: Sampling
    draft: str = "as target"

    def draw(self, verifier: Verifier) -> Draw:
        """How a verifier's children are drawn; for a greedy target that is a limit."""
        if not self.sampling.greedy:
            return verifier.draw
        repeats = self.draft == "as target" and verifier.name in ("specinfer", "spectr")
        return _the_most_probable if repeats else top_children


def _the_most_probable(probs: Tensor, counts: Sequence[int], noise: Noise) -> list[Tensor]:
    """What draws with replacement are in the limit of temperature 0."""
    return [
        first.expand(count)
        for first, count in zip(top_children(probs, [1] * len(counts)), counts, strict=True)
    ]


def settings() -> list[Setting]:
    """All of the grid; at temperature 0 top-p makes no difference."""
    greedy = [Setting(Sampling()), Setting(Sampling(), "default")]
    return greedy + [Setting(Sampling(t, top_p=p)) for t in TEMPERATURES if t for p in TOP_PS]
