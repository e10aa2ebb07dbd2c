"""The baselines of the papers by name: their sizes and layers, what a step with them brings and costs."""

import pytest

from hand_written import RATES, linear, profile, step_seconds
from sequoia_cli.compiler.fixed import weigh
from sequoia_cli.compiler.shape_names import named_shape
from sequoia_cli.compiler.shapes import chains, expansion, k_ary
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.errors import BadInput


@pytest.mark.parametrize(
    ("name", "size", "depth"),
    [
        ("chain:1", 2, 2),
        ("chain:8", 9, 9),
        ("kchains:5x8", 41, 9),  # SpecInfer's tree in Sequoia's Tables 1, 3 and 4
        ("kchains:16x48", 769, 49),  # its tree for offloading in Table 2
        ("kary:2x6", 127, 7),
        ("kary:3x1", 4, 2),
        ("expansion:1,1,3,1,1,1,1,1", 21, 9),  # the configuration of SpecInfer's experiments
        ("expansion:4", 5, 2),
    ],
)
def test_a_name_does_not_count_the_root_while_size_and_depth_do(name, size, depth):
    tree = named_shape(name)
    assert (tree.size, tree.depth) == (size, depth)


def test_names_stand_for_the_shapes_that_the_choice_compares_with():
    assert named_shape("chain:8") == chain(9) == chains(1, 9)
    assert named_shape("kchains:5x8") == chains(5, 41)
    assert named_shape("kary:2x6") == k_ary(2, 127)
    assert named_shape("sequoia") is None


def test_an_expansion_gives_every_node_of_a_layer_its_count_of_children():
    tree = expansion([1, 1, 3, 1])
    assert tree == TokenTree((-1, 0, 1, 2, 2, 2, 3, 4, 5))
    assert [len(tree.children[node]) for level in tree.levels for node in level] == [
        1,
        1,
        3,
        1,
        1,
        1,
        0,
        0,
        0,
    ]


@pytest.mark.parametrize(
    "text", ["0", "-1", "2x", "x", "", "a", "1.5", " 8", "08", "2x3x4", "１", "9" * 5000]
)
@pytest.mark.parametrize("kind", ["chain", "kchains", "kary", "expansion"])
def test_numbers_that_are_none_are_refused_with_an_example_of_the_kind(kind, text):
    with pytest.raises(BadInput, match=f"expected whole numbers from 1 up, as in {kind}:"):
        named_shape(f"{kind}:{text}")


@pytest.mark.parametrize("name", ["tree", "tree:8", "Sequoia", "", ":", "sequoia:8"])
def test_an_unknown_kind_is_refused_with_the_known_ones(name):
    with pytest.raises(BadInput, match="is no shape; expected one such as sequoia, chain:8, kchains:5x8"):
        named_shape(name)


@pytest.mark.parametrize(
    "name", ["chain:4096", "chain:999999999", "kary:2x999999999", "kary:999999999x1", "kchains:5x820"]
)
def test_a_tree_beyond_the_largest_is_refused_without_making_it(name):
    with pytest.raises(BadInput, match=f"{name} has more than 4096 nodes"):
        named_shape(name)


def test_the_largest_tree_is_allowed():
    assert named_shape("chain:4095").size == 4096


def test_a_fixed_shape_is_weighed_by_value_and_cost_beside_plain_decoding():
    timed = profile(0.01, 0.02, 0.001, verify_seconds=linear(0, 0.002, (1, 64)))
    tree = named_shape("kchains:4x3")
    choice = weigh(timed, RATES, tree, "kchains:4x3")
    assert (choice.chosen.tree, choice.chosen.shape) == (tree, "kchains:4x3")
    assert choice.chosen.tokens_per_step == expected_tokens(tree, RATES)
    assert choice.chosen.seconds == step_seconds(tree, timed)
    assert [other.shape for other in choice.runners_up] == ["no speculation"]
    assert choice.speedup(choice.plain) == 1
    assert not choice.warnings


def test_a_fixed_shape_that_is_slower_than_plain_decoding_is_warned_of():
    choice = weigh(profile(target_slope=0.9, draft=0.3), RATES, named_shape("chain:8"), "chain:8")
    assert choice.speedup(choice.chosen) < 1
    assert choice.warnings[0].startswith("the tree of 9 nodes asked for is slower than plain decoding: 0.")


def test_children_of_ranks_that_were_not_measured_count_nothing_and_are_warned_of():
    wide, narrow = (weigh(profile(), RATES, named_shape(name), name) for name in ("kary:9x1", "kary:5x1"))
    assert wide.chosen.tokens_per_step == narrow.chosen.tokens_per_step
    assert "kary:9x1 has up to 9 children of a node, the acceptance rates 5 ranks" in wide.warnings[0]
    assert not narrow.warnings


def test_a_shape_that_the_profile_does_not_cover_is_refused_by_what_lies_beyond():
    with pytest.raises(BadInput, match="chain:64 has 65 nodes, beyond the profile, whose times end at 64"):
        weigh(profile(), RATES, named_shape("chain:64"), "chain:64")
    timed = HardwareProfile(target_seconds=((1, 1.0), (64, 1.0)), draft_seconds=((1, 0.02), (2, 0.02)))
    with pytest.raises(BadInput, match=r"has a level of 4 nodes to expand.* whose draft times end at 2"):
        weigh(timed, RATES, named_shape("kary:2x3"), "kary:2x3")
