"""The choice over trees and costs together: against every small tree, and every choice of caps for others."""

import itertools

import numpy as np
import pytest

from hand_written import step_seconds
from oracles import best_by_size_within_caps, trees_up_to
from random_models import random_profile, random_rates
from sequoia_cli.compiler import heap
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.cost import CostTable
from sequoia_cli.compiler.families import best_family
from sequoia_cli.compiler.tables import rate_matrix
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.hardware import HardwareProfile

NODES = 9

#: What the choice may be slower than the fastest tree.
SHARE = 1e-3


def fastest_by_enumeration(profile, rows, **limits):
    """Seconds per token of the fastest of all trees of up to nine nodes."""
    found = np.inf
    for tree in trees_up_to(NODES):
        seconds = step_seconds(tree, profile)
        if all(getattr(tree, name) <= most for name, most in limits.items()):
            found = min(found, seconds / expected_tokens(tree, rows))
    return found


#: Models that the starts of the search alone, or one order of the candidates alone, get wrong.
HARD = {True: (257, 639), False: (173, 1036)}


@pytest.mark.parametrize("descending", [True, False])
def test_no_tree_of_up_to_nine_nodes_is_faster_than_the_choice_whatever_levels_cost(descending):
    """Random models and hard ones. The control, the fastest best-valued tree, is too slow in some of them."""
    control = []
    for seed in (*range(50), *HARD[descending]):
        random = np.random.default_rng([int(descending), seed])
        profile, rows = random_profile(random, NODES), random_rates(random, descending)
        fastest = fastest_by_enumeration(profile, rows)
        found = choose(profile, rows, Limits(NODES)).chosen.seconds_per_token
        assert fastest * (1 - 1e-9) <= found <= fastest * (1 + SHARE)
        ends = [times[-1][0] for times in (profile.target_seconds, profile.verify_seconds) if times]
        best = BestTrees(rows, min(ends), NODES, NODES)
        control.append(best_family(best, CostTable.of(profile.costs, min(ends))).per_token() / fastest - 1)
    assert max(control) > 2 * SHARE


def test_the_limits_of_depth_and_branch_hold_for_the_search_over_levels():
    random = np.random.default_rng(2)
    for depth, branch in ((3, 9), (4, 2), (9, 1)):
        profile, rows = random_profile(random, NODES), random_rates(random, True)
        fastest = fastest_by_enumeration(profile, rows, depth=depth, max_branch=branch)
        found = choose(profile, rows, Limits(NODES, depth, branch)).chosen
        assert fastest * (1 - 1e-9) <= found.seconds_per_token <= fastest * (1 + SHARE)
        assert found.tree.depth <= depth
        assert found.tree.max_branch <= branch


@pytest.mark.parametrize("seed", range(6))
def test_the_candidates_within_caps_are_the_best_trees_within_them(seed):
    random = np.random.default_rng(200 + seed)
    rows = random_rates(random, True)
    caps = (1, *random.integers(1, 5, 4).tolist())
    rates = rate_matrix(rows, 6, 9)
    grown = heap.grow(rates, rates, 30, 6, caps)
    for size, (tokens, widths) in enumerate(best_by_size_within_caps(rows, caps, 30), start=1):
        tree = grown.tree(size, 6)
        assert (tree.size, expected_tokens(tree, rows)) == (size, pytest.approx(tokens))
        assert [len(level) for level in tree.expanded] == [width for width in widths if width]


@pytest.mark.parametrize("keys", [heap.means, heap.minima])
def test_candidates_of_rising_rates_are_trees_of_every_size_within_their_caps(keys):
    random = np.random.default_rng(9)
    for _ in range(10):
        rows, caps = random_rates(random, False), (1, 3, 2, 2)
        rates = rate_matrix(rows, 5, 9)
        assert heap.is_sorted(keys(rates))
        grown = heap.grow(rates, keys(rates), 24, 5, caps)
        order = grown.orders[-1]
        for size in range(1, len(order.scores) + 1):
            tree = grown.tree(size, 5)
            assert expected_tokens(tree, rows) == pytest.approx(order.scores[:size].sum())
            assert all(len(level) <= cap for level, cap in zip(tree.expanded, caps, strict=False))


@pytest.mark.parametrize("seed", [240, 272, 856, 1128])
def test_no_choice_of_caps_is_faster_for_trees_of_sixty_nodes(seed):
    """Four layers; the second and third may have any number of nodes with children. Hard models, as above."""
    random = np.random.default_rng([2, seed])
    profile, rows = random_profile(random, 60), random_rates(random, True)
    table = CostTable.of(profile.costs, 60)
    fastest = np.inf
    for caps in itertools.product(range(1, min(table.widest, 24) + 1), repeat=2):
        for size, (tokens, widths) in enumerate(best_by_size_within_caps(rows, (1, *caps), 60), start=1):
            seconds = table.step[size] + sum(table.draft[width] for width in widths)
            if np.isfinite(seconds):
                fastest = min(fastest, seconds / tokens)
    found = choose(profile, rows, Limits(60, max_depth=4)).chosen.seconds_per_token
    assert found <= fastest * (1 + SHARE)


def test_where_draft_times_end_the_best_narrower_tree_is_found():
    """Without a search over caps only those trees are left whose levels happen to be narrow."""
    sizes = tuple((size, 0.025) for size in (1, 64))
    timed = HardwareProfile(sizes, tuple((width, 0.0005) for width in (1, 2, 3)))
    rows = [[0.63, 0.11, 0.06, 0.03, 0.02, 0.015, 0.01, 0.01]]
    choice = choose(timed, rows, Limits(64))
    narrow = best_family(BestTrees(rows, 64, 32, 32), CostTable.of(timed.costs, 64)).per_token()
    assert max(len(level) for level in choice.chosen.tree.expanded) <= 3
    assert choice.chosen.seconds_per_token < 0.95 * narrow
    assert choice.chosen.tree.size > 40


def test_a_forced_size_is_found_with_narrow_levels_where_wide_ones_are_not_covered():
    timed = HardwareProfile(((1, 1.0), (64, 1.0)), ((1, 0.02), (2, 0.02)))
    choice = choose(timed, [[0.6, 0.15, 0.08, 0.04, 0.02]], Limits(40), size=40)
    assert choice.chosen.tree.size == 40
    assert max(len(level) for level in choice.chosen.tree.expanded) <= 2


def test_every_size_of_the_curve_costs_and_brings_what_its_tree_does():
    random = np.random.default_rng(3)
    for descending in (True, False):
        profile, rows = random_profile(random, 16), random_rates(random, descending)
        for point in choose(profile, rows, Limits(16)).curve:
            chosen = choose(profile, rows, Limits(16), size=point.size).chosen
            assert chosen.seconds_per_token <= point.seconds_per_step / point.tokens_per_step * (1 + SHARE)


def test_means_are_the_closest_rates_that_never_rise_and_minima_the_largest_below():
    rates = np.array([[0.1, 0.2, 0.6, 0.05], [0.3, 0.1, 0.2, np.nan]])
    assert heap.means(rates) == pytest.approx(
        np.array([[0.3, 0.3, 0.3, 0.05], [0.3, 0.15, 0.15, np.nan]]), nan_ok=True
    )
    assert heap.minima(rates) == pytest.approx(
        np.array([[0.1, 0.1, 0.1, 0.05], [0.3, 0.1, 0.1, np.nan]]), nan_ok=True
    )
