"""The statistics of `check`: their false-alarm rates hold, and they see what they say they see."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sequoia_cli.check.betting import (
    LOG_ODDS,
    POWER,
    BetTest,
    Events,
    Group,
    cells_test,
    cells_wealth,
    event_test,
    event_wealth,
    holm,
    mixture,
)
from sequoia_cli.check.findings import Findings
from sequoia_cli.core.sampling import Sampling

PROBS = np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03])


def test_rare_tokens_share_a_cell_that_outcomes_do_not_decide_on_and_no_count_is_lost():
    group = Group.of(torch.tensor([0.5, 0.03, 0.3, 0.08, 0.09]), 100)
    assert group.tokens == [0, 2]
    for token in (0, 1, 2, 4, 4):
        group.add(token, torch.tensor([0.5, 0.03, 0.3, 0.08, 0.09]))
    assert [(cell.token, cell.seen) for cell in group.cells] == [(0, 1), (2, 1), (None, 3)]
    assert sum(cell.expected for cell in group.cells) == pytest.approx(5)


def test_cells_stand_by_falling_probability_and_those_of_nothing_are_not_shown():
    probs = torch.tensor([0.25, 0.5, 0.25, 0.0])
    group = Group.of(probs, 40)  # a quarter of 40 is just often enough
    group.add(2, probs)
    assert [(cell.token, cell.seen, cell.expected) for cell in group.cells] == [
        (1, 0, 0.5),
        (0, 0, 0.25),
        (2, 1, 0.25),
    ]


def test_tokens_that_share_their_mass_have_no_cell_of_their_own():
    probs = torch.tensor([0.5, 0.25, 0.25])
    assert Group.of(probs, 100, torch.tensor([False, True, True])).tokens == [0]


def test_what_cannot_be_tested_has_a_p_value_of_1():
    assert cells_test("t", None, {}).p_value == 1
    assert cells_test("t", None, {None: Group.of(torch.tensor([1.0, 0.0]), 100)}).p_value == 1
    assert event_test("t", Events()).p_value == 1
    certain = Events()
    certain.add(True, 1.0)
    certain.add(True, 0.0)  # which is counted as impossible elsewhere
    assert event_test("t", certain).p_value == 1


def test_a_run_of_events_has_their_number_and_mean_chance_and_wins_what_its_bets_win():
    events = Events()
    for came, chance in ((True, 0.5), (False, 0.2), (True, 0.2)):
        events.add(came, chance)
    found = event_test("t", events)
    assert (found.count, found.chance) == (3, pytest.approx(0.3))
    # A bet on odds of r takes the chance p for p r / (p r + 1 - p), and wins by what that makes more likely.
    odds = np.exp(LOG_ODDS)
    won = odds / (0.5 * odds + 0.5) / (0.2 * odds + 0.8) * odds / (0.2 * odds + 0.8)
    assert math.exp(found.log_wealth) == pytest.approx(won.mean())


def test_groups_of_two_cells_are_tested_and_those_without_counts_are_no_part():
    probs = torch.tensor([0.5, 0.5])
    groups = {given: Group.of(probs, 100) for given in (None, 1)}
    for _ in range(100):
        groups[None].add(0, probs)
    found = cells_test("t", None, groups)
    assert found.p_value < 1e-20
    assert (found.count, found.groups, set(found.cells)) == (100, [(100, 2)], {None})


def test_the_wealth_is_1_on_average_over_all_outcomes():
    """Exactly: all sequences of 6 outcomes of 3 cells, and of 10 events whose chances depend on them."""
    probs = np.array([0.6, 0.3, 0.1])
    mean = 0.0
    for text in itertools.product(range(3), repeat=6):
        counts, loss = np.bincount(text, minlength=3), np.log(probs[list(text)]).sum()
        mean += math.exp(loss) * np.exp(cells_wealth(counts, probs, loss))
    assert mean == pytest.approx(np.ones(len(mean)), abs=1e-9)
    mean = 0.0
    for text in itertools.product((0, 1), repeat=10):
        chances = np.array([0.1 + 0.08 * sum(text[:place]) for place in range(10)])
        came = np.array(text, dtype=float)
        likely = np.prod(np.where(came == 1, chances, 1 - chances))
        mean += likely * np.exp(event_wealth(came, chances).sum(0))
    assert mean == pytest.approx(np.ones(len(LOG_ODDS)), abs=1e-9)


def test_a_group_with_changing_probabilities_is_a_fair_game_too():
    first, other = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    mean = 0.0
    for text in itertools.product(range(3), repeat=5):
        group, likely = Group.of(first, 100), 1.0
        for place, token in enumerate(text):
            own = other if place and text[place - 1] == 1 else first
            group.add(token, own)
            likely *= float(own[token])
        mean += likely * np.exp(group.wealth)
    assert mean == pytest.approx(np.ones(len(mean)), abs=1e-6)


def test_p_values_are_below_a_level_at_most_as_often_as_it_says():
    # 100,000 right programs; if the rate were the level itself, more than this in one of a million seeds.
    random = np.random.default_rng(0)
    counts = random.multinomial(400, PROBS, size=100_000)
    p = np.exp(-np.maximum(0, mixture(cells_wealth(counts, PROBS, counts @ np.log(PROBS)))))
    for level in (0.05, 1e-2, 1e-3, 1e-4):
        assert np.sum(p <= level) <= 1e5 * level + 5 * math.sqrt(1e5 * level)
    assert np.sum(p <= 0.05) > 0  # so the test can fail


@pytest.mark.parametrize("groups", [[(400, 6)], [(1000, 6), (200, 6)], [(400, 2)]])
def test_a_deviation_of_cells_that_is_said_to_be_seen_is_seen(groups):
    level = 1e-4 / 15
    seen = BetTest("t", None, sum(n for n, _ in groups), 0.0, groups).detectable(level)
    random, wealth = np.random.default_rng(1), 0.0
    for number, cells in groups:
        # The hardest: half of the mass a little up, half a little down, each cell in proportion.
        reference = np.full(cells, 1 / cells)
        moved = reference * (1 + 2 * seen * (-1) ** np.arange(cells))
        counts = random.multinomial(number, moved, size=4000)
        wealth = wealth + cells_wealth(counts, reference, counts @ np.log(reference))
    found = np.mean(mixture(wealth) >= -math.log(level))
    assert POWER - 0.06 < found < POWER + 0.06


@pytest.mark.parametrize("chance", [0.5, 0.1])
def test_a_deviation_of_an_event_that_is_said_to_be_seen_is_seen(chance):
    level, count = 1e-4 / 15, 1000
    seen = BetTest("t", None, count, 0.0, (), chance).detectable(level)
    came = np.random.default_rng(2).binomial(count, chance + seen, size=4000).astype(float)
    wealth = LOG_ODDS * came[:, None] - count * np.log1p(chance * np.expm1(LOG_ODDS))
    found = np.mean(mixture(wealth) >= -math.log(level))
    assert POWER - 0.05 < found < POWER + 0.05


def test_more_samples_see_smaller_deviations_and_none_see_none():
    few, many = (BetTest("t", None, count, 0.0, [(count, 6)]).detectable(1e-5) for count in (100, 4000))
    assert many < few / 5
    assert BetTest("t", None, 4, 0.0, [(4, 6)]).detectable(1e-5) == 1
    assert BetTest("t", None, 4, 0.0, (), 0.5).detectable(1e-5) == 1
    assert BetTest("t", None, 0, 0.0).detectable(1e-5) == 1


def test_holm_multiplies_the_smallest_by_all_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("count", [1, 15])
def test_a_program_fails_where_a_right_one_would_once_in_10_000_runs(count):
    """A right program ever has a wealth of w with a chance of at most 1 / w.

    So one of `count` tests may fail only where it has won `count` times 10,000, as may a control.
    """
    least = 10_000 * count

    def findings(most):
        wealth = [1.0] * (count - 1) + [most]
        tests = [BetTest("t", None, 1000, math.log(each), ((1000, 6),)) for each in wealth]
        tally = SimpleNamespace(tests=lambda: tests)
        return Findings(
            SimpleNamespace(
                subject=SimpleNamespace(sampling=Sampling(1.0)),
                tally=tally,
                controls=SimpleNamespace(residual=tally, reuse=tally),
            )
        )

    right, wrong = findings(0.99 * least), findings(1.01 * least)
    assert all(one.passed for one in right.tests)
    assert not any(one.caught for one in right.controls)
    assert [one.passed for one in wrong.tests] == [True] * (count - 1) + [False]
    assert all(one.caught for one in wrong.controls)
    # A deviation that is said to be seen has to bring as much.
    assert {one.detectable for one in wrong.tests} == {wrong.tests[0].test.detectable(1 / least)}
