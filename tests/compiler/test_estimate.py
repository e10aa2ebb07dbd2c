"""What counts say of acceptance rates: shrunk where thin, pooled where only noise makes them rise."""

import numpy as np
import pytest

from sequoia_cli.compiler.estimate import CURVE_TRIALS, DRAWS, FEW_PROMPTS, PRIOR_RATE, PRIOR_TRIALS, Estimate
from sequoia_cli.core.counts import MIN_TRIALS, PromptCounts, pooled_rate
from sequoia_cli.core.rates import AcceptanceRates


def measured(*samples):
    return AcceptanceRates.from_samples(samples, {})


def prompts(*pairs):
    """Prompts of one depth: trials and accepted by rank of each."""
    return measured(*(PromptCounts(i, (t,), (tuple(a),)) for i, (t, a) in enumerate(pairs)))


def test_rates_without_counts_are_taken_as_they_are():
    estimate = Estimate.of(AcceptanceRates(((0.2, 0.5), (0.4, 0.1))))
    assert (estimate.rows, estimate.draws, estimate.warnings) == (((0.2, 0.5), (0.4, 0.1)), None, ())


def test_five_trials_are_shrunk_towards_the_prior_and_warned_of():
    estimate = Estimate.of(prompts((5, [5, 0])))
    prior = PRIOR_TRIALS * PRIOR_RATE
    assert estimate.rows[0] == pytest.approx(
        ((5 + prior) / (5 + PRIOR_TRIALS), prior / 4 / (5 + PRIOR_TRIALS))
    )
    assert "5 trials, fewer than 400" in estimate.warnings[0]


def test_many_trials_are_hardly_shrunk_and_not_warned_of():
    pairs = [(2000, [1000, 300, 80])] * 6
    estimate = Estimate.of(prompts(*pairs))
    assert estimate.rows[0] == pytest.approx((0.5, 0.15, 0.04), abs=1e-3)
    assert estimate.warnings == ()


def test_a_depth_is_shrunk_towards_the_curve_of_all_depths():
    rates = measured(PromptCounts(0, (1000, 500), ((600, 100), (200, 50))))
    curve = (800 + PRIOR_TRIALS * PRIOR_RATE) / (1500 + PRIOR_TRIALS)
    expected = [
        (count + CURVE_TRIALS * curve) / (trials + CURVE_TRIALS)
        for count, trials in ((600, 1000), (200, 500))
    ]
    assert [row[0] for row in Estimate.of(rates).rows] == pytest.approx(expected)


def test_the_last_row_is_of_all_deeper_depths_where_its_rates_are():
    """400 trials of the second depth, fewer of the third: they share a row; by hand they may not."""
    counts = PromptCounts(0, (1000, 390, 300), ((500,), (390,), (0,)))
    pooled, alone = measured(counts), AcceptanceRates(((0.5,), (1.0,)), samples=(counts,))
    assert pooled.p[1] == (pytest.approx(390 / 690),)
    assert Estimate.of(pooled).rows[1][0] == pytest.approx(390 / 690, abs=0.01)
    assert Estimate.of(alone).rows[1][0] > 0.9


def test_ranks_that_rise_by_noise_are_pooled_and_those_that_rise_by_more_are_not():
    noisy, real = (
        Estimate.of(prompts((1000, [500, second, third]))) for second, third in ((30, 36), (30, 90))
    )
    assert noisy.rows[0][1] == noisy.rows[0][2] == pytest.approx(0.033, abs=1e-3)
    assert real.rows[0][1] < real.rows[0][2] - 0.05
    assert noisy.draws[:, 0, 1] == pytest.approx(noisy.draws[:, 0, 2])


def test_draws_spread_as_prompts_do_and_not_as_trials_do():
    """The spread of 200 draws is known to 5%; 20% is four times that. The control has no prompts."""
    pairs = [(100, [hits]) for hits in (20, 30, 40, 50, 60, 70, 80, 45, 55, 65)]
    rates = prompts(*pairs)
    _, error = pooled_rate(rates.samples, 0)
    spread = Estimate.of(rates).draws[:, 0, 0].std()
    assert spread == pytest.approx(error, rel=0.2)
    together = Estimate.of(prompts((1000, [515])))
    assert together.draws[:, 0, 0].std() < 0.5 * spread
    assert (Estimate.of(rates).prompts, together.prompts) == (10, 0)


def test_draws_of_one_sample_spread_as_independent_trials():
    draws = Estimate.of(prompts((1000, [300, 100]))).draws
    assert draws.shape == (DRAWS, 1, 2)
    assert draws[:, 0, 0].std() == pytest.approx(np.sqrt(0.3 * 0.7 / 1000), rel=0.2)
    assert (draws.sum(axis=2) <= 1).all()
    # Few of them spread as those and the prior's trials together.
    few = Estimate.of(prompts((PRIOR_TRIALS, [PRIOR_TRIALS * PRIOR_RATE]))).draws[:, 0, 0]
    assert few.std() == pytest.approx(np.sqrt(PRIOR_RATE**2 / (2 * PRIOR_TRIALS + 1)), rel=0.2)


def test_each_row_has_the_ranks_that_the_file_states():
    counts = PromptCounts(0, (1000, 500), ((500, 100), (200, 50)))
    rows = Estimate.of(AcceptanceRates(((0.5, 0.1), (0.4,)), samples=(counts,))).rows
    assert rows[0] == pytest.approx((0.5, 0.1), abs=0.01)
    assert rows[1] == (pytest.approx(0.4, abs=0.01),)


def test_just_enough_trials_and_prompts_are_not_warned_of():
    assert Estimate.of(prompts(*[(MIN_TRIALS / FEW_PROMPTS, [40])] * FEW_PROMPTS)).warnings == ()
    assert Estimate.of(prompts((MIN_TRIALS, [200]))).warnings == ()


def test_few_prompts_are_warned_of_even_with_many_trials():
    estimate = Estimate.of(prompts((1000, [500]), (1000, [600])))
    assert "of 2 prompts" in estimate.warnings[0]


def test_equal_counts_give_equal_draws():
    one, other = (Estimate.of(prompts((400, [200]), (300, [100]))) for _ in range(2))
    assert np.array_equal(one.draws, other.draws)
