"""Expected tokens of any tree in closed form, and the plain shapes."""

import random

import pytest

from oracles import trees_up_to, value_by_paths
from sequoia_cli.compiler.shapes import chains, k_ary, prefix
from sequoia_cli.compiler.value import expected_tokens, node_scores
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain

ROWS = [[0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01], [0.3, 0.4, 0.1, 0.05, 0.02, 0.01, 0.01]]


def test_the_root_is_the_bonus_token():
    assert expected_tokens(ROOT_ONLY, ROWS) == 1


def test_every_small_tree_is_worth_the_sum_over_its_paths():
    for tree in trees_up_to(7):
        assert expected_tokens(tree, ROWS) == pytest.approx(value_by_paths(tree, ROWS), abs=1e-12)


def test_a_chain_is_worth_a_geometric_series():
    assert expected_tokens(chain(5), [[0.6]]) == pytest.approx((1 - 0.6**5) / (1 - 0.6))


def test_ranks_beyond_the_rates_count_nothing():
    assert node_scores(TokenTree((-1, 0, 0, 2)), [[0.5]]) == [1.0, 0.5, 0.0, 0.0]


def test_simulated_acceptance_agrees_with_the_value():
    """20,000 walks with a fixed seed, within 5 standard errors: a right value fails with chance below 1e-6.

    Five standard errors are about 0.03 tokens, so a value off by 0.06 is seen as surely.
    """
    tree, rows = TokenTree((-1, 0, 0, 0, 1, 1, 2, 4)), [[0.5, 0.2, 0.1], [0.4, 0.3]]
    draw = random.Random(17)
    lengths = [_walk(tree, rows, draw) for _ in range(20_000)]
    mean = sum(lengths) / len(lengths)
    error = (sum((length - mean) ** 2 for length in lengths) / len(lengths) ** 2) ** 0.5
    assert abs(mean - expected_tokens(tree, rows)) < 5 * error
    # Control: the value with the first two rates exchanged must not pass.
    assert abs(mean - expected_tokens(tree, [[0.2, 0.5, 0.1], [0.4, 0.3]])) > 5 * error


def _walk(tree, rows, draw):
    """Tokens of one step: go to the child that is drawn by its marginal rate, until none is."""
    node, tokens = 0, 1
    while True:
        u = draw.random()
        row = rows[min(tree.node_depths[node], len(rows) - 1)]
        for child, rate in zip(tree.children[node], row, strict=False):
            if u < rate:
                node, tokens = child, tokens + 1
                break
            u -= rate
        else:
            return tokens


def test_independent_chains_share_only_the_root():
    tree = chains(3, 8)
    assert tree.parents == (-1, 0, 0, 0, 1, 2, 3, 4)
    assert [len(level) for level in tree.levels] == [1, 3, 3, 1]
    assert chains(1, 5) == chain(5)


def test_a_binary_tree_is_filled_layer_by_layer():
    assert [len(level) for level in k_ary(2, 10).levels] == [1, 2, 4, 3]
    assert k_ary(2, 10).max_branch == 2


def test_the_first_nodes_of_a_shape_are_the_same_shape():
    assert prefix(chains(3, 20), 8) == chains(3, 8)
    assert prefix(k_ary(2, 20), 10) == k_ary(2, 10)
