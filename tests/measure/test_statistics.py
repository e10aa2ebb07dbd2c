"""What steps add up to: every token counted once, and nothing that was dropped."""

import pytest

from models import near, tiny_model
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.step import Step
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.statistics import STAGES, Speculation

SECONDS = {"draft": 1.0, "target": 2.0, "verify": 4.0, "other": 8.0}


def step(tokens, ranks, size=6, **options) -> Step:
    return Step(tuple(range(tokens)), tuple(ranks), size, 4, SECONDS, **options)


def test_steps_add_up_to_tokens_rates_and_seconds():
    total = Speculation()
    total.add(Step((1, 2, 3), (0, 1), 6, 4, {**SECONDS, "prefill": 16.0}, fallbacks=2))
    total.add(step(1, []))
    total.add(step(2, [3], size=2))
    assert (total.steps, total.tokens, total.drafted, total.accepted, total.fallbacks) == (3, 6, 11, 3, 2)
    assert total.accepted_by_depth == [2, 1]
    assert total.mean_acceptance_length == 6 / 3
    assert total.acceptance_rate == 3 / 11
    assert total.seconds == {stage: 3 * seconds for stage, seconds in SECONDS.items()}
    assert (total.prefill_seconds, total.decode_seconds) == (16.0, 45.0)
    assert total.tokens_per_second == 6 / 45


def test_a_step_that_an_end_of_text_or_the_budget_cut_counts_only_what_is_left():
    total = Speculation()
    total.add(step(2, [0, 0, 0]))  # three accepted, the text ended with the second of them
    assert (total.tokens, total.accepted, total.accepted_by_depth) == (2, 2, [1, 1])
    total.add(step(3, [0, 0, 0]))  # the bonus token alone was dropped
    assert (total.tokens, total.accepted, total.accepted_by_depth) == (5, 5, [2, 2, 1])


@pytest.mark.parametrize(
    ("tokens", "accepted_by_depth"),
    [(0, []), (1, [1]), (3, [1, 1]), (4, [1, 1]), (5, [2, 1]), (6, [2, 2]), (7, [2, 2]), (9, [2, 2])],
)
def test_of_a_text_that_a_stop_cut_only_its_first_tokens_count(tokens, accepted_by_depth):
    steps = [step(3, [0, 1]), step(1, []), step(3, [0, 0])]
    total = Speculation.of(steps, tokens)
    assert (total.steps, total.tokens) == (3, min(tokens, 7))  # every forward was paid for
    assert [count for count in total.accepted_by_depth if count] == accepted_by_depth
    assert total.accepted == sum(accepted_by_depth)
    assert total.decode_seconds == 45.0


def test_texts_add_up_as_if_they_were_one():
    first = Step((1, 2, 3), (0, 1), 6, 4, {**SECONDS, "prefill": 16.0}, fallbacks=1)
    steps = [first, step(1, []), step(4, [0, 0, 0]), step(2, [1], size=3)]
    whole = Speculation()
    for one in steps:
        whole.add(one)
    for cut in range(5):
        parts = [Speculation.of(part, 100) for part in (steps[:cut], steps[cut:])]
        assert Speculation.total(parts) == whole
        assert Speculation.total(reversed(parts)) == whole
    assert whole.prefill_seconds == 16.0
    assert Speculation.total([]) == Speculation()


def test_before_the_first_step_there_are_no_rates():
    nothing = Speculation()
    assert (nothing.tokens_per_second, nothing.mean_acceptance_length) == (None, None)
    assert (nothing.acceptance_rate, nothing.decode_seconds) == (None, 0.0)
    plain = Speculation.of([step(1, [], size=1)], 1)
    assert (plain.mean_acceptance_length, plain.acceptance_rate) == (1.0, None)
    assert nothing.to_dict()["mean_acceptance_length"] is None


def test_the_printed_names_hold_the_totals():
    total = Speculation.of([step(3, [0, 1]), step(1, []), step(1, [])], 5)
    assert total.to_dict() == {
        "steps": 3,
        "mean_acceptance_length": 1.6667,
        "acceptance_rate": 0.1333,
        "accepted_by_depth": [1, 1],
        "drafted_tokens": 15,
        "seconds_by_stage": {"draft": 3.0, "target": 6.0, "verify": 12.0, "other": 24.0},
        "residual_fallbacks": 0,
    }
    assert tuple(total.seconds) == STAGES


@pytest.mark.parametrize(
    "tree", [ROOT_ONLY, chain(4), TokenTree((-1, 0, 0, 1, 1, 2))], ids=lambda t: str(t.size)
)
@pytest.mark.parametrize("eos_ids", [(), tuple(range(0, 64, 9))], ids=["budget", "end of text"])
def test_tokens_per_step_times_steps_are_the_tokens_of_the_text(tree, eos_ids):
    target = tiny_model("llama")
    model = LanguageModel(target)
    draft = IndependentDraft(LanguageModel(near(target, 0.02)), 64)
    for temperature in (0.0, 0.8):
        decoder = Decoder(model, [draft], tree, Sampling(temperature))
        steps = list(decoder.decode([3, 1, 4], 30, eos_ids=eos_ids))
        total, emitted = Speculation(), sum(len(one.tokens) for one in steps)
        for one in steps:
            total.add(one)
        assert total.mean_acceptance_length * total.steps == pytest.approx(emitted)
        assert total.accepted == sum(total.accepted_by_depth) <= emitted
        # Each step has one token that is no child's, unless it was cut before that.
        assert total.accepted in (emitted - total.steps, emitted - total.steps + 1)
