"""TokenTree: the rules of a tree, and what is derived from its parent list."""

import pytest

from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.errors import BadInput

TREE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


def test_views_of_a_tree_are_derived_from_its_parents():
    assert TREE.levels == (range(1), range(1, 3), range(3, 6), range(6, 7))
    assert TREE.children[1] == range(3, 5)
    assert TREE.ranks == (0, 0, 1, 0, 1, 0, 0)
    assert TREE.node_depths == (0, 1, 1, 2, 2, 2, 3)
    assert TREE.expanded == ((0,), (1, 2), (3,))
    assert TREE.path(6) == [0, 1, 3, 6]
    assert (TREE.size, TREE.depth, TREE.max_branch) == (7, 4, 2)


def test_size_and_depth_count_the_root():
    assert (ROOT_ONLY.size, ROOT_ONLY.depth, ROOT_ONLY.expanded) == (1, 1, ())
    assert (chain(4).size, chain(4).depth, chain(4).is_chain) == (4, 4, True)
    assert [TokenTree(parents).is_chains for parents in ((-1, 0, 1), (-1, 0, 0, 1), (-1, 0, 1, 1))] == [
        1,
        1,
        0,
    ]


def test_child_counts_by_layer_give_the_same_tree():
    assert TokenTree.from_child_counts([[2], [2, 1], [1, 0, 0]]) == TREE


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [
        ((), "no nodes"),
        ((0,), "node 0 has parent 0"),
        ((-1, -1), "node 1 is a second root"),
        ((-1, 2, 0), "node 1 has parent 2"),
        ((-1, 0, 1, 0), "node 3 has parent 0 after node 2"),
        ((-1, "0"), "node 1 has parent '0'"),
        ((-1, -2), "node 1 has parent -2"),
    ],
)
def test_a_broken_tree_is_refused_by_its_first_wrong_node(parents, complaint):
    with pytest.raises(BadInput, match=complaint):
        TokenTree(parents)
