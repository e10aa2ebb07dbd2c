"""Counts into rates: pooling of prompts and of thin depths, and how far a rate can be trusted."""

import math
import random

import pytest

from sequoia_cli.core.counts import MIN_TRIALS, PromptCounts, pooled_rate
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.errors import BadInput


def one(trials, *accepted):
    """Counts of one prompt at one depth."""
    return PromptCounts(0, (trials,), (tuple(accepted),))


def depths(*counts):
    """Counts of one prompt at several depths, half and a tenth of them accepted."""
    return PromptCounts(0, counts, tuple((count / 2, count / 10) for count in counts))


def measured(*samples):
    return AcceptanceRates.from_samples(samples, {})


def test_counts_of_all_prompts_are_pooled_and_a_rate_is_a_share_of_all_trials():
    rates = measured(one(300, 150, 30), one(100, 90, 10))
    assert rates.p == ((240 / 400, 40 / 400),)
    assert (rates.trials, rates.accepted) == ((400,), ((240, 40),))


def test_a_depth_with_enough_trials_has_a_row_of_its_own():
    assert len(measured(depths(MIN_TRIALS * 2, MIN_TRIALS)).p) == 2
    assert len(measured(depths(MIN_TRIALS * 2, MIN_TRIALS, MIN_TRIALS)).p) == 3


def test_depths_with_few_trials_are_pooled_with_all_deeper_ones():
    half, thin = MIN_TRIALS // 2, MIN_TRIALS - 1
    sample = PromptCounts(0, (MIN_TRIALS, thin, half), ((200, 0), (100, 0), (0, 50)))
    rates = measured(sample)
    assert rates.p == ((0.5, 0.0), (100 / (thin + half), 50 / (thin + half)))
    # A deeper depth never comes back once one is thin, and too little of it altogether has no row.
    assert len(measured(depths(MIN_TRIALS, 10, MIN_TRIALS)).p) == 2
    assert len(measured(depths(MIN_TRIALS, thin)).p) == 1
    assert len(measured(depths(MIN_TRIALS, half, half)).p) == 2
    assert len(measured(depths(MIN_TRIALS, 0, 0)).p) == 1


def test_the_trials_of_a_row_are_all_that_its_rates_pool():
    half = MIN_TRIALS // 2
    assert measured(depths(900, 500, half, 150, 90)).row_trials == (900, 500, half + 240)
    assert measured(depths(900, 500, half, 150)).row_trials == (900, 500)  # too few for a row
    assert measured(depths(900, 500)).row_trials == (900, 500)
    assert measured(depths(10, 9)).row_trials == (10,)
    for counts in ((900, 500, half, 150, 90), (900, 300, 50), (10, 9), (900, 500)):
        rates = measured(depths(*counts))
        assert len(rates.row_trials) == len(rates.p)


def test_a_short_measurement_has_the_row_that_its_standard_errors_are_of():
    rates = measured(PromptCounts(0, (10, 4, 0), ((6, 1), (1, 1), (0, 0))))
    assert rates.p == ((6 / 10, 1 / 10),)


def test_no_trials_are_no_rates():
    for samples in ([], [one(0, 0, 0)]):
        with pytest.raises(BadInput, match="no acceptance trials"):
            AcceptanceRates.from_samples(samples, {})


# --- standard errors


def test_the_standard_error_is_that_of_a_ratio_of_sums_over_prompts():
    trials, hits = (10, 20, 30, 5), (5, 15, 12, 0)
    rate, error = pooled_rate([one(t, h) for t, h in zip(trials, hits, strict=True)], 0)
    residuals = [h - 32 / 65 * t for t, h in zip(trials, hits, strict=True)]
    variance = sum(residual**2 for residual in residuals) / 3  # their mean is 0
    assert rate == pytest.approx(32 / 65)
    assert error == pytest.approx(math.sqrt(4 * variance) / 65)


def test_one_prompt_has_no_error_and_no_trials_have_no_rate():
    assert pooled_rate([one(10, 5)], 0) == (0.5, math.inf)
    assert pooled_rate([one(0, 0), one(0, 0)], 0) == (0.0, math.inf)
    assert measured(one(10, 5)).standard_errors() == ()
    assert len(measured(one(10, 5, 1), one(10, 5, 1)).standard_errors()) == 2


def test_the_standard_error_is_the_spread_of_repeated_measurements():
    """800 measurements of 40 prompts that differ, fixed seed.

    The spread of 800 is known to 2.5%, the formula is 2% low for 40 prompts: 15% is six times the former.
    Taking the trials for independent, the control, is 40% low.
    """
    rng = random.Random(0)
    rates, errors, naive = [], [], []
    for _ in range(800):
        samples = []
        for _ in range(40):
            trials, own = rng.randrange(5, 40), rng.choice((0.4, 0.8))
            samples.append(one(trials, sum(rng.random() < own for _ in range(trials))))
        rate, error = pooled_rate(samples, 0)
        rates.append(rate)
        errors.append(error)
        naive.append(math.sqrt(rate * (1 - rate) / sum(sample.trials[0] for sample in samples)))
    mean = sum(rates) / len(rates)
    spread = math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1))
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.15)
    assert sum(naive) / len(naive) < 0.7 * spread
