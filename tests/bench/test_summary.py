"""Medians by prompt, and ratios of the same prompt in the same round."""

import pytest

from sequoia_cli.bench.runner import Outcome
from sequoia_cli.bench.summary import ratio, summaries
from sequoia_cli.bench.work import Sample


def at(rate, number=0, prompt=0, engine="a", tokens=(1,)):
    """A sample of 10 tokens behind the first, at `rate` tokens per second."""
    return Sample(engine, number, prompt, tokens, ((1.0, 1), (1.0 + 10 / rate, 10)))


def test_a_slow_round_hits_both_engines_and_leaves_the_ratio():
    ours = [at(20, 0, 0), at(2, 1, 0), at(40, 0, 1), at(4, 1, 1)]
    others = [at(10, 0, 0), at(1, 1, 0), at(10, 0, 1), at(1, 1, 1)]
    found = ratio(ours, others)
    assert found.value == pytest.approx(3)  # 2 for one prompt, 4 for the other
    assert found.low == pytest.approx(2)
    assert found.high == pytest.approx(4)


def test_only_pairs_of_one_prompt_and_one_round_count():
    assert ratio([at(20, 0, 0)], [at(10, 1, 0), at(10, 0, 1)]) is None
    assert ratio([at(20), at(99, 1)], [at(10)]).value == pytest.approx(2)
    assert ratio([], [at(10)]) is None


def test_one_prompt_or_equal_ratios_give_a_point():
    for prompts in (1, 4):
        found = ratio([at(30, 0, n) for n in range(prompts)], [at(10, 0, n) for n in range(prompts)])
        assert (found.low, found.value, found.high) == pytest.approx((3, 3, 3))


def test_the_interval_covers_the_median_and_narrows_with_prompts():
    rates = [11, 14, 17, 20, 23, 26, 29, 32]
    few = ratio([at(r, 0, n) for n, r in enumerate(rates)], [at(10, 0, n) for n in range(8)])
    many = ratio([at(r, 0, n) for n, r in enumerate(rates * 8)], [at(10, 0, n) for n in range(64)])
    for found in (few, many):
        assert found.low < found.value < found.high
    assert many.high - many.low < few.high - few.low


def test_speeds_are_medians_over_prompts_of_medians_over_rounds_and_texts_are_compared():
    plain = Outcome("plain", [at(10, 0, 0, "plain"), at(12, 1, 0, "plain"), at(30, 0, 1, "plain")])
    other = Outcome("x", [at(20, 0, 0, "x", (1,)), at(60, 0, 1, "x", (2,)), at(60, 1, 1, "x", (1,))])
    missing = Outcome("y", unavailable="no")
    found, second, third = summaries([plain, other, missing], "plain", "plain")
    assert found.tokens_per_second == pytest.approx(20.5)
    assert found.tokens_per_step == 10
    assert found.first_token_seconds == 1.0
    assert found.ratio.value == pytest.approx(1)
    assert (found.differing, second.differing) == ((), (1,))
    assert second.ratio.value == pytest.approx(2)
    assert (third.tokens_per_second, third.ratio, third.differing) == (None, None, None)


def test_texts_without_a_reference_are_not_called_equal():
    (found,) = summaries([Outcome("x", [at(20, engine="x")])], "x", "plain")
    assert found.differing is None
    assert found.ratio.value == pytest.approx(1)
