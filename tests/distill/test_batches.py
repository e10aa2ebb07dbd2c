"""Batches: every text once per epoch, within the limit, and aligned with what follows each token."""

import pytest
import torch

from sequoia_cli.distill.batches import batched, collate
from sequoia_cli.distill.corpus import Text


def texts_of(lengths):
    """Texts whose tokens, states and answers say which text and place they are of."""
    return [
        Text(
            torch.arange(length) + 100 * number,
            (torch.arange(length)[:, None] + 100.0 * number).expand(length, 3),
            (torch.arange(length) * 7 + number) % 3 == 0,
        )
        for number, length in enumerate(lengths)
    ]


def random_lengths(count, seed):
    return torch.randint(2, 60, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("count", [1, 2, 7, 200])
@pytest.mark.parametrize("tokens", [1, 64, 500, 100_000])
def test_every_text_comes_up_exactly_once_and_a_batch_keeps_to_its_size(count, tokens):
    texts = texts_of(random_lengths(count, count))
    for seed in range(3):
        batches = batched(texts, tokens, seed)
        assert sorted(index for batch in batches for index in batch) == list(range(count))
        for batch in batches:
            padded = len(batch) * max(len(texts[index]) for index in batch)
            assert len(batch) == 1 or padded <= tokens


def test_an_order_follows_from_its_seed_and_differs_from_epoch_to_epoch():
    texts = texts_of(random_lengths(200, 1))
    assert batched(texts, 300, 5) == batched(texts, 300, 5)
    first, second = batched(texts, 300, 5), batched(texts, 300, 6)
    assert {frozenset(batch) for batch in first} != {frozenset(batch) for batch in second}


def test_texts_of_like_lengths_are_put_together():
    texts = texts_of(random_lengths(400, 2))
    batches = batched(texts, 300, 0)
    padded = sum(len(batch) * max(len(texts[index]) for index in batch) for batch in batches)
    assert padded < 1.15 * sum(map(len, texts))


def test_the_place_before_each_token_of_an_answer_is_marked_and_padding_is_not():
    texts = texts_of([5, 9, 2])
    batch = collate(texts, torch.device("cpu"))
    assert batch.tokens.shape == batch.answer.shape == (3, 9)
    assert batch.hidden.shape == (3, 9, 3)
    assert batch.size == 16
    for row, text in enumerate(texts):
        length = len(text)
        assert torch.equal(batch.tokens[row, :length], text.tokens)
        assert torch.equal(batch.hidden[row, :length], text.hidden)
        marked = batch.answer[row].nonzero()[:, 0].tolist()
        assert marked == [place for place in range(length - 1) if text.answer[place + 1]]


def test_a_text_without_padding_is_the_same_alone_as_in_a_batch():
    texts = texts_of([4, 11])
    alone, both = collate(texts[1:], torch.device("cpu")), collate(texts, torch.device("cpu"))
    for name in ("tokens", "hidden", "answer"):
        assert torch.equal(getattr(alone, name)[0], getattr(both, name)[1])
