"""Batches of texts of similar length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from sequoia_cli.distill.corpus import Text

#: Texts are sorted by length within pools of this many batches: little padding, yet each epoch has other
#: batches.
_POOL = 16


@dataclass(frozen=True)
class Batch:
    """Texts padded on the right.

    `tokens` (texts, length); `hidden` (texts, length, width), the target's states after each token; `answer`
    (texts, length), true where the next token is part of an answer; `size`, the tokens without padding.
    """

    tokens: Tensor
    hidden: Tensor
    answer: Tensor
    size: int


def batched(texts: Sequence[Text], tokens: int, seed: int) -> list[list[int]]:
    """All texts as batches of indices, in an order drawn from `seed`.

    A batch has at most `tokens` tokens, padding included, or is a single text.
    """
    if not texts:
        return []
    chance = random.Random(seed)
    order = chance.sample(range(len(texts)), len(texts))
    mean = sum(map(len, texts)) / len(texts)
    pool = max(1, int(_POOL * tokens / mean))
    batches: list[list[int]] = []
    for first in range(0, len(order), pool):
        current: list[int] = []
        for index in sorted(order[first : first + pool], key=lambda index: len(texts[index])):
            if current and (len(current) + 1) * len(texts[index]) > tokens:
                batches.append(current)
                current = []
            current.append(index)
        batches.append(current)
    chance.shuffle(batches)
    return batches


def collate(texts: Sequence[Text], device: torch.device) -> Batch:
    """Collate these texts into one batch."""
    answer = pad_sequence([text.answer[1:] for text in texts], batch_first=True)
    return Batch(
        tokens=pad_sequence([text.tokens.long() for text in texts], batch_first=True).to(device),
        hidden=pad_sequence([text.hidden for text in texts], batch_first=True).to(device),
        answer=pad(answer, (0, 1)).to(device),
        size=sum(map(len, texts)),
    )
