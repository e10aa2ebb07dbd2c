"""The corpus on disk: it resumes where it stopped, and an unusable one is refused with the reason."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from distilling import target_of
from sequoia_cli.core.seeds import mixed
from sequoia_cli.distill.corpus import Corpus, Text
from sequoia_cli.distill.frequent_ids import most_frequent
from sequoia_cli.distill.scripts import Lengths, answers, chats, documents
from sequoia_cli.distill.writing import write_corpus
from sequoia_cli.engine.loading import tensors
from sequoia_cli.errors import BadInput, SequoiaError
from tiny_tokenizers import CHAT, byte_level

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


def scripts_of(kind):
    """Scripts for a target of 300 ids after a number of texts, as the command makes them."""
    temperatures, lengths = (0.0, 0.7), Lengths(user=6, opening=4, answer=8)
    if kind == "answers":
        prompts = [(5,), (6, 7), (8, 9, 10), (11,), (12, 13)]
        return lambda done: answers(prompts, (2,), temperatures, lengths, 5, done)
    tokenizer, make = byte_level(chat_template=CHAT), {"chats": chats, "documents": documents}[kind]
    return lambda done: make(tokenizer, (2,), temperatures, lengths, mixed(5, done))


@pytest.mark.parametrize("kind", ["chats", "documents", "answers"])
def test_an_interrupted_corpus_resumes_to_the_same_texts_as_a_whole_one(tmp_path, kind):
    target, options = target_of(vocab=300), {"rows": 4, "length": 24, "seed": 5}
    whole = Corpus(tmp_path / "whole", CONDITIONS)
    write_corpus(target, scripts_of(kind), whole, 260, **options)
    assert whole.shards >= 3

    def interrupting(count):
        heard.append(count)
        if len(heard) == 40:  # within the second shard
            raise KeyboardInterrupt

    heard: list[int] = []
    part = Corpus(tmp_path / "part", CONDITIONS)
    with pytest.raises(KeyboardInterrupt):
        write_corpus(target, scripts_of(kind), part, 260, **options, on_tokens=interrupting)
    again = Corpus(tmp_path / "part", CONDITIONS)
    assert again.shards == 1
    write_corpus(target, scripts_of(kind), again, 260, **options)
    assert same(again.texts(), whole.texts())
    assert again.digest == whole.digest


def test_the_first_texts_are_as_few_as_have_so_many_tokens(made, tmp_path):
    corpus, texts, _ = made  # of 3, 2 | 4 | 2 tokens
    for tokens, count in ((1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (9, 3), (10, 4), (11, 4), (500, 4)):
        first = corpus.first(tokens)
        assert same(first.texts(), texts[:count])
        assert (first.count, first.tokens) == (count, sum(map(len, texts[:count])))
    assert corpus.first(500).digest == corpus.digest
    alone = Corpus(tmp_path / "alone", CONDITIONS)
    alone.add(texts[:1])
    assert corpus.first(2).digest == alone.digest != corpus.digest
    assert (corpus.tokens, corpus.shards, corpus.count) == (11, 3, 4)


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
        Corpus(folder, {**CONDITIONS, "seed": 7, "length": 3})
    assert (
        "made under other conditions: seed 0 there, 7 now; length None there, 3 now" in caught.value.message
    )
    assert "--corpus" in caught.value.hint
    assert same(Corpus(folder, CONDITIONS).texts(), made[1])


def test_how_many_rows_were_written_at_a_time_is_no_condition_of_a_corpus_that_noted_it(made):
    corpus, texts, folder = made
    noted = json.loads((folder / "corpus.json").read_text())
    (folder / "corpus.json").write_text(json.dumps({**noted, "rows": 128}))
    again = Corpus(folder, CONDITIONS)
    assert same(again.texts(), texts)
    assert again.digest == corpus.digest


def test_texts_of_other_weights_are_refused_and_older_ones_that_do_not_state_them_are_taken(made, tmp_path):
    _, texts, folder = made
    assert same(Corpus(folder, {**CONDITIONS, "target_weights": "sha256:1"}).texts(), texts)
    Corpus(tmp_path / "new", {**CONDITIONS, "target_weights": "sha256:1"}).add(texts)
    with pytest.raises(BadInput, match="target_weights sha256:1 there, sha256:2 now"):
        Corpus(tmp_path / "new", {**CONDITIONS, "target_weights": "sha256:2"})


def test_a_corpus_without_texts_takes_on_other_conditions(tmp_path):
    Corpus(tmp_path / "c", CONDITIONS)
    corpus = Corpus(tmp_path / "c", {**CONDITIONS, "seed": 7})
    corpus.add([text(1, 2)])
    assert Corpus(tmp_path / "c", {**CONDITIONS, "seed": 7}).tokens == 2
    with pytest.raises(BadInput, match="seed 7 there, 0 now"):
        Corpus(tmp_path / "c", CONDITIONS)


@pytest.mark.parametrize("content", [{"seed": 0}, {**CONDITIONS, "more": 1}, {}])
def test_a_file_of_conditions_with_other_keys_is_not_overwritten(tmp_path, content):
    (tmp_path / "corpus.json").write_text(json.dumps(content))
    with pytest.raises(BadInput, match="made under other conditions"):
        Corpus(tmp_path, CONDITIONS)
    assert json.loads((tmp_path / "corpus.json").read_text()) == json.loads(json.dumps(content))


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
