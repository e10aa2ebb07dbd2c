"""The texts that `sequoia distill` learns from: which are held out, how many, and what a log shows."""

import itertools
import json
import re
from pathlib import Path

import pytest
import torch

from sequoia_cli.distill import held_out as held_out_module
from sequoia_cli.distill import prediction
from sequoia_cli.distill.corpus import Text, write_lock
from sequoia_cli.distill.held_out import split
from sequoia_cli.errors import BadInput

SMALL = (
    *("--dtype", "float32", "--rows", "4", "--length", "32", "--epochs", "1"),
    *("--batch-tokens", "100", "--max-new-tokens", "8"),
)


def text(prompt, *answer):
    """A text of a prompt and an answer."""
    tokens = torch.tensor([*prompt, *answer])
    return Text(tokens, torch.zeros(len(tokens), 4), torch.arange(len(tokens)) >= len(prompt))


def prompt_of(text):
    return tuple(text.tokens[~text.answer].tolist())


def numbers_of(texts):
    """Each text by its last token."""
    return [int(text.tokens[-1]) for text in texts]


# --- which are held out


@pytest.mark.parametrize("prompts", [4, 7, 50, 200])
def test_no_prompt_is_both_learned_from_and_held_out(prompts):
    texts = [text((1, number % prompts, 9), 100 + number) for number in range(3 * prompts)]
    held_out, learned = split(texts)
    assert not {prompt_of(each) for each in held_out} & {prompt_of(each) for each in learned}
    held = len({prompt_of(each) for each in held_out})
    assert 2 <= held <= max(2, prompts // 10)
    assert sorted(numbers_of([*held_out, *learned])) == [100 + number for number in range(3 * prompts)]
    # One of each prompt first.
    assert len({prompt_of(each) for each in held_out[:held]}) == held


def test_a_corpus_that_grows_is_judged_by_nothing_that_was_learned_from_before():
    texts = [text((number, 7), 100 + number) for number in range(3000)]
    sizes = [split(texts[:size]) for size in (100, 400, 1000, 3000)]
    for (_, learned), (held_out, _) in itertools.pairwise(sizes):
        assert not {prompt_of(each) for each in held_out} & {prompt_of(each) for each in learned}
    whole = len(sizes[-1][1])
    assert 0.93 < whole / 3000 < 0.97


def test_texts_that_share_their_first_answers_but_not_their_prompts_are_apart():
    texts = [text((number,), 5, 6, 7) for number in range(8)]
    held_out, learned = split(texts)
    assert (len(held_out), len(learned)) == (2, 6)


def test_chats_are_held_out_from_all_over():
    held_out, learned = split([text((number,), 1000 + number) for number in range(1200)])
    assert len(held_out) == 64
    assert 1120 < len(learned) < 1160
    assert {(number - 1000) // 300 for number in numbers_of(held_out)} == {0, 1, 2, 3}


def test_no_more_than_64_texts_are_looked_at_however_many_answers_a_prompt_has():
    held_out, learned = split([text((number % 40,), 1000 + number) for number in range(4000)])
    assert len(held_out) == 64
    prompts = len({prompt_of(each) for each in held_out})
    assert 2 <= prompts <= 6
    assert len({prompt_of(each) for each in learned}) == 40 - prompts


def test_texts_without_an_answer_are_neither_and_few_prompts_are_refused():
    texts = [*(text((number,), 5) for number in range(4)), text((9, 9))]
    held_out, learned = split(texts)
    assert len(held_out) + len(learned) == 4
    with pytest.raises(BadInput, match="answers to 3 different prompts are too few") as caught:
        split([*texts[:3], *texts[:3], text((9, 9))])
    assert "--tokens" in caught.value.hint


def test_what_a_draft_will_do_is_measured_on_each_held_out_prompt_once(monkeypatch):
    held_out, _ = split([text(range(number % 50, number % 50 + 20), 5) for number in range(400)])
    prompts = [list(prompt_of(each)) for each in held_out]
    different = [prompt for number, prompt in enumerate(prompts) if prompt not in prompts[:number]]
    assert len(held_out) > len(different) >= 2
    assert prediction.prompts_of(held_out) == different
    monkeypatch.setattr(prediction, "PROMPTS", 1)
    assert prediction.prompts_of(held_out) == different[:1]


# --- how many, and what is said


class Stop(KeyboardInterrupt):
    """Ends a command where it has its texts."""


@pytest.fixture
def texts_of(run, targets, monkeypatch):
    """Run the command up to the texts that it learns from: those, and what was said."""
    found = []

    def stop(texts):
        found.append(texts)
        raise Stop

    monkeypatch.setattr(held_out_module, "split", stop)

    def command(*arguments, target="chat"):
        code, _, err = run(
            "distill", "--target", targets[target], *SMALL, "-o", "made", "--corpus", "texts", *arguments
        )
        assert code == 130, err
        return found.pop(), err

    return command


def ids_of(texts):
    return [text.tokens.tolist() for text in texts]


def test_fewer_tokens_than_a_corpus_has_are_its_first_texts(texts_of):
    whole, _ = texts_of("--tokens", "600")
    held = sum(map(len, whole))
    assert 600 <= held < 600 + 32
    fewer, err = texts_of("--tokens", "200")
    assert ids_of(fewer) == ids_of(whole)[: len(fewer)]
    assert 200 <= sum(map(len, fewer)) < 200 + 32
    assert f"tokens already; learning from the first {sum(map(len, fewer)):,}" in err
    again, err = texts_of("--tokens", "600")
    assert ids_of(again) == ids_of(whole)


def test_a_log_hears_of_every_shard_how_far_the_writing_is(texts_of):
    _, err = texts_of("--tokens", "600")
    lines = re.findall(r"writing texts: (\d+) of 600 tokens · [\d,]+ tokens/s · (\S+) left", err)
    assert len(lines) == len(list(Path("texts").glob("0*.safetensors"))) > 3
    counts = [int(count) for count, _ in lines]
    assert counts == sorted(counts)
    assert lines[-1][1] == "0:00:00"


def test_chats_of_the_targets_own_and_its_documents_are_not_taken_for_each_other(texts_of):
    found = {}
    for target in ("chat", "base"):
        texts_of("--tokens", "100", "--corpus", target, target=target)
        found[target] = json.loads((Path(target) / "corpus.json").read_text())["prompts"]
    assert found["chat"] == "the target's own" != found["base"]


def test_no_two_documents_that_a_base_model_writes_are_equal(texts_of):
    texts, _ = texts_of("--tokens", "900", "-T", "0", target="base")
    whole = [tuple(text.tokens.tolist()) for text in texts if bool(text.answer.any())]
    assert len(whole) >= 50  # two of a row of 32 tokens
    assert len(set(whole)) == len(whole)


def test_greedy_answers_end_with_the_prompts_and_that_is_said(texts_of, tmp_path):
    Path("prompts.txt").write_text("Hello\nthe\nlate we are\nit's a fine day\n")
    options = ("--dataset", "prompts.txt", "-T", "0", "--tokens", "9000", "--length", "64", "--rows", "8")
    texts, err = texts_of(*options)
    assert len(texts) == 4
    assert "every prompt has its one greedy answer" in err
    again, err = texts_of(*options)
    assert ids_of(again) == ids_of(texts)
    assert "every prompt has its one greedy answer" in err


def test_texts_that_are_there_are_read_while_another_command_writes_more(run, targets, texts_of):
    texts, _ = texts_of("--tokens", "400")
    with write_lock(Path("texts")):
        again, _ = texts_of("--tokens", "400")
        more = ("-o", "made", "--corpus", "texts", "--tokens", "4000")
        code, _, err = run("distill", "--target", targets["chat"], *SMALL, *more)
    assert ids_of(again) == ids_of(texts)
    assert code == 2
    assert "texts is being written to by another command" in err
