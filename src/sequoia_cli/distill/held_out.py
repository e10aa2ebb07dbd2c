"""Splitting texts into those to train on and those held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from sequoia_cli.core.seeds import mixed
from sequoia_cli.distill.corpus import Text
from sequoia_cli.errors import BadInput

#: The fewest different prompts: some are held out, the others are trained on.
LEAST_PROMPTS = 4
#: The share of prompts that is held out.
_HELD_OUT_SHARE = 0.05
#: The most texts held out: every evaluation runs all of them.
_MOST_HELD_OUT = 64


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Split texts into (held out, to train on). All texts of one prompt are on the same side.

    A prompt is everything before the first answer. About one prompt in twenty is held out, at least 2, and at
    most 64 of their texts are used. Whether a prompt is held out depends on the prompt, not on how many there
    are: a draft that is trained further on more texts must not be evaluated on texts it has trained on.
    Raises `BadInput` for fewer than 4 prompts with answers.
    """
    prompts: dict[tuple[int, ...], list[Text]] = {}
    for text in texts:
        if bool(text.answer.any()):
            first = int(text.answer.long().argmax())
            prompts.setdefault(tuple(text.tokens[:first].tolist()), []).append(text)
    if len(prompts) < LEAST_PROMPTS:
        raise BadInput(
            f"texts with answers to {len(prompts)} different prompts are too few to train on; "
            f"{LEAST_PROMPTS} are needed",
            hint="give more --tokens, or a longer --length",
        )
    ranks = {prompt: _uniform(prompt) for prompt in prompts}
    count = max(2, sum(rank < _HELD_OUT_SHARE for rank in ranks.values()))
    held = dict.fromkeys(sorted(prompts, key=ranks.__getitem__)[:count])  # a dict keeps the order
    # The first text of each prompt, then the second ones, ...: the first texts are of many prompts.
    rounds = zip_longest(*(prompts[prompt] for prompt in held))
    return (
        [text for each in rounds for text in each if text is not None][:_MOST_HELD_OUT],
        [text for prompt, group in prompts.items() if prompt not in held for text in group],
    )


def _uniform(prompt: Sequence[int]) -> float:
    """A number in [0, 1) derived from the prompt."""
    return mixed(*prompt) / (1 << 64)
