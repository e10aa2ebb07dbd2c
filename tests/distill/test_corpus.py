"""The corpus on disk: it goes on where it stopped, and says what is wrong with one that it cannot use."""

import itertools

import pytest
import torch
from safetensors.torch import load_file, save_file

from distilling import from_start, target_of
from sequoia_cli.distill.corpus import Corpus, Text
from sequoia_cli.distill.vocabulary import most_frequent
from sequoia_cli.distill.writing import write_corpus
from sequoia_cli.engine.loading import tensors
from sequoia_cli.errors import BadInput, SequoiaError

CONDITIONS = {"target": "t", "temperatures": (0.0, 0.6), "seed": 0}


def text(*tokens, answer=None):
    """A text of these tokens, all of them an answer's but the first."""
    ids = torch.tensor(tokens)
    marks = torch.tensor(answer) if answer is not None else torch.arange(len(ids)) > 0
    return Text(ids, torch.randn(len(ids), 4, generator=torch.Generator().manual_seed(tokens[0])), marks)


def same(first, second):
    """Whether two lists of texts are equal in all that they hold."""
    return len(first) == len(second) and all(
        torch.equal(a.tokens.long(), b.tokens.long())
        and torch.equal(a.hidden, b.hidden)
        and torch.equal(a.answer, b.answer)
        for a, b in zip(first, second, strict=True)
    )


@pytest.fixture
def made(tmp_path):
    """A corpus of three shards, its texts, and its folder."""
    corpus = Corpus(tmp_path / "c", CONDITIONS)
    texts = [text(1, 2, 3), text(4, 5), text(6, 7, 8, 9), text(10, 11)]
    for part in (texts[:2], texts[2:3], texts[3:]):
        corpus.add(part)
    return corpus, texts, tmp_path / "c"


def test_texts_come_back_as_they_were_added_and_in_that_order(made):
    corpus, texts, folder = made
    assert same(corpus.texts(), texts)
    assert (corpus.tokens, corpus.shards) == (11, 3)
    again = Corpus(folder, CONDITIONS)
    assert same(again.texts(), texts)
    assert (again.tokens, again.shards, again.digest) == (11, 3, corpus.digest)
    again.add([text(12, 13)])
    assert same(Corpus(folder, CONDITIONS).texts(), [*texts, text(12, 13)])
    assert again.digest != corpus.digest


def test_states_keep_the_dtype_of_the_target(tmp_path):
    corpus = Corpus(tmp_path / "c", CONDITIONS)
    one = text(1, 2, 3)
    corpus.add([Text(one.tokens, one.hidden.bfloat16(), one.answer)])
    assert corpus.texts()[0].hidden.dtype == torch.bfloat16


def test_an_interrupted_corpus_goes_on_to_the_same_texts_as_a_whole_one(tmp_path):
    target, options = target_of(), {"rows": 4, "length": 12, "seed": 5}
    whole = Corpus(tmp_path / "whole", CONDITIONS)
    write_corpus(target, itertools.repeat(from_start()), whole, 140, **options)

    def interrupting(count):
        heard.append(count)
        if len(heard) == 20:  # within the second shard
            raise KeyboardInterrupt

    heard: list[int] = []
    part = Corpus(tmp_path / "part", CONDITIONS)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(target, itertools.repeat(from_start()), part, 140, **options, on_tokens=interrupting)
    again = Corpus(tmp_path / "part", CONDITIONS)
    assert (again.shards, again.tokens) == (1, 48)
    write_corpus(target, itertools.repeat(from_start()), again, 140, **options)
    assert same(again.texts(), whole.texts())
    assert again.digest == whole.digest


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-7]),
        lambda path: path.write_bytes(b"not a shard"),
        lambda path: save_file({"tokens": torch.arange(3)}, path),
        lambda path: save_file({**load_file(path), "answer": torch.ones(2, dtype=torch.bool)}, path),
    ],
    ids=["cut", "nonsense", "keys", "lengths"],
)
def test_a_damaged_shard_is_named_and_nothing_is_touched(made, damage):
    _, _, folder = made
    path = folder / "00001.safetensors"
    damage(path)
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(BadInput, match=r"00001\.safetensors is damaged") as caught:
        Corpus(folder, CONDITIONS)
    assert "remove it and the shards after it" in caught.value.hint
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before


def test_a_shard_that_is_missing_between_others_is_named(made):
    _, _, folder = made
    (folder / "00001.safetensors").unlink()
    with pytest.raises(BadInput, match=r"has 00002.safetensors and no 00001.safetensors"):
        Corpus(folder, CONDITIONS)


def test_other_conditions_are_named_with_both_values(made):
    _, _, folder = made
    with pytest.raises(BadInput) as caught:
        Corpus(folder, {**CONDITIONS, "seed": 7, "rows": 3})
    assert "made under other conditions: seed 0 there, 7 now; rows None there, 3 now" in caught.value.message
    assert "--corpus" in caught.value.hint
    assert same(Corpus(folder, CONDITIONS).texts(), made[1])


def test_a_folder_that_is_no_corpus_is_left_alone(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "mine.txt").write_text("mine")
    with pytest.raises(BadInput, match="exists and is no corpus"):
        Corpus(tmp_path / "c", CONDITIONS)
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["mine.txt"]
    with pytest.raises(BadInput, match=r"mine\.txt exists and is no corpus"):
        Corpus(tmp_path / "c" / "mine.txt", CONDITIONS)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_conditions_that_cannot_be_read_are_named(made, content):
    _, _, folder = made
    (folder / "corpus.json").write_text(content)
    with pytest.raises(BadInput, match=r"corpus\.json"):
        Corpus(folder, CONDITIONS)


def test_a_full_disk_loses_nothing_that_was_written(made, monkeypatch):
    corpus, texts, folder = made

    def full(contents, path, **options):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tensors, "save_file", full)
        with pytest.raises(
            SequoiaError, match=r"00003\.safetensors could not be written: No space"
        ) as caught:
            corpus.add([text(12, 13)])
    assert "what was saved before is kept" in caught.value.hint
    assert sorted(path.name for path in folder.iterdir()) == [
        "00000.safetensors",
        "00001.safetensors",
        "00002.safetensors",
        "corpus.json",
    ]
    again = Corpus(folder, CONDITIONS)
    again.add([text(12, 13)])
    assert same(again.texts(), [*texts, text(12, 13)])


def test_the_most_frequent_ids_of_answers_are_kept_in_rising_order():
    texts = [text(9, 5, 5, 5, 2, 7), text(9, 7, 2, 7, answer=[False, True, False, True])]
    ids, coverage = most_frequent(texts, 2, 12)
    assert (ids.tolist(), coverage) == ([5, 7], pytest.approx(6 / 7))
    # Of ids that come up equally often, here never, the lower ones.
    assert most_frequent(texts, 5, 12).ids.tolist() == [0, 1, 2, 5, 7]
    assert most_frequent(texts, None, 12).ids.tolist() == list(range(12))
    for size in (1, 13):
        with pytest.raises(BadInput, match=f"--draft-vocab is {size}; expected 2 to 12"):
            most_frequent(texts, size, 12)
