"""TreePlan: what a tree file says, and every broken one refused by its first wrong node or key."""

import pytest

from sequoia_cli.core.artifact import Document, parse_document, render
from sequoia_cli.core.plan import Prediction, TreePlan
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.errors import BadInput

MINIMAL = {"schema": "sequoia-tree/1", "parents": [-1, 0, 0, 1]}


def read(**changes):
    data = {key: value for key, value in (MINIMAL | changes).items() if value is not None}
    return TreePlan.from_document(Document("tree.json", data, ""))


def test_schema_and_parents_alone_are_a_tree_file():
    plan = read()
    assert plan.tree == TokenTree((-1, 0, 0, 1))
    assert (plan.predicted, plan.inputs, plan.runners_up, plan.record) == (None, {}, (), {})


@pytest.mark.parametrize("style", ["json", "yaml"])
@pytest.mark.parametrize(
    "predicted",
    [
        None,
        Prediction(2.5),
        Prediction(2.5, 0.012, 1.75),
        Prediction(2.5, 0.012, 1.75, (2.25, 2.75), (1.5, 2.0), 0.01),
    ],
    ids=["none", "tokens", "all", "with intervals"],
)
def test_a_plan_comes_back_from_its_file_as_it_was(style, predicted):
    plan = TreePlan(
        TokenTree((-1, 0, 0, 1, 1, 2)),
        predicted,
        {"profile": {"digest": "sha256:12", "name": "é.yaml"}},
        ({"size": 4, "tokens_per_step": 2.25},) if predicted else (),
        {"command": "sequoia compile", "version": "0.1.0"},
    )
    text = render(plan.to_dict(), style)
    again = TreePlan.from_document(parse_document(text.encode(), "x"))
    assert again == plan
    assert render(again.to_dict(), style) == text


@pytest.mark.parametrize(
    ("tree", "verdict"),
    [
        (ROOT_ONLY, "no speculation"),
        (chain(2), "chain"),
        (chain(5), "chain"),
        (TokenTree((-1, 0, 0)), "tree"),
    ],
)
def test_the_verdict_follows_from_the_tree(tree, verdict):
    assert TreePlan(tree).verdict == TreePlan(tree).to_dict()["verdict"] == verdict
    assert tree.is_chain == (verdict == "chain")


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [
        ([], "the tree has no nodes"),
        ([0], "node 0 has parent 0; the root comes first, with parent -1"),
        ([-1, 2, 0], "node 1 has parent 2; a parent comes before its children"),
        ([-1, 0, 2], "node 2 has parent 2; a parent comes before its children"),  # a cycle of one
        ([-1, 0, 3, 2], "node 2 has parent 3; a parent comes before its children"),  # a cycle of two
        ([-1, 0, -1], "node 2 is a second root; only node 0 has parent -1"),
        ([-1, 0, 1, 0], "node 3 has parent 0 after node 2 with parent 1; nodes are numbered breadth-first"),
        ([-1, 0, -2], "node 2 has parent -2"),
        ([-1, 0, 9], "node 2 has parent 9"),
        ([-1, 0, 1.0], "node 2 has parent 1.0; a parent is a whole number"),
        ([-1, "0"], "node 1 has parent '0'; a parent is a whole number"),
        ([-1, False], "node 1 has parent False; a parent is a whole number"),
        ([-1, None], "node 1 has parent None"),
        ([-1, [0]], r"node 1 has parent \[0\]"),
        ([-1, 5, "x"], "node 1 has parent 5"),  # the first of two
    ],
)
def test_a_broken_tree_is_named_by_its_first_wrong_node(parents, complaint):
    with pytest.raises(BadInput, match=f"tree\\.json: {complaint}"):
        read(parents=parents)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"parents": None}, "key 'parents' is missing; found schema"),
        ({"parents": 3}, "'parents' is 3; expected a list of parent numbers"),
        ({"parents": {"0": -1}}, "expected a list of parent numbers"),
        ({"size": 5}, "'size' is 5; expected 4, as 'parents' has it"),
        ({"size": "4"}, "'size' is '4'; expected 4"),
        ({"depth": 2}, "'depth' is 2; expected 3, as 'parents' has it"),
        ({"schema": None}, "key 'schema' is missing; found parents"),
        ({"schema": "sequoia-tree/99"}, "schema sequoia-tree/99 is not known .* reads sequoia-tree/1"),
        ({"schema": "sequoia-rates/1"}, "'schema' is 'sequoia-rates/1'; expected 'sequoia-tree/1'"),
        ({"parrents": [-1]}, "unknown key 'parrents' in a tree file; did you mean 'parents'"),
        ({"predicted": 2}, "'predicted' is 2; expected a mapping"),
        ({"predicted": {}}, "'predicted' has no 'tokens_per_step'"),
        ({"predicted": {"speedup": 2}}, "'predicted' has no 'tokens_per_step'"),
        (
            {"predicted": {"tokens_per_step": 0}},
            "'predicted.tokens_per_step' is 0; expected a number above 0",
        ),
        ({"predicted": {"tokens_per_step": 2, "speedup": "2"}}, "'predicted.speedup' is '2'"),
        ({"predicted": {"tokens_per_step": float("nan")}}, "'predicted.tokens_per_step' is nan"),
        (
            {"predicted": {"tokens_per_step": 2, "speedup_interval": [2, 1]}},
            "'predicted.speedup_interval' is .* expected a lower and an upper end",
        ),
        (
            {"predicted": {"tokens_per_step": 2, "tokens_per_step_interval": 2}},
            "'predicted.tokens_per_step_interval' is 2",
        ),
        ({"predicted": {"tokens_per_step": 2, "optimism": "small"}}, "'predicted.optimism' is 'small'"),
        ({"inputs": [1]}, r"'inputs' is \[1\]; expected a mapping"),
        ({"runners_up": 5}, "'runners_up' is 5; expected a list of mappings"),
        ({"runners_up": ["tree"]}, r"'runners_up' is \['tree'\]; expected a list of mappings"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_expected(changes, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        read(**changes)
    assert error.value.message.startswith("tree.json: ")


def test_a_file_cut_short_is_named_with_its_place():
    text = render(TreePlan(chain(6)).to_dict(), "json").encode()
    for length in range(1, len(text) - 1):
        with pytest.raises(BadInput, match=r"tree\.json"):
            TreePlan.from_document(parse_document(text[:length], "tree.json"))


@pytest.mark.parametrize("entry", [{"shape": "chain"}, {"shape": "chain", "size": 0}, {"size": "3"}])
def test_another_shape_without_a_usable_size_is_refused(entry):
    data = {"schema": "sequoia-tree/1", "parents": [-1, 0], "runners_up": [entry]}
    with pytest.raises(BadInput, match=r"'runners_up' entry 1 has size .*; expected a whole number"):
        TreePlan.from_document(Document("x", data, ""))
