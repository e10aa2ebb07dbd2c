"""Costs of a step: curves between their points and nothing beyond them, and their sum over parts."""

from math import inf

import pytest

from sequoia_cli.core.artifact import Document
from sequoia_cli.core.costs import CostModel, Curve, Stage, StepCosts, combined
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.errors import BadInput

COSTS = StepCosts(Curve(((1, 1.0), (4, 2.5))), Curve(((1, 0.1), (3, 0.2))), 0.05)


def test_a_curve_is_linear_between_its_points_and_infinite_outside_them():
    curve = Curve(((2, 1.0), (4, 2.0), (12, 10.0)))
    assert [curve.seconds(count) for count in (2, 3, 4, 5, 8, 12)] == [1.0, 1.5, 2.0, 3.0, 6.0, 10.0]
    assert curve.seconds(1) == curve.seconds(13) == inf


def test_a_single_point_is_a_constant():
    assert [Curve(((5, 0.25),)).seconds(count) for count in (1, 5, 1000)] == [0.25] * 3


def test_a_step_costs_its_nodes_the_width_of_each_level_and_the_overhead():
    assert COSTS.seconds(1) == 1.05
    assert COSTS.seconds(3, [1, 2]) == pytest.approx(0.05 + 2.0 + 0.1 + 0.15)
    assert COSTS.seconds(5) == COSTS.seconds(4, [4]) == inf


# --- curves added up


def test_combined_curves_are_exact_at_all_points_as_far_as_all_reach():
    one, two = Curve(((1, 1.0), (5, 3.0))), Curve(((1, 2.0), (3, 0.0), (9, 6.0)))
    assert combined([one, two]).points == ((1, 3.0), (3, 2.0), (5, 5.0))
    assert combined([one, two, Curve(((7, 10.0),))]).points == ((1, 13.0), (3, 12.0), (5, 15.0))
    assert combined([one, two], max).points == ((1, 2.0), (3, 2.0), (5, 3.0))
    assert combined([Curve(((2, 1.0),)), Curve(((3, 2.0),))]).points == ((2, 3.0),)


def test_a_sum_of_curves_is_the_sum_everywhere_and_a_maximum_is_never_too_low():
    one, two = Curve(((1, 1.0), (4, 9.0), (20, 10.0))), Curve(((1, 5.0), (7, 5.5), (20, 30.0)))
    both, most = combined([one, two]), combined([one, two], max)
    for count in range(1, 21):
        seconds = one.seconds(count), two.seconds(count)
        assert both.seconds(count) == pytest.approx(sum(seconds))
        assert most.seconds(count) >= max(seconds) - 1e-12


def test_a_shortened_curve_says_the_same_up_to_its_end():
    line = [(count, 1.0 + 0.5 * count) for count in range(1, 9)]
    bent = Curve((*line, (12, 20.0), (14, 21.0)))
    assert bent.up_to(8).points == ((1, 1.5), (8, 5.0))
    assert bent.up_to(10).points == ((1, 1.5), (8, 5.0), (10, 12.5))
    for end in range(1, 20):
        short = bent.up_to(end)
        for count in range(1, min(end, 14) + 1):
            assert short.seconds(count) == pytest.approx(bent.seconds(count))
    assert Curve(((3, 0.1234567),)).up_to(2) == Curve(((3, 0.123457),))


# --- named parts

TRANSFER = Curve(((1, 2.0),))
MODEL = CostModel(
    (
        Stage({"target": Curve(((1, 1.0), (4, 4.0))), "transfer": TRANSFER}),
        Stage({"draft": Curve(((1, 0.1), (3, 0.3)))}, "level"),
        Stage({"verify": Curve(((1, 0.5), (4, 0.5)))}),
        Stage({"overhead": Curve(((1, 0.05),))}, "step"),
        Stage({"network": Curve(((1, 0.15),))}, "step"),
        Stage({"energy": Curve(((1, 7.0), (4, 10.0)))}, unit="joules"),
    ),
    context=128,
)


def test_parts_that_overlap_cost_the_longest_of_them_and_stages_add_up():
    assert MODEL.costs().seconds(1) == pytest.approx(2.0 + 0.5 + 0.2)
    assert MODEL.costs().seconds(4, [1, 2]) == pytest.approx(4.0 + 0.5 + 0.1 + 0.2 + 0.2)
    assert MODEL.costs().overhead == pytest.approx(0.2)


def test_each_part_is_told_by_its_name():
    parts = {"target": 4.0, "transfer": 2.0, "draft": pytest.approx(0.3), "verify": 0.5}
    assert MODEL.parts(4, [1, 2]) == parts | {"overhead": 0.05, "network": 0.15, "energy": 10.0}


def test_an_objective_adds_up_the_parts_in_its_unit():
    energy = MODEL.costs("joules per token")
    assert (energy.seconds(1), energy.seconds(4, [1, 2])) == (7.0, 10.0)


# --- in a tree file


def read(costs):
    data = {"schema": "sequoia-tree/1", "parents": [-1, 0], "costs": costs}
    return TreePlan.from_document(Document("tree.json", data, "")).costs


def test_costs_come_back_from_a_tree_file_as_they_were():
    assert read(COSTS.to_dict()) == COSTS
    assert read(None) is None
    assert read({"target": [[1, 1]], "draft": [[1, 2]]}).overhead == 0


@pytest.mark.parametrize(
    ("costs", "complaint"),
    [
        ([1], "tree.json, 'costs': a cost curve is a mapping of keys to values"),
        ({"target": [[1, 1]]}, "tree.json, 'costs': key 'draft' is missing; found target"),
        ({"target": [[1, 1], [1, 2]], "draft": [[1, 1]]}, "'costs': 'target' entry 2 has tokens 1 after 1"),
        ({"target": [[1, 1]], "draft": [[1, 1]], "overhead": -1}, "'overhead' is -1; expected seconds"),
        ({"target": [[1, 1]], "draft": [[1, 1]], "overheads": 1}, "unknown key 'overheads' in a cost curve"),
    ],
)
def test_wrong_costs_are_named(costs, complaint):
    with pytest.raises(BadInput, match=complaint):
        read(costs)
