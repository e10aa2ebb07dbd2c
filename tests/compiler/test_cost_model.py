"""Seconds of a step: target and verification by size, draft by level width, nothing beyond the profile."""

import numpy as np
import pytest

from hand_written import linear, profile, step_seconds
from oracles import all_trees
from sequoia_cli.compiler.cost import (
    CostTable,
    usable,
    widest_level,
)
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.errors import BadInput

CONSTANT = "taken as the same for every size"

TREE = TokenTree((-1, 0, 0, 1, 1, 2, 3))  # levels of 1, 2, 3 and 1 nodes; 1, 2 and 1 of them with children


def test_plain_decoding_pays_no_draft():
    assert step_seconds(ROOT_ONLY, profile(draft=50.0)) == 1.0


def test_each_level_with_children_costs_what_its_width_costs():
    timed = HardwareProfile(
        target_seconds=((1, 1.0), (7, 2.0)),
        draft_seconds=((1, 0.1), (2, 0.3)),
        verify_seconds=((1, 0.01), (7, 0.07)),
    )
    assert step_seconds(TREE, timed) == pytest.approx(2.57)
    assert timed.model.parts(7, [1, 2, 1]) == {
        "target": 2.0,
        "draft": pytest.approx(0.1 + 0.3 + 0.1),
        "verify": pytest.approx(0.07),
    }


def test_a_single_pair_is_a_constant():
    timed = HardwareProfile(target_seconds=((1, 2.0),), draft_seconds=((1, 0.5),))
    assert step_seconds(TREE, timed) == 3.5
    assert timed.costs.target.end is None


def test_sizes_and_widths_beyond_the_profile_have_no_cost():
    assert step_seconds(chain(9), profile(sizes=(1, 8))) == np.inf
    narrow = HardwareProfile(target_seconds=((1, 1.0),), draft_seconds=((1, 0.1), (2, 0.1)))
    assert step_seconds(TREE, narrow) == pytest.approx(1.3)
    assert step_seconds(TokenTree((-1, 0, 0, 0, 1, 2, 3)), narrow) == np.inf


def test_the_smaller_of_target_and_verification_limits_the_size():
    timed = profile(sizes=(1, 64), verify_seconds=linear(0, 0.01, (1, 32)))
    assert timed.costs.target.end == 32


def test_the_table_agrees_with_the_single_look_ups():
    timed = profile(0.01, 0.02, 0.003, verify_seconds=linear(0.0, 0.001, (1, 64)))
    table = CostTable.of(timed.costs, 70)
    widths = np.zeros((8, 3), np.int16)
    widths[7] = [1, 2, 1]
    assert table.seconds(widths)[7] == pytest.approx(step_seconds(TREE, timed))
    assert np.isinf(table.step[65:]).all()
    assert np.isfinite(table.step[1:65]).all()


def test_times_that_fall_are_fitted_by_times_that_do_not_and_warned_of():
    timed = HardwareProfile(((1, 1.0), (8, 0.5), (16, 3.0)), ((1, 0.2), (4, 0.1)), ((1, 0.1), (2, 0.2)))
    found, warnings = usable(timed)
    assert found.target_seconds == ((1, 0.75), (8, 0.75), (16, 3.0))
    assert found.draft_seconds == ((1, pytest.approx(0.15)), (4, pytest.approx(0.15)))
    assert found.verify_seconds == timed.verify_seconds
    assert "'target_seconds' falls from 1 s for 1 to 0.5 s for 8" in warnings[0]
    assert "'draft_seconds' falls" in warnings[1]


def test_one_time_alone_is_named_as_taken_for_every_size():
    _, warnings = usable(HardwareProfile(((1, 1.0),), ((1, 0.1),), ((1, 0.1), (8, 0.2))))
    assert warnings == ["one time alone in the profile's 'target_seconds' and 'draft_seconds': " + CONSTANT]
    assert usable(profile())[1] == []


@pytest.mark.parametrize("seconds", [1e308, 1e10, 1e-13, 5e-324])
def test_times_that_no_machine_has_are_refused_by_key(seconds):
    """Their sums and ratios would overflow."""
    with pytest.raises(BadInput, match=r"here\.yaml: 'draft_seconds' has .* seconds for 2; 1e-12 to 1e\+09"):
        usable(HardwareProfile(((1, 1.0), (8, 1.0)), ((1, 1.0), (2, seconds))), "here.yaml")


def test_the_shortest_and_longest_times_are_possible_and_a_time_for_1_is_needed():
    timed = HardwareProfile(((1, 1e-12), (8, 1e9)), ((1, 0.1),))
    assert usable(timed)[0] == timed
    with pytest.raises(BadInput, match=r"here\.yaml: 'target_seconds' begin at 2; a time for 1 is needed"):
        usable(HardwareProfile(((2, 1.0), (8, 1.0)), ((1, 0.1),)), "here.yaml")


def test_no_level_of_a_tree_is_wider_than_the_widest():
    for size in range(1, 9):
        widths = [len(level) for tree in all_trees(size) for level in tree.expanded]
        assert max(widths, default=1) == widest_level(size)


def test_the_table_knows_what_a_further_node_adds_and_where_that_changes():
    for unit in (1.0, 1e-6):
        draft = ((1, 0.1 * unit), (3, 0.1 * unit), (5, 0.5 * unit), (7, 0.9 * unit))
        table = CostTable.of(HardwareProfile(((1, unit), (9, unit)), draft).costs, 9)
        assert table.widest == 7
        assert table.extra == pytest.approx(unit * np.array([0, 0.1, 0, 0, 0.2, 0.2, 0.2, 0.2]))
        assert table.bends.tolist() == [3]
