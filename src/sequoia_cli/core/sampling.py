"""How a text is drawn from a model's logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sequoia_cli.errors import BadInput


@dataclass(frozen=True)
class Sampling:
    """Temperature, top-k and top-p with the meaning and in the order of Hugging Face's `generate`.

    Temperature 0 is greedy; `top_k` 0 and `top_p` 1 are off. Raises `BadInput` for impossible values.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"temperature is {self.temperature}; expected a number from 0 (greedy) up")
        if self.top_k < 0:
            raise BadInput(f"top-k is {self.top_k}; expected a whole number from 0 (off) up")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top-p is {self.top_p}; expected a number above 0 and up to 1 (off)")

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0
