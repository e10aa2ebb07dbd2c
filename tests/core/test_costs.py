"""Costs of a step: curves between their points and nothing beyond them, and their sum over parts."""

from math import inf

import pytest

from sequoia_cli.core.artifact import Document
from sequoia_cli.core.costs import Curve, StepCosts
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
