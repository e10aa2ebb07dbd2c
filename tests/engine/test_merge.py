"""Trees of several drafts as one: every path of tokens once, and each draft's own numbers found again."""

import random

import pytest

from oracles import trees_up_to
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.merge import merge, unmerged

TREE = TokenTree((-1, 0, 0, 1, 1, 2))


def random_tokens(rng, tree, vocabulary):
    """Tokens of a tree whose siblings differ, as draws without replacement do."""
    tokens = [7] * tree.size
    for run in tree.children:
        for child, token in zip(run, rng.sample(range(vocabulary), len(run)), strict=True):
            tokens[child] = token
    return tokens


def text(tree, tokens, node):
    """The tokens on the path to a node."""
    return tuple(tokens[i] for i in tree.path(node))


def cases(count):
    """(tree, tokens by draft) for every tree of up to six nodes; with few ids many prefixes are shared."""
    rng = random.Random(count)
    for tree in trees_up_to(6):
        for vocabulary in (tree.max_branch, tree.max_branch + 1, 20):
            yield tree, [random_tokens(rng, tree, max(1, vocabulary)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_merged_tree_has_every_path_of_every_draft_once(count):
    for tree, tokens in cases(count):
        merged = merge([tree] * len(tokens), tokens)
        found = [text(merged.tree, merged.tokens, node) for node in range(merged.tree.size)]
        wanted = {text(tree, own, node) for own in tokens for node in range(tree.size)}
        assert len(found) == len(set(found))
        assert set(found) == wanted
        assert tree.size <= merged.tree.size <= count * (tree.size - 1) + 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nodes_and_sources_say_the_same_and_keep_the_path(count):
    for tree, tokens in cases(count):
        merged = merge([tree] * len(tokens), tokens)
        for draft in range(count):
            for node in range(tree.size):
                place = merged.nodes[draft][node]
                assert text(merged.tree, merged.tokens, place) == text(tree, tokens[draft], node)
                assert (draft, node) in merged.sources[place]
        assert sum(len(here) for here in merged.sources) == count * tree.size


def test_a_path_in_a_drafts_own_numbers_ends_where_it_leaves_the_drafts_tree():
    for tree, tokens in cases(2):
        merged = merge([tree] * len(tokens), tokens)
        for node in range(merged.tree.size):
            path = merged.tree.path(node)
            for draft in range(2):
                by_text = {text(tree, tokens[draft], own): own for own in range(tree.size)}
                texts = [text(merged.tree, merged.tokens, step) for step in path]
                assert merged.own_path(draft, path) == [by_text[one] for one in texts if one in by_text]


def test_children_stand_in_the_order_of_the_proposals():
    merged = merge([TREE] * 2, [[9, 4, 5, 1, 2, 3], [9, 6, 4, 8, 7, 2]])
    # The root: 4 and 5 from the first, then 6; behind 4: 1 and 2 from the first, 2 again from the second.
    assert merged.tokens == [9, 4, 5, 6, 1, 2, 3, 8, 7]
    assert merged.tree.parents == (-1, 0, 0, 0, 1, 1, 2, 3, 3)
    assert merged.nodes == [[0, 1, 2, 4, 5, 6], [0, 3, 1, 7, 8, 5]]
    assert merged.sources[1] == [(0, 1), (1, 2)]


def test_a_token_drawn_twice_by_one_draft_stands_twice_and_once_for_both_drafts():
    merged = merge([TokenTree((-1, 0, 0, 0))] * 2, [[9, 4, 4, 5], [9, 5, 4, 4]])
    assert merged.tokens == [9, 4, 4, 5]
    assert merged.nodes == [[0, 1, 2, 3], [0, 3, 1, 2]]
    assert merged.sources[1:] == [[(0, 1), (1, 2)], [(0, 2), (1, 3)], [(0, 3), (1, 1)]]


def test_what_was_drawn_behind_a_node_is_told_by_draft():
    merged = merge([TREE] * 2, [[9, 4, 5, 1, 2, 3], [9, 6, 4, 8, 7, 2]])
    rows = [{0: "a0", 1: "a1", 2: "a2"}, {0: "b0", 1: "b1", 2: "b2"}]
    assert merged.drawn(0, rows) == [("a0", [1, 2]), ("b0", [3, 1])]
    assert merged.drawn(1, rows) == [("a1", [4, 5]), ("b2", [5])]
    assert merged.drawn(3, rows) == [("b1", [7, 8])]
    assert merged.drawn(8, rows) == []


@pytest.mark.parametrize("tree", [ROOT_ONLY, chain(4), TREE], ids=lambda tree: str(tree.size))
def test_drafts_that_agree_give_the_tree_of_one(tree):
    tokens = random_tokens(random.Random(0), tree, 20)
    alone, both = unmerged(tree, tokens), merge([tree] * 2, [tokens, tokens])
    assert both.tree == alone.tree == tree
    assert list(both.tokens) == list(alone.tokens) == tokens
    assert all(list(nodes) == list(range(tree.size)) for nodes in (*alone.nodes, *both.nodes))


def test_one_draft_is_merged_as_it_is():
    for tree, tokens in cases(1):
        merged, alone = merge([tree] * len(tokens), tokens), unmerged(tree, tokens[0])
        rows = [{node: node for node in range(tree.size)}]
        for node in range(tree.size):
            (drawn,) = merged.drawn(node, rows) or [None]
            (same,) = alone.drawn(node, rows) or [None]
            assert drawn == same
            assert merged.own_path(0, tree.path(node)) == alone.own_path(0, tree.path(node))
