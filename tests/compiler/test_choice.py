"""The choice of a tree by seconds per token: a tree, a chain, or none, whichever is fastest."""

import itertools

import pytest

from hand_written import RATES, linear, profile, step_seconds
from sequoia_cli.compiler import shapes
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.result import Candidate
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.errors import BadInput


def test_a_flat_target_takes_the_whole_budget():
    choice = choose(profile(target_slope=0.0), RATES, Limits(32))
    assert choice.chosen.shape == "tree"
    assert choice.chosen.tree.size == 32
    assert choice.speedup(choice.chosen) > 2


def test_a_steep_target_and_a_cheap_draft_take_a_chain():
    choice = choose(profile(target_slope=0.15, draft=0.01), RATES, Limits(32))
    assert choice.chosen.shape == "chain"
    assert choice.chosen.tree.is_chain


def test_costly_tokens_and_drafts_take_no_speculation_and_its_speedup_is_one():
    choice = choose(profile(target_slope=0.9, draft=0.3), RATES, Limits(32))
    assert choice.chosen.shape == "no speculation"
    assert choice.chosen.tree.size == 1
    assert choice.speedup(choice.chosen) == 1.0
    assert choice.chosen.parts["draft"] == 0


def test_a_draft_slower_than_its_target_is_never_used():
    """The case that the published search answers with a root-only tree at 0.167 times plain decoding."""
    timed = HardwareProfile(target_seconds=((1, 0.010),), draft_seconds=((1, 0.050),))
    choice = choose(timed, RATES, Limits(64))
    assert choice.chosen.tree.size == 1
    assert choice.plan({}, {}).predicted.speedup == 1.0


def test_rates_of_zero_take_no_speculation():
    assert choose(profile(), [[0.0, 0.0, 0.0]], Limits(32)).chosen.tree.size == 1


def test_a_first_rate_of_one_takes_a_pure_chain_of_all_layers():
    choice = choose(profile(draft=0.001), [[1.0]], Limits(64, max_depth=32))
    assert choice.chosen.shape == "chain"
    assert choice.chosen.tree.size == 32


def test_equal_speeds_take_the_smaller_tree():
    """A second child adds 0.5 tokens at the price of half the step of two nodes: sizes 2 and 3 are equal."""
    timed = HardwareProfile(((1, 1.0), (2, 1.2), (3, 1.6)), ((1, 1e-9), (2, 1e-9)))
    choice = choose(timed, [[0.5, 0.5]], Limits(3, max_depth=2))
    assert choice.chosen.seconds_per_token == pytest.approx(0.8)
    assert choice.chosen.tree.size == 2


def test_chosen_is_never_slower_than_plain_or_any_runner_up():
    for slope, draft, draft_slope in itertools.product((0, 0.02, 0.2, 1), (0.001, 0.1, 1), (0, 0.05)):
        choice = choose(profile(slope, draft, draft_slope), RATES, Limits(24))
        fastest = choice.chosen.seconds_per_token
        assert fastest <= choice.plain.seconds_per_token * (1 + 1e-9)
        assert all(fastest <= other.seconds_per_token * (1 + 1e-9) for other in choice.runners_up)


def test_runners_up_are_distinct_fastest_first_and_of_every_shape():
    choice = choose(profile(0.01), RATES, Limits(48))
    shapes = [other.shape for other in choice.runners_up]
    assert {"chain", "binary tree", "no speculation", "tree"} <= set(shapes)
    assert any(shape.endswith(" chains") for shape in shapes)
    times = [other.seconds_per_token for other in choice.runners_up]
    assert times == sorted(times)
    trees = [other.tree for other in (choice.chosen, *choice.runners_up)]
    assert len(set(trees)) == len(trees)


def test_every_figure_is_that_of_the_tree_next_to_it():
    timed = profile(0.01, 0.02, 0.001)
    choice = choose(timed, RATES, Limits(48))
    for candidate in (choice.chosen, choice.plain, *choice.runners_up):
        assert candidate.tokens_per_step == pytest.approx(expected_tokens(candidate.tree, RATES))
        assert candidate.seconds == step_seconds(candidate.tree, timed)
        assert sum(candidate.parts.values()) == pytest.approx(candidate.seconds)


def test_nothing_beyond_the_profile_is_chosen_and_the_result_says_so():
    choice = choose(profile(sizes=(1, 2, 4, 8, 16)), RATES, Limits(64))
    assert choice.chosen.tree.size <= 16
    assert choice.not_considered == ("sizes above 16: the profile's times end there",)


def test_levels_wider_than_the_draft_times_are_left_out_and_the_result_says_so():
    timed = HardwareProfile(target_seconds=((1, 1.0), (64, 1.0)), draft_seconds=((1, 0.02), (2, 0.02)))
    choice = choose(timed, RATES, Limits(64))
    assert all(len(level) <= 2 for level in choice.chosen.tree.expanded)
    assert "more than 2 nodes" in choice.not_considered[0]


def test_limits_hold():
    choice = choose(profile(), RATES, Limits(60, max_depth=4, max_branch=3))
    assert choice.chosen.tree.size <= 60
    assert choice.chosen.tree.depth <= 4
    assert choice.chosen.tree.max_branch <= 3


@pytest.mark.parametrize(
    "timed", [profile(), profile(0.02), profile(0.9, 0.3)], ids=["flat", "rising", "steep"]
)
@pytest.mark.parametrize("branch", [1, 2, 3, 9])
def test_simple_shapes_are_the_fastest_of_their_kind_within_the_limits(timed, branch):
    """All of them tried, at most four layers, and the five ranks that the rates have."""
    choice = choose(timed, RATES, Limits(20, max_depth=4, max_branch=branch))

    def fastest(*trees):
        return min((Candidate.of(tree, timed, RATES) for tree in trees), key=lambda c: c.seconds_per_token)

    def chains(count):
        return [shapes.chains(count, size) for size in range(count + 1, min(20, 1 + 3 * count) + 1)]

    wanted = {"chain": fastest(*chains(1))}
    if branch > 1:
        wanted["chains"] = fastest(
            *(tree for count in range(2, min(branch, 5) + 1) for tree in chains(count))
        )
        wanted["binary tree"] = fastest(*(shapes.k_ary(2, size) for size in range(3, 2**4)))
    shown = (choice.chosen, *choice.runners_up)
    assert len({each.tree for each in shown}) == len(shown)
    assert {each.shape.lstrip("0123456789 ") for each in shown} <= {"tree", "no speculation", *wanted}
    for kind, each in wanted.items():
        # Two kinds may have one tree, which stands there once; best trees of other sizes may be chains too.
        assert each.tree in [other.tree for other in shown]
        same = [other.seconds_per_token for other in shown if other.shape.endswith(kind)]
        assert not same or min(same) == pytest.approx(each.seconds_per_token)


def test_a_forced_size_may_be_beyond_the_budget():
    assert choose(profile(), RATES, Limits(8), size=12).chosen.tree.size == 12


def test_what_the_profile_covers_to_the_last_node_leaves_nothing_out():
    assert choose(profile(sizes=(1, 8, 64)), RATES, Limits(64)).not_considered == ()
    narrow = HardwareProfile(((1, 1.0), (9, 1.0)), ((1, 0.02), (4, 0.02)))  # four of nine nodes have children
    assert choose(narrow, RATES, Limits(9)).not_considered == ()


def test_a_forced_size_gets_its_best_depth():
    timed = profile(0.01, 0.05)
    choice = choose(timed, RATES, Limits(20), size=20)
    assert choice.chosen.tree.size == 20
    for depth in range(3, 20):
        other = choose(timed, RATES, Limits(20, max_depth=depth), size=20)
        assert choice.chosen.seconds_per_token <= other.chosen.seconds_per_token * (1 + 1e-9)


def test_a_forced_size_that_is_slower_than_plain_decoding_is_warned_of():
    choice = choose(profile(target_slope=0.9, draft=0.3), RATES, Limits(8), size=8)
    assert choice.chosen.tree.size == 8
    assert choice.speedup(choice.chosen) < 1
    assert "slower than plain decoding" in choice.warnings[0]
    assert choose(profile(target_slope=0.9, draft=0.3), RATES, Limits(8), size=1).warnings == ()


def test_a_forced_size_without_times_is_refused():
    timed = HardwareProfile(target_seconds=((1, 1.0), (64, 1.0)), draft_seconds=((1, 0.02), (2, 0.02)))
    with pytest.raises(BadInput, match="do not cover any tree of 60 nodes"):
        choose(timed, RATES, Limits(60, max_depth=5), size=60)


@pytest.mark.parametrize("key", ["target_seconds", "draft_seconds", "verify_seconds"])
def test_a_profile_without_the_time_for_one_is_refused_by_key(key):
    parts = {"target_seconds": ((1, 1.0), (8, 1.0)), "draft_seconds": ((1, 0.1), (8, 0.1))}
    with pytest.raises(BadInput, match=f"'{key}' begin at 2"):
        choose(HardwareProfile(**parts | {key: ((2, 1.0), (8, 1.0))}), RATES, Limits(8))


def test_equal_inputs_give_equal_choices():
    one, other = (choose(profile(0.01), RATES, Limits(48)) for _ in range(2))
    assert one.plan({}, {}).to_dict() == other.plan({}, {}).to_dict()


def test_a_row_per_depth_moves_the_nodes_to_where_they_are_accepted():
    deep_first = choose(profile(0.02), [[0.9, 0.05], [0.1, 0.1]], Limits(16)).chosen.tree
    deep_later = choose(profile(0.02), [[0.3, 0.3, 0.2], [0.9, 0.05]], Limits(16)).chosen.tree
    assert deep_first.depth < deep_later.depth


def test_a_plan_carries_costs_that_give_its_prediction_and_reach_to_the_budget():
    timed = profile(0.01, 0.02, 0.001, verify_seconds=linear(0, 0.002, (1, 64)), overhead_seconds=0.5)
    choice = choose(timed, RATES, Limits(48))
    plan = choice.plan({}, {})
    assert step_seconds(plan.tree, plan) == pytest.approx(plan.predicted.seconds_per_step)
    assert plan.costs.overhead == 0.5
    assert plan.costs.target.end == 48
    for size in (1, 7, 48):
        assert plan.costs.seconds(size, [size]) == pytest.approx(timed.costs.seconds(size, [size]))
    assert choice.chosen.parts["overhead"] == 0.5
