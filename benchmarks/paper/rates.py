"""Acceptance vectors for pairs whose own are not published, recovered from what is printed of them.

The chance that the first k children are all rejected is taken as r_k = (1 + scale k)^-exponent, the b power
law of Definition 3.5 (arXiv 2402.12374) with r_0 = 1: two parameters for a whole vector.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, least_squares, minimize_scalar

from paper import figures
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.tree import TokenTree

#: Children that the published searches allow a node, and so the ranks of the vectors that they use.
BRANCH = 32
#: More layers add less than 1e-4 tokens to any tree here.
DEPTH = 48


def power_law(scale: float, exponent: float, ranks: int = BRANCH) -> list[float]:
    """p_k = r_(k-1) - r_k for `ranks` children: never rising, summing to less than 1."""
    rejected = (1 + scale * np.arange(ranks + 1)) ** -exponent
    rates: list[float] = (-np.diff(rejected)).tolist()
    return rates


def values_by_size(rates: list[float], sizes: tuple[int, ...]) -> list[float]:
    """Expected tokens per step of the best trees of these sizes, of up to `BRANCH` children."""
    best = BestTrees([rates], max(sizes), DEPTH, BRANCH)
    return [best.value(size, DEPTH) for size in sizes]


def fitted_to_plot() -> tuple[float, float]:
    """(scale, exponent) of least squares to Sequoia's plotted curve alone."""
    plotted = np.array(figures.PLOTTED["sequoia"])

    def off(parameters: np.ndarray) -> np.ndarray:
        return np.array(values_by_size(power_law(*parameters), figures.PLOTTED_SIZES)) - plotted

    scale, exponent = least_squares(off, (4.0, 0.6), diff_step=1e-4, xtol=1e-10).x
    return float(scale), float(exponent)


def fitted_to_tree(tree: TokenTree, tokens: float) -> tuple[float, float]:
    """(scale, exponent) under which `tree` brings `tokens`, and is as near to the best of its kind as can be.

    A published tree is the search's answer to a vector that is not published: the tokens tell how high its
    rates are, the shape tells how they fall with the rank.
    """

    def scale_of(exponent: float) -> float:
        def off(log_scale: float) -> float:
            return expected_tokens(tree, [power_law(float(np.exp(log_scale)), exponent)]) - tokens

        return float(np.exp(brentq(off, -12.0, 40.0)))

    def loss(log_exponent: float) -> float:
        exponent = float(np.exp(log_exponent))
        rates = power_law(scale_of(exponent), exponent)
        return BestTrees([rates], tree.size, tree.depth, BRANCH).value(tree.size, tree.depth) - tokens

    # The loss has one valley in all cases seen, but flat ends: the best of a grid brackets it.
    grid = np.linspace(np.log(0.15), np.log(1.6), 24)
    lowest = int(np.argmin([loss(point) for point in grid]))
    low, high = grid[max(lowest - 1, 0)], grid[min(lowest + 1, len(grid) - 1)]
    exponent = float(np.exp(minimize_scalar(loss, bounds=(low, high), method="bounded").x))
    return scale_of(exponent), exponent
