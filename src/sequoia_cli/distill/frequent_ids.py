"""The ids that a draft's output head keeps: the most frequent ones in the texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_cli.distill.corpus import Text


class FrequentIds(NamedTuple):
    """`ids` in ascending order, and the share of the counted tokens that they cover."""

    ids: Tensor
    coverage: float


def most_frequent(texts: Sequence[Text], size: int | None, vocabulary: int) -> FrequentIds:
    """The `size` ids below `vocabulary` that are most frequent in answers.

    A size of None, or above `vocabulary`, keeps all. Tokens of other ids count as not covered.
    """
    if size is None:
        size = vocabulary
    counts, total = torch.zeros(vocabulary, dtype=torch.long), 0
    for text in texts:
        tokens = text.tokens[text.answer].long()
        total += len(tokens)
        tokens = tokens[tokens < vocabulary]
        counts.index_add_(0, tokens, torch.ones_like(tokens))
    # Ties go to the lower id, usually the older merge of the tokenizer.
    ids = counts.sort(descending=True, stable=True).indices[:size].sort().values
    return FrequentIds(ids, float(counts[ids].sum()) / max(total, 1))
