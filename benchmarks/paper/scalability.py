"""Tokens per step by size: Sequoia's tree, independent chains, a binary tree and one chain (Figure 1).

The plot on the project page comes from a vector that is not published. `rates.fitted_to_plot` recovers one
from its Sequoia curve, and the other curves follow. The page draws two of them by conventions of its own.
They were found by trying some against the plotted points; `as_drawn` follows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paper.rates import values_by_size
from sequoia_cli.compiler.shapes import k_ary
from sequoia_cli.compiler.value import expected_tokens

#: Nodes, root included.
SIZES = tuple(1 << power for power in range(13))
#: Ranks of the recovered vector. Chosen by hand: with so many, the independent chains end where they are
#: plotted to end. Sequoia's own trees stop at `rates.BRANCH` children, as the released search does.
RANKS = 256


def curves(rates: Sequence[float], sizes: tuple[int, ...] = SIZES) -> dict[str, list[float]]:
    """Expected tokens per step by size of each kind of tree, each as good as that kind gets."""
    return {
        "sequoia": values_by_size(list(rates), sizes),
        "independent chains": [independent_chains(rates, size) for size in sizes],
        "binary tree": [expected_tokens(k_ary(2, size), [rates]) for size in sizes],
        "one chain": [_geometric(rates[0], size) for size in sizes],
    }


def as_drawn(rates: Sequence[float], sizes: tuple[int, ...]) -> dict[str, list[float]]:
    """The same by the page's conventions.

    Its independent chains are of equal length and pay for one token more than they have, as if each had a
    copy of the root: (size - 1) // count - 1 tokens, for the best count. Its binary tree has log2(size + 1)
    layers, which need not be a whole number.
    """
    both = rates[0] + rates[1]
    return curves(rates, sizes) | {
        "independent chains": [_drawn_chains(rates, size) for size in sizes],
        "binary tree": [(1 - both ** math.log2(size + 1)) / (1 - both) for size in sizes],
    }


def independent_chains(rates: Sequence[float], size: int) -> float:
    """Tokens per step of the best number of chains, `size` nodes in all, as equal in length as can be."""
    best = 1.0
    for count in range(1, min(len(rates), size - 1) + 1):
        length, longer = divmod(size - 1, count)
        tokens = sum(rates[:longer]) * _geometric(rates[0], length + 1)
        tokens += sum(rates[longer:count]) * _geometric(rates[0], length)
        best = max(best, 1 + tokens)
    return best


def _drawn_chains(rates: Sequence[float], size: int) -> float:
    """The best count by that rule. No chain is left without a token, which matters at 2 nodes alone."""
    return max(
        1 + sum(rates[:count]) * _geometric(rates[0], max(1, (size - 1) // count - 1))
        for count in range(1, min(len(rates), size - 1) + 1)
    )


def growth_per_doubling(values: Sequence[float]) -> list[float]:
    """Tokens that each size has above the one before."""
    return np.diff(values).tolist()


def _geometric(rate: float, terms: int) -> float:
    """1 + rate + ... of so many terms: a chain of so many nodes, its first one sure."""
    return (1 - rate**terms) / (1 - rate) if rate < 1 else float(terms)
