"""Which ids a draft's head is kept for: the most frequent ones of the texts it is made for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_cli.distill.corpus import Text


class Vocabulary(NamedTuple):
    """Rising `ids`, and the share of the counted tokens that they cover."""

    ids: Tensor
    coverage: float


def most_frequent(texts: Sequence[Text], size: int | None, vocabulary: int) -> Vocabulary:
    """The `size` most frequent ids of the answers' tokens, of those below `vocabulary`; None keeps all.

    Tokens above count as not covered. A size above the vocabulary keeps all.
    """
    if size is None:
        size = vocabulary
    counts, total = torch.zeros(vocabulary, dtype=torch.long), 0
    for text in texts:
        tokens = text.tokens[text.answer].long()
        total += len(tokens)
        tokens = tokens[tokens < vocabulary]
        counts.index_add_(0, tokens, torch.ones_like(tokens))
    # Of ids that are equally frequent the lower ones: they are usually the older merges.
    ids = counts.sort(descending=True, stable=True).indices[:size].sort().values
    return Vocabulary(ids, float(counts[ids].sum()) / max(total, 1))
