"""Texts written side by side: each is what the target alone would write, and knows, of it."""

import itertools

import pytest
import torch

from decoding import own_greedy
from distilling import from_start, own_states, target_of, written
from models import SUPPORTED
from sequoia_cli.distill.corpus import Corpus
from sequoia_cli.distill.scripts import GeneratedPart, GivenPart, Lengths, answers, documents
from sequoia_cli.distill.writing import write, write_corpus
from sequoia_cli.errors import SequoiaError
from tiny_tokenizers import byte_level

#: Far shorter than the texts below.
WINDOW = {family: {"sliding_window": 5} for family in ("mistral", "gemma2", "gemma3", "phi3")}
#: Texts of a few tokens, so that many start after others in their rows.
SHORT = [
    GivenPart((1, 7)),
    GeneratedPart(6, frozenset({3, 4, 5}), 1.0, True),
    GivenPart((9, 10)),
    GeneratedPart(5, frozenset(), 1.5, True),
]


def some_of_each(seed=0):
    """Short and long texts, sampled and greedy, in an order of their own."""
    generator = torch.Generator().manual_seed(seed)
    for _ in itertools.count():
        yield (SHORT, from_start(0.0, 9), from_start(1.5))[int(torch.randint(3, (), generator=generator))]


def the_same(done):
    """One script again and again, wherever a corpus stands."""
    return itertools.repeat(from_start())


def parts_of(text):
    """Tokens as lists, each with whether the text's answer holds it."""
    return text.tokens.tolist(), text.answer.tolist()


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_states_of_each_text_are_those_of_the_text_alone(family):
    # Mixtral's experts are not multiplied in float64, nor are Gemma 2's attention weights made in it.
    dtype = torch.float32 if family == "mixtral" else torch.float64
    close = {"mixtral": 1e-4, "gemma2": 1e-5}.get(family, 1e-9)
    target = target_of(family, dtype, **WINDOW.get(family, {}))
    texts = write(target, some_of_each(), 5, 40, torch.Generator().manual_seed(1))
    assert len(texts) > 8
    assert max(map(len, texts)) > 16
    for text in texts:
        assert torch.allclose(text.hidden, own_states(target, text.tokens), atol=close), len(text)


def test_a_text_that_saw_what_stood_before_it_in_its_row_would_be_seen(monkeypatch):
    target = target_of()
    forward = target.forward_rows
    monkeypatch.setattr(
        target,
        "forward_rows",
        lambda tokens, at, cache, mask: forward(tokens, at, cache, torch.ones_like(mask)),
    )
    texts = write(target, some_of_each(), 5, 40, torch.Generator().manual_seed(1))
    assert not all(torch.allclose(text.hidden, own_states(target, text.tokens), atol=1e-3) for text in texts)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2"])
def test_what_is_written_at_temperature_0_is_the_targets_own_greedy_continuation(family):
    target = target_of(family, **WINDOW.get(family, {}))
    prompts = [(5, 17, 3), (42,), (8, 11, 2, 40, 9)]
    scripts = (
        [GivenPart(prompt), GeneratedPart(12, frozenset(), 0.0, True)] for prompt in itertools.cycle(prompts)
    )
    texts = write(target, scripts, 3, 40, torch.Generator())
    whole = [text for text in texts if int(text.answer.sum()) == 12]
    assert len(whole) >= 6
    for text in whole:
        given = len(text) - 12
        assert text.tokens[given:].tolist() == own_greedy(target.model, text.tokens[:given].tolist(), 12)


def test_every_token_that_is_sampled_varies_the_first_one_too():
    texts = written(target_of(), from_start(1.5, most=3), rows=16, length=32)
    for place in (1, 2, 3):
        assert len({int(text.tokens[place]) for text in texts if len(text) > 3}) > 8


def test_a_greedy_part_after_a_sampled_one_takes_the_most_probable_token_from_its_first_on():
    target = target_of()
    script = [
        GivenPart((1,)),
        GeneratedPart(4, frozenset(), 3.0, False),
        GivenPart((9,)),
        GeneratedPart(4, frozenset(), 0.0, True),
    ]
    texts = [text for text in written(target, script, length=20) if len(text) == 10]
    assert len(texts) >= 8  # one of each row at least
    for text in texts:
        assert text.tokens[6:].tolist() == own_greedy(target.model, text.tokens[:6].tolist(), 4)


def test_given_parts_stand_where_they_should_and_limits_hold():
    script = [
        GivenPart((1, 7)),
        GeneratedPart(4, frozenset(), 1.0, False),
        GivenPart((9, 10)),
        GeneratedPart(3, frozenset(), 1.0, True),
    ]
    texts = [text for text in written(target_of(), script, length=44) if len(text) == 11]
    assert len(texts) >= 24
    for text in texts:
        tokens, answer = parts_of(text)
        assert (tokens[:2], tokens[6:8]) == ([1, 7], [9, 10])
        assert answer == [False] * 8 + [True] * 3


def test_a_part_ends_with_one_of_its_ends_and_that_is_not_given_again():
    ends = frozenset(range(2, 20))
    script = [
        GivenPart((1,)),
        GeneratedPart(30, ends, 1.0, False),
        GivenPart((5, 50)),
        GeneratedPart(30, ends, 1.0, True),
        GivenPart((6,)),
    ]
    texts = written(target_of(), script, rows=16, length=120)
    counts = {True: 0, False: 0}
    for text in texts:
        tokens, answer = parts_of(text)
        first = next((at for at, token in enumerate(tokens) if at and token in ends), None)
        if first is None or len(tokens) < first + 4 or not any(answer):
            continue  # cut by the end of the pass
        same = tokens[first] == 5
        counts[same] += 1
        start = first + (2 if same else 3)
        assert tokens[first + 1 : start] == ([50] if same else [5, 50])
        assert answer == [start <= at < start + sum(answer) for at in range(len(tokens))]
        assert not ends.intersection(tokens[start : start + sum(answer) - 1])
    assert min(counts.values()) > 0


def test_texts_that_the_end_of_the_pass_cuts_short_count_as_far_as_they_came():
    texts = written(target_of(), from_start(), rows=3, length=17)
    assert [len(text) for text in texts] == [17, 17, 17]
    assert all(len(text.tokens) == len(text.hidden) == len(text.answer) for text in texts)


def test_the_same_seed_writes_the_same_texts_and_another_writes_others():
    target = target_of()
    first, again, other = (
        [text.tokens.tolist() for text in written(target, SHORT, seed=seed)] for seed in (3, 3, 4)
    )
    assert first == again != other


def test_a_corpus_grows_pass_by_pass_each_with_random_numbers_of_its_own(tmp_path):
    corpus, heard, shards = Corpus(tmp_path / "c", {}), [], []
    options = {"rows": 4, "length": 12, "seed": 0, "on_tokens": heard.append}
    options["on_shard"] = lambda: shards.append(corpus.tokens)
    write_corpus(target_of(), the_same, corpus, 110, **options)
    # Two rows are enough for the 14 tokens that are left then.
    assert shards == [48, 96, 120]
    assert (corpus.shards, corpus.tokens, sum(heard)) == (3, 120, 120)
    texts = [tuple(text.tokens.tolist()) for text in corpus.texts()]
    assert len(set(texts)) == len(texts) == 10


def test_no_seed_writes_later_what_another_writes_first(tmp_path):
    target, found = target_of(), []
    for seed in (0, 1):
        corpus = Corpus(tmp_path / str(seed), {})
        write_corpus(target, the_same, corpus, 96, rows=4, length=12, seed=seed)
        found.append([tuple(text.tokens.tolist()) for text in corpus.texts()])
    assert not set(found[0]) & set(found[1])


def test_texts_come_in_the_order_they_began_in():
    # Rows of one long text, and of short ones: those that are finished first are the short ones.
    long, short = from_start(1.0), from_start(1.0, most=2)
    texts = write(
        target_of(), itertools.chain([long, short], itertools.repeat(short)), 2, 12, torch.Generator()
    )
    assert [len(text) for text in texts] == [3, 12, 3, 3, 3]


def test_no_two_texts_of_a_base_model_are_equal_at_temperature_0_either():
    target = target_of(vocab=300)
    scripts = documents(byte_level(), (), (0.0,), Lengths(opening=8, answer=12), seed=0)
    texts = write(target, scripts, 8, 63, torch.Generator().manual_seed(0))
    assert [len(text) for text in texts] == [21] * 24  # three in each row
    assert len({tuple(text.tokens[:9].tolist()) for text in texts}) == 24
    for text in texts:
        tokens, answer = parts_of(text)
        assert answer == [False] * 9 + [True] * 12
        assert tokens[9:] == own_greedy(target.model, tokens[:9], 12)


def test_a_corpus_ends_where_there_are_no_more_scripts_and_has_each_once(tmp_path):
    target = target_of()
    prompts = [(5,), (17, 3), (42, 8, 2), (11, 40), (9, 9, 9), (30,), (31,)]

    def greedy(done):
        return answers(prompts, (), (0.0,), Lengths(answer=6), 0, done)

    for rows in (4, 7, 9):  # some have a second script, none has, not all have one
        corpus, heard = Corpus(tmp_path / str(rows), {}), []
        write_corpus(target, greedy, corpus, 10_000, rows=rows, length=20, seed=0, on_tokens=heard.append)
        texts = corpus.texts()
        assert sorted(tuple(text.tokens[~text.answer].tolist()) for text in texts) == sorted(prompts)
        assert sum(heard) == corpus.tokens == 13 + 7 * 6
        for text in texts:
            given = len(text) - 6
            own = own_greedy(target.model, text.tokens[:given].tolist(), 6)
            assert text.tokens[given:].tolist() == own
            assert torch.allclose(text.hidden, own_states(target, text.tokens), atol=1e-9)


def test_logits_that_are_no_numbers_end_the_writing_in_words():
    target = target_of()
    with torch.no_grad():
        target.model.get_output_embeddings().weight[3, 3] = torch.nan
    with pytest.raises(SequoiaError, match="the target's logits are not finite") as caught:
        written(target)
    assert "float32" in caught.value.hint
