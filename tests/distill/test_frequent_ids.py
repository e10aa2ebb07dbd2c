"""Which ids are kept where target and draft have vocabularies of different sizes."""

import pytest
import torch

from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.frequent_ids import most_frequent


def text(*tokens):
    return Text(torch.tensor(tokens), torch.zeros(len(tokens), 4), torch.ones(len(tokens), dtype=torch.bool))


def test_tokens_beyond_the_ids_that_both_have_are_never_kept_and_not_covered():
    texts = [text(3, 14, 14, 14, 12), text(3, 5, 12)]
    ids, coverage = most_frequent(texts, 2, 12)
    assert (ids.tolist(), coverage) == ([3, 5], pytest.approx(3 / 8))
    ids, coverage = most_frequent(texts, None, 12)
    assert (ids.tolist(), coverage) == (list(range(12)), pytest.approx(3 / 8))
    assert most_frequent(texts, None, 15).coverage == 1
