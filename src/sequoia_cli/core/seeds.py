"""Seeds made of other numbers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence


def mixed(*numbers: int) -> int:
    """A seed of 64 bits for these numbers together: of their sum, others would have the same."""
    return int.from_bytes(hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()[:8], "big")


def prompt_seeds(seed: int, prompts: Iterable[Sequence[int]]) -> list[int]:
    """A seed for each prompt (its ids): `seed` itself, or, for a prompt that came before, one of its own.

    So the same prompt given several times has several texts, and a prompt's text does not depend on other
    prompts.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    seeds = []
    for prompt in map(tuple, prompts):
        seeds.append(mixed(seed, seen[prompt]) if seen[prompt] else seed)
        seen[prompt] += 1
    return seeds
