"""One text from the loop to its reader: where it ends, what it says, and what it counts."""

from types import SimpleNamespace

import pytest

import tiny_tokenizers as tiny
from models import near, tiny_model
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.step import Step
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure import generation
from sequoia_cli.measure.generation import Generation, generate

BYTES = tiny.byte_fallback()
SECONDS = dict.fromkeys(("draft", "target", "verify", "other"), 1.0)


class Recital:
    """A decoder whose steps are given as lists of token names, all but the last of each accepted children."""

    def __init__(self, *blocks, finish="length"):
        self.blocks = [BYTES.convert_tokens_to_ids(list(block)) for block in blocks]
        self.ids = [id for block in self.blocks for id in block]
        self.finish = finish

    def decode(self, prompt, max_new_tokens, *, eos_ids=(), generator=None):
        for number, block in enumerate(self.blocks):
            last = number == len(self.blocks) - 1
            ranks = (0,) * (len(block) - 1)
            yield Step(tuple(block), ranks, 6, 4, SECONDS, finish=self.finish if last else None)


def recited(*blocks, **options):
    pieces = []
    finish = {"finish": options.pop("finish")} if "finish" in options else {}
    decoder = Recital(*blocks, **finish)
    result = generate(decoder, BYTES, [1], 99, on_text=pieces.append, **options)
    assert "".join(pieces) == result.text
    assert result.speculation.tokens == len(result.token_ids)
    assert result.token_ids == decoder.ids[: len(result.token_ids)]
    return result


# --- where a text ends


@pytest.mark.parametrize(
    ("blocks", "steps", "by_depth"),
    [
        (["wor", "ld!He"], 2, [2, 2]),  # the stop ends inside the second block
        (["world!", "He"], 1, [1, 1, 1, 1, 1]),  # inside the first
        (["wor", "ld"], 2, [2, 1]),  # with the bonus token of the last
        (["w", "o", "r", "l", "d", "H"], 5, []),
    ],
)
def test_a_stop_string_ends_the_ids_with_the_token_that_completes_it(blocks, steps, by_depth):
    result = recited(*blocks, stop=["rld"])
    assert (result.text, len(result.token_ids), result.finish) == ("wo", 5, "stop")
    assert (result.speculation.steps, result.speculation.accepted_by_depth) == (steps, by_depth)


def test_a_stop_that_is_certain_only_later_takes_back_the_tokens_after_it():
    # An é made of two bytes is not certain before the run of bytes is over, here a whole step later.
    cut = recited(["H", "<0xC3>", "<0xA9>"], ["<0xC3>", "<0xA9>", "<0xC3>"], ["<0xA9>", "o"], stop=["é"])
    assert (cut.text, len(cut.token_ids), cut.finish) == ("H", 3, "stop")
    assert (cut.speculation.steps, cut.speculation.accepted_by_depth) == (3, [1, 1])
    # The same where the text ends before it is certain, for whatever reason.
    for finish in ("length", "context", "stop"):
        end = recited(["H", "<0xC3>", "<0xA9>"], ["<0xC3>", "<0xA9>"], stop=["é"], finish=finish)
        assert (end.text, len(end.token_ids), end.finish, end.context_reached) == ("H", 3, "stop", False)
        assert (end.speculation.steps, end.speculation.accepted_by_depth) == (2, [1, 1])


@pytest.mark.parametrize(
    ("reason", "finish", "context"),
    [("stop", "stop", False), ("length", "length", False), ("context", "length", True)],
)
def test_the_last_step_says_why_a_text_ended(reason, finish, context):
    result = recited("He", "wor", finish=reason)
    assert (result.finish, result.context_reached, result.text) == (finish, context, "Hewor")
    assert (len(result.token_ids), result.prompt_tokens) == (5, 1)


def test_a_stop_that_never_comes_holds_nothing_back_at_the_end():
    result = recited("He", "wor", stop=["rld"])
    assert (result.text, result.finish, len(result.token_ids)) == ("Hewor", "length", 5)


# --- what an interrupt leaves


@pytest.mark.parametrize("interrupted", range(1, 4))
def test_an_interrupt_while_printing_leaves_what_was_printed(interrupted):
    printed, result = [], Generation(1)

    def print_piece(piece):
        printed.append(piece)
        if len(printed) == interrupted:
            raise KeyboardInterrupt

    decoder = Recital("He", "wor", "ld!")
    with pytest.raises(KeyboardInterrupt):
        generate(decoder, BYTES, [1], 99, on_text=print_piece, result=result)
    assert result.text == "".join(printed) == "Heworld!"[: len(result.token_ids)]
    assert result.speculation.tokens == len(result.token_ids) > 0
    assert result.speculation.steps == interrupted
    assert result.finish is None


def test_an_interrupt_while_decoding_leaves_the_steps_before():
    class Interrupted(Recital):
        def decode(self, *args, **options):
            for number, step in enumerate(super().decode(*args, **options)):
                if number == 2:
                    raise KeyboardInterrupt
                yield step

    printed, result = [], Generation(1)
    with pytest.raises(KeyboardInterrupt):
        decoder = Interrupted("He", "wor", "ld!")
        generate(decoder, BYTES, [1], 99, stop=["rld"], on_text=printed.append, result=result)
    assert result.text == "".join(printed) == "Hewo"  # the r may begin the stop string
    assert (len(result.token_ids), result.speculation.steps, result.finish) == (5, 2, None)


# --- seconds


def test_seconds_run_to_the_first_and_to_the_last_step(monkeypatch):
    now = [100.0]

    class Slow(Recital):
        def decode(self, *args, **options):
            now[0] += 2.0  # the prefill
            for step in super().decode(*args, **options):
                now[0] += 0.5
                yield step

    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    result = generate(Slow("He", "wor", "ld!"), BYTES, [1], 99)
    assert (result.first_token_seconds, result.seconds) == (2.5, 3.5)
    nothing = generate(Slow(), BYTES, [1], 0)
    assert (nothing.first_token_seconds, nothing.seconds, nothing.finish) == (None, 0.0, "length")


# --- with models

TREE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


@pytest.fixture(scope="module", params=["byte level", "byte fallback"])
def texts(request):
    """A function that generates with a tiny pair of the tokenizer's vocabulary."""
    tokenizer = tiny.KINDS[request.param]()
    target = tiny_model("llama", vocab=len(tokenizer), seed=1)
    model, draft = LanguageModel(target), LanguageModel(near(target, 0.02))

    def run(tree, prompt=(5, 6, 7), count=40, temperature=0.0, **options):
        decoder = Decoder(model, [IndependentDraft(draft, len(tokenizer))], tree, Sampling(temperature))
        return generate(decoder, tokenizer, list(prompt), count, **options)

    run.tokenizer = tokenizer
    return run


def test_the_budget_is_kept_and_the_text_is_that_of_the_ids(texts):
    for count in (0, 1, 7, 40):
        result = texts(TREE, count=count)
        assert (len(result.token_ids), result.finish, result.prompt_tokens) == (count, "length", 3)
        assert result.text == texts.tokenizer.decode(result.token_ids, skip_special_tokens=True)
        assert result.speculation.tokens == count


def test_an_end_of_text_or_a_stop_string_cuts_the_same_text_wherever_it_stands_in_a_step(texts):
    whole = texts(TREE)
    assert whole.speculation.steps < 40
    for place in range(12):
        end = whole.token_ids[place]
        cut = texts(TREE, eos_ids=(end,))
        assert cut.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
        assert cut.finish == "stop"
    for place in range(len(whole.text) // 2):
        stop = whole.text[place : place + 2]
        cut = texts(TREE, stop=[stop])
        plain = texts(TokenTree((-1,)), stop=[stop])
        assert (cut.text, cut.finish) == (whole.text[: whole.text.find(stop)], "stop")
        assert cut.token_ids == plain.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert cut.speculation.tokens == len(cut.token_ids)


def test_a_seed_gives_the_same_text_whatever_ran_before_it(texts):
    first, other, again = (texts(TREE, temperature=1.0, seed=seed).token_ids for seed in (7, 8, 7))
    assert first == again != other
