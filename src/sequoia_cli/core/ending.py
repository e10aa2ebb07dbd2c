"""Where a text ends."""

from __future__ import annotations

from collections.abc import Sequence


def cut(tokens: Sequence[int], eos_ids: Sequence[int], most: int) -> list[int]:
    """What of these tokens counts: up to an end of text, which counts too, and no more than `most`."""
    kept = list(tokens[:most])
    end = next((index for index, token in enumerate(kept) if token in eos_ids), None)
    return kept if end is None else kept[: end + 1]
