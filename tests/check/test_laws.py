"""The statistics of `check`: their false-alarm rates hold, and they see what they say they see."""

import numpy as np
import pytest
import torch
from scipy.stats import chi2, ncx2

from sequoia_cli.check.laws import POWER, Cell, LawTest, chi_squared, holm, of_moments, token_cells


def test_rare_tokens_share_a_cell_and_no_count_is_lost():
    expected = torch.tensor([50.0, 3.0, 30.0, 8.0, 9.0])
    cells = token_cells({0: 48, 1: 5, 2: 31, 4: 16}, expected)
    assert cells == (Cell(0, 48, 50.0), Cell(2, 31, 30.0), Cell(None, 21, 20.0))
    assert sum(cell.seen for cell in cells) == sum(cell.expected for cell in cells) == 100


def test_a_rest_that_is_too_rare_joins_the_rarest_cell():
    assert token_cells({0: 60, 1: 40}, torch.tensor([60.0, 35.0, 5.0])) == (
        Cell(0, 60, 60.0),
        Cell(None, 40, pytest.approx(40.0)),
    )


def test_what_cannot_be_tested_is_no_test():
    assert token_cells({0: 5}, torch.tensor([5.0])) == ()
    assert chi_squared("t", None, [(None, ())]) is None
    assert of_moments("t", [(0.1, 0.01)] * 10) is None


def test_which_cells_there_are_does_not_depend_on_what_came():
    expected = torch.tensor([50.0, 30.0, 20.0])
    tokens = [[cell.token for cell in token_cells(seen, expected)] for seen in ({0: 100}, {2: 60, 1: 40})]
    assert tokens[0] == tokens[1]


def test_p_values_are_below_a_level_about_as_often_as_it_says():
    # 100,000 right programs with cells as small as they are let be.
    random = np.random.default_rng(0)
    law = np.array([0.4, 0.25, 0.15, 0.1, 0.05, 0.05])
    counts = random.multinomial(200, law, size=100_000)
    statistics = ((counts - 200 * law) ** 2 / (200 * law)).sum(1)
    for level in (1e-2, 1e-3, 1e-4):
        assert np.mean(chi2.sf(statistics, 5) < level) < 2.5 * level


def test_a_statistic_is_chi_squared_of_the_cells_less_one_of_each_group():
    groups = [
        (1, [Cell(0, 12, 10.0), Cell(1, 8, 10.0)]),
        (2, [Cell(0, 20, 20.0), Cell(None, 15, 15.0)]),
        (3, []),
    ]
    test = chi_squared("t", "1", groups)
    assert (test.count, test.statistic, test.degrees) == (55, pytest.approx(0.8), 2)
    assert set(test.cells) == {1, 2}


def test_a_deviation_that_is_said_to_be_seen_is_seen():
    test = LawTest("t", None, 400, 0.0, 4)
    variation = test.detectable(1e-5)
    # The smallest divergence with that variation: half of the mass a little up, half a little down.
    divergence = 4 * variation**2
    least = LawTest("t", None, 400, 0.0, 4)
    assert ncx2.sf(chi2.isf(1e-5, 4), 4, 400 * divergence) == pytest.approx(POWER, abs=1e-6)
    assert least.detectable(1e-9) > variation > LawTest("t", None, 4000, 0.0, 4).detectable(1e-5)


def test_holm_multiplies_the_smallest_by_all_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
