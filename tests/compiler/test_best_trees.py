"""The best trees of all sizes and depths: against every tree there is, and the two methods compared."""

import numpy as np
import pytest

from oracles import trees_up_to, value_by_paths
from sequoia_cli.compiler import tables
from sequoia_cli.compiler.best import BestTrees, largest_tree
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.errors import BadInput

NODES = 8

RATES = {
    "sorted": [[0.55, 0.2, 0.1, 0.05, 0.02, 0.01, 0.01]],
    "unsorted": [[0.3, 0.05, 0.4, 0.02, 0.15, 0.01, 0.03]],
    "rising": [[0.02, 0.05, 0.1, 0.15, 0.2, 0.22, 0.24]],
    "with zeros": [[0.0, 0.6, 0.0, 0.0, 0.3, 0.0, 0.1]],
    "all equal": [[0.125] * 7],
    "all zero": [[0.0] * 7],
    "a certain first child": [[1.0, 0.0]],
    "sorted rows by depth": [[0.5, 0.3, 0.1], [0.8, 0.1], [0.4, 0.3, 0.2, 0.05]],
    "unsorted rows by depth": [[0.2, 0.5, 0.1, 0.15], [0.6, 0.05, 0.3], [0.1, 0.05, 0.7, 0.1], [0.9]],
}


def best_by_enumeration(rows, depth, branch):
    """The best value of each size, over all trees that keep the limits and have a rate for each child."""
    best = {}
    for tree in trees_up_to(NODES):
        ranks = [len(rows[min(layer, len(rows) - 1)]) for layer in tree.node_depths]
        fits = all(len(run) <= min(branch, most) for run, most in zip(tree.children, ranks, strict=True))
        if fits and tree.depth <= depth:
            best[tree.size] = max(best.get(tree.size, -np.inf), value_by_paths(tree, rows))
    return best


@pytest.mark.parametrize("branch", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", RATES.values(), ids=RATES.keys())
def test_no_tree_of_up_to_eight_nodes_beats_the_best_ones_at_any_depth_limit(rows, branch):
    """By the programme, and by the heap where the rates allow it."""
    for depth in range(1, NODES + 1):
        expected = best_by_enumeration(rows, depth, branch)
        for programme in (True, False):
            found = BestTrees(rows, NODES, depth, branch, programme=programme)
            for size in range(1, NODES + 1):
                assert found.value(size, depth) == pytest.approx(expected.get(size, -np.inf), abs=1e-12)


@pytest.mark.parametrize("rows", RATES.values(), ids=RATES.keys())
def test_one_filling_answers_all_smaller_depth_limits(rows):
    filled = BestTrees(rows, NODES, NODES, 7, programme=True)
    for depth in range(1, NODES + 1):
        alone = BestTrees(rows, NODES, depth, 7, programme=True)
        for size in range(1, NODES + 1):
            assert filled.value(size, depth) == alone.value(size, depth)


def random_rows(seed, descending):
    """Rows of uneven length whose sum is below 1."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(random.integers(1, 5)):
        row = random.dirichlet(np.ones(random.integers(1, 8))) * random.uniform(0.4, 1)
        rows.append(sorted(row.tolist(), reverse=True) if descending else row.tolist())
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_the_heap_equals_the_programme_where_rates_never_rise(seed):
    rows = random_rows(seed, descending=True)
    by_heap = BestTrees(rows, 60, 9, 5)
    by_programme = BestTrees(rows, 60, 9, 5, programme=True)
    assert by_heap.by_heap
    assert not by_programme.by_heap
    for depth in range(1, 10):
        for size in range(1, 61):
            assert by_heap.value(size, depth) == pytest.approx(by_programme.value(size, depth), abs=1e-12)


def test_the_heap_is_not_used_where_a_rate_rises():
    assert not BestTrees([[0.3, 0.05, 0.4]], 10, 5, 3).by_heap
    assert not BestTrees([[0.5, 0.1], [0.1, 0.2]], 10, 5, 3).by_heap
    assert BestTrees([[0.3, 0.2, 0.4]], 10, 5, 2).by_heap, "the rate that rises is beyond the branch limit"


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_the_built_tree_is_worth_its_table_entry_and_keeps_the_limits(seed, descending):
    rows = random_rows(seed, descending)
    best = BestTrees(rows, 40, 7, 4)
    for depth in range(1, 8):
        for size in range(1, 41):
            if np.isfinite(best.value(size, depth)):
                tree = best.tree(size, depth)
                assert (tree.size, tree.depth <= depth, tree.max_branch <= 4) == (size, True, True)
                assert expected_tokens(tree, rows) == pytest.approx(best.value(size, depth), abs=1e-12)
            else:
                with pytest.raises(ValueError, match="no tree of"):
                    best.tree(size, depth)


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_level_widths_of_all_sizes_are_those_of_the_built_trees(seed, descending):
    best = BestTrees(random_rows(seed, descending), 30, 6, 5)
    for depth, widths in enumerate(best.expanded(), start=1):
        for size in range(1, 31):
            if np.isfinite(best.value(size, depth)):
                expanded = [len(nodes) for nodes in best.tree(size, depth).expanded]
                assert widths[size].tolist() == expanded + [0] * (depth - 1 - len(expanded))


@pytest.mark.parametrize("rows", RATES.values(), ids=RATES.keys())
@pytest.mark.parametrize("branch", [2, 7])
def test_more_nodes_or_layers_never_lower_the_value(rows, branch):
    values = BestTrees(rows, 40, 12, branch).values[1:, 1:]
    for wider in range(1, values.shape[1]):
        there = np.isfinite(values[:, wider])
        assert (values[there, wider] >= values[there, wider - 1] - 1e-12).all()
    assert (values[1:] >= values[:-1] - 1e-12).all()


def test_a_certain_first_child_gives_a_chain():
    best = BestTrees([[1.0]], 20, 20, 8)
    assert best.tree(20, 20).is_chain
    assert best.value(20, 20) == 20


def test_sizes_out_of_reach_have_no_tree():
    best = BestTrees([[0.5, 0.2]], 10, 3, 32)
    assert np.isfinite(best.value(7, 3))
    assert best.value(8, 3) == -np.inf
    assert largest_tree([[0.5, 0.2]], 3, 32) == 7
    assert largest_tree([[0.5, 0.2, 0.1], [0.5]], 4, 2) == 1 + 2 + 2 + 2
    assert largest_tree([[0.5]], 1, 4) == 1
    assert largest_tree([[0.1] * 32], 3, 32) == 1 + 32 + 32**2
    assert largest_tree([[0.1] * 32], 32, 32) == tables.MAX_SIZE


def test_rows_that_repeat_change_nothing():
    row = [0.3, 0.05, 0.4, 0.02]
    once, thrice = BestTrees([row], 30, 8, 4), BestTrees([row, row, row], 30, 8, 4)
    assert np.array_equal(once.values, thrice.values)


@pytest.mark.parametrize("first", [[0.5, 0.1, 0.1, 0.1], [0.1] * 5])
@pytest.mark.parametrize("row", [[0.3, 0.05, 0.4, 0.02], [0.3, 0.2]])
def test_rows_that_repeat_at_the_end_are_kept_once(first, row):
    twice, often = (tables.rate_matrix([first, *[row] * count], 8, 4) for count in (1, 3))
    assert len(often) == 2
    assert np.array_equal(often, twice, equal_nan=True)
    assert often[1, : len(row)].tolist() == row and np.isnan(often[1, len(row) :]).all()


def taken_by(layers):
    return sum(array.nbytes for layer in layers for array in (layer.values, layer.counts, layer.last))


def test_tables_beyond_the_memory_that_is_free_are_refused_by_bytes(monkeypatch):
    rows = [[0.1, 0.2], [0.2, 0.3]] * 32
    needed = tables.table_bytes(tables.rate_matrix(rows, 64, 2), 100, 64)
    monkeypatch.setattr(tables, "free_memory", lambda: needed - 1)
    with pytest.raises(BadInput, match=r"100 nodes, 64 layers and 2 children of a node take 0\.0 GB"):
        BestTrees(rows, 100, 64, 2)
    monkeypatch.setattr(tables, "free_memory", lambda: needed)
    filled = tables.fill(tables.rate_matrix(rows, 64, 2), 100, 64)
    assert taken_by(filled) <= needed


def test_tables_take_what_is_said_where_no_layer_ends_them_early():
    rates = tables.rate_matrix([[0.1, 0.9], [0.2, 0.8]], 8, 2)
    filled = tables.fill(rates, 40, 8)
    without = filled[0].values.size * 2 * 2  # the first layer has no children to note
    assert taken_by(filled) == tables.table_bytes(rates, 40, 8) - without


def test_the_system_tells_how_much_memory_is_free():
    assert 1 << 20 < tables.free_memory() < 1 << 50


def test_free_memory_is_what_the_system_calls_available_or_all_where_it_does_not_say(monkeypatch):
    meminfo = "MemTotal: 64 kB\nMemFree: 8 kB\nMemAvailable: 16 kB\n"
    monkeypatch.setattr(tables.Path, "read_text", lambda path: meminfo)
    assert tables.free_memory() == 16 * 1024
    monkeypatch.setattr(tables.Path, "read_text", lambda path: "")
    monkeypatch.setattr(tables.os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert tables.free_memory() == 4096 * 1000


@pytest.mark.parametrize("limits", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (5000, 1, 1)])
def test_limits_without_any_tree_are_refused(limits):
    with pytest.raises(ValueError, match="no trees of up to"):
        BestTrees([[0.5]], *limits)


def test_the_least_and_the_most_nodes_have_a_tree():
    assert BestTrees([[0.5]], 1, 1, 1).tree(1, 1).size == 1
    assert BestTrees([[0.5]], tables.MAX_SIZE, 2, 1).value(2, 2) == 1.5
