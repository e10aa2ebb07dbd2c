"""Known values: the paper's vector, its trees, and its other shapes.

tests/benchmarks/test_bench_paper.py has more figures.
"""

import numpy as np
import pytest

from published import published
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.shapes import chains
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.tree import TokenTree, chain

VECTORS = ("sequoia_repo_demo", "llama3_70b_from_8b_cnn")


def vector(name):
    return published("published_rates.json")["vectors"][name]


def test_appendix_e_values_by_size():
    rates = vector("llama3_70b_from_8b_cnn")
    best = BestTrees([rates["p"]], 768, 64, 32)
    for size, value in rates["known"]["best_value_by_size"]:
        assert round(best.value(size, 64), 4) == value
    assert round(best.value(768, 18), 3) == rates["known"]["size_768_within_18_layers"]


def test_appendix_e_bounds_of_other_shapes():
    """A chain is worth at most 1 / (1 - p1), and several chains at most 1 more."""
    rows = [vector("llama3_70b_from_8b_cnn")["p"]]
    assert expected_tokens(chain(400), rows) == pytest.approx(4.409, abs=1e-3)
    assert expected_tokens(chains(16, 4000), rows) < 5.409


@pytest.mark.parametrize("name", VECTORS)
def test_no_published_tree_is_worth_more_than_ours_of_its_size_and_depth(name):
    trees = published("published_trees.json")
    rows = [vector(name)["p"]]
    best = BestTrees(rows, 768, 18, 40)
    assert len(trees) == 62
    for label, entry in trees.items():
        tree = TokenTree(tuple(entry["parents"]))
        assert (tree.size, tree.depth) == (entry["size"], entry["layers"]), label
        assert best.value(tree.size, tree.depth) >= expected_tokens(tree, rows) - 1e-12, label


@pytest.mark.parametrize("name", VECTORS)
def test_best_trees_by_heap_of_the_published_vectors_equal_the_programme(name):
    rows = [sorted(vector(name)["p"], reverse=True)]
    by_heap, by_programme = BestTrees(rows, 200, 12, 32), BestTrees(rows, 200, 12, 32, programme=True)
    assert by_heap.by_heap
    for depth in range(1, 13):
        there = np.isfinite(by_programme.values[depth])
        assert np.allclose(by_heap.values[depth][there], by_programme.values[depth][there], atol=1e-12)
