"""Medians by prompt, ratios of the same prompt in the same round, and how often their intervals hold."""

import numpy as np
import pytest

from sequoia_cli.bench.runner import Outcome
from sequoia_cli.bench.summary import COVERAGE, median_interval, ratio, summaries
from sequoia_cli.bench.workload import Sample


def at(rate, number=0, prompt=0, engine="a", tokens=(1,)):
    """A sample of 10 tokens after the first, at `rate` tokens per second."""
    return Sample(engine, number, prompt, tokens, ((1.0, 1), (1.0 + 10 / rate, 10)))


def test_a_slow_round_hits_both_engines_and_leaves_the_ratio():
    ours = [at(20, 0, 0), at(2, 1, 0), at(40, 0, 1), at(4, 1, 1)]
    others = [at(10, 0, 0), at(1, 1, 0), at(10, 0, 1), at(1, 1, 1)]
    found = ratio(ours, others)
    assert found.value == pytest.approx(3)  # 2 for one prompt, 4 for the other


def test_a_prompts_ratio_is_the_median_of_its_rounds():
    """Not the first round's, nor the mean."""
    found = ratio(
        [at(rate, number) for number, rate in enumerate((90, 20, 30))], [at(10, n) for n in range(3)]
    )
    assert found.value == pytest.approx(3)


def test_only_pairs_of_one_prompt_and_one_round_count():
    assert ratio([at(20, 0, 0)], [at(10, 1, 0), at(10, 0, 1)]) is None
    assert ratio([at(20), at(99, 1)], [at(10)]).value == pytest.approx(2)
    assert ratio([], [at(10)]) is None


def test_equal_ratios_give_a_point_and_few_prompts_no_interval():
    for prompts in (1, 5, 6):
        found = ratio([at(30, 0, n) for n in range(prompts)], [at(10, 0, n) for n in range(prompts)])
        assert found.value == pytest.approx(3)
        assert found.interval == (pytest.approx((3, 3)) if prompts == 6 else None)


@pytest.mark.parametrize(
    ("count", "k"),
    # Tables of the sign test, two-sided 5%: k - 1 is its critical value.
    [(1, None), (5, None), (6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (48, 17)],
)
def test_the_interval_lies_between_the_order_statistics_of_the_sign_test(count, k):
    values = np.random.default_rng(count).permutation(count) + 1
    assert median_interval(list(values)) == (None if k is None else (k, count + 1 - k))


def percentile_bootstrap(values):
    """The usual interval, for comparison: quantiles of the medians of resampled values."""
    medians = np.median(np.random.default_rng(0).choice(values, (300, len(values))), axis=1)
    return tuple(np.quantile(medians, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]))


def test_the_interval_of_eight_skewed_values_covers_as_often_as_it_says_and_a_bootstrap_does_not():
    """2,000 samples of a log-normal distribution, whose median is 1.

    The interval's true coverage is 99.2%: fewer than 95% of the samples is a chance below 1e-30. Negative
    control: the percentile bootstrap, which covers 91%, six standard errors below 95%.
    """
    samples = np.exp(1.5 * np.random.default_rng(1).standard_normal((2000, 8)))
    covered = {
        interval: np.mean([low <= 1 <= high for low, high in map(interval, samples)])
        for interval in (median_interval, percentile_bootstrap)
    }
    assert covered[median_interval] >= COVERAGE > covered[percentile_bootstrap]


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


def test_a_text_that_came_at_once_has_no_speed_and_the_others_of_its_prompt_count():
    at_once = Sample("a", 1, 0, (1,), ((3.0, 1),))
    (found,) = summaries([Outcome("a", [at(20), at_once])], "a", "a")
    assert found.tokens_per_second == pytest.approx(20)
    assert found.first_token_seconds == pytest.approx(2)
    assert found.ratio.value == pytest.approx(1)


def test_texts_without_a_reference_are_not_called_equal():
    (found,) = summaries([Outcome("x", [at(20, engine="x")])], "x", "plain")
    assert found.differing is None
    assert found.ratio.value == pytest.approx(1)
