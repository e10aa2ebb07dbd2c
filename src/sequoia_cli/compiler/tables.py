"""The dynamic programme: the most expected tokens of a tree of every size within every depth limit.

With V(a, l, n) the best value of a subtree of n nodes whose root lies at distance a from the tree's root and
which has at most l layers (Sequoia, arXiv 2402.12374, Appendix F.1.1, with the rates of each depth kept
apart):

    V(a, 1, 1) = 1,   V(a, l, n) = max over b of W(a, l, b, n),   W(a, l, 0, 1) = 1,
    W(a, l, b, n) = max over m of  W(a, l, b - 1, n - m) + p[a, b] * V(a + 1, l - 1, m).

The best tree within D layers is V(0, D, n). As the last row of rates holds for all deeper levels, the
distances from there on share one table, so a plain vector needs one table per number of layers and not one
per pair (a, l).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sequoia_cli.errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int16]

#: Largest tree the tables can hold; sizes are kept in 16 bits.
MAX_SIZE = 4096

#: Candidates compared at a time: few enough to stay in the processor's cache.
_BLOCK = 1 << 17

_UNREACHABLE = -np.inf


@dataclass(frozen=True)
class Layer:
    """The tables of all subtrees of at most so many layers, with rows by distance from the root.

    `values` (distance, size) is V. `counts` (distance, size) is the number of children b that attains it, and
    `last` (rank, distance, size) the size m of the child of that rank that attains W.
    """

    values: Floats
    counts: Ints
    last: Ints


def rate_matrix(rows: Sequence[Sequence[float]], depth: int, branch: int) -> Floats:
    """Rates as an array (distance, rank), cut to the limits; ranks that a shorter row lacks are NaN.

    Rows that repeat the one before at the end are dropped, since the last row holds for all deeper levels.
    """
    rows = rows[: max(1, depth - 1)]
    matrix = np.full((len(rows), max(1, min(branch, max(map(len, rows))))), np.nan)
    for distance, row in enumerate(rows):
        cut = row[: matrix.shape[1]]
        matrix[distance, : len(cut)] = cut
    while len(matrix) > 1 and np.array_equal(matrix[-1], matrix[-2], equal_nan=True):
        matrix = matrix[:-1]
    return matrix


def fill(rates: Floats, size: int, depth: int) -> list[Layer]:
    """The tables for 1, 2, ... up to `depth` layers and `size` nodes; entry `l - 1` is for l layers.

    Ends early where a further layer changes nothing: the recursion then gives the same again for all deeper
    limits. Unreachable sizes have value -inf. Raises `BadInput` for tables beyond the memory that is free.
    """
    _check_memory(rates, size, depth)
    leaf = np.full((min(len(rates), depth), size + 1), _UNREACHABLE)
    leaf[:, 1] = 1.0
    layers = [Layer(leaf, np.zeros(leaf.shape, np.int16), np.zeros((0, *leaf.shape), np.int16))]
    for limit in range(2, depth + 1):
        # A subtree of `limit` layers within `depth` has its root at most this far down.
        distances = min(len(rates), depth - limit + 1)
        child = np.minimum(np.arange(distances) + 1, len(rates) - 1)
        layer = _next_layer(rates[:distances], layers[-1].values[child])
        if np.array_equal(layer.values, layers[-1].values[:distances]):
            break
        layers.append(layer)
    return layers


def table_bytes(rates: Floats, size: int, depth: int) -> int:
    """What the tables of `fill` take where no layer ends them early."""
    ranks = rates.shape[1]
    rows = sum(min(len(rates), depth - limit + 1) for limit in range(1, depth + 1))
    return rows * (size + 1) * (8 + 2 + 2 * ranks)


def free_memory() -> float:
    """Bytes of memory that are free, infinite where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return float("inf")


def _check_memory(rates: Floats, size: int, depth: int) -> None:
    """Raise `BadInput` for tables larger than the memory that is free."""
    needed, free = table_bytes(rates, size, depth), free_memory()
    if needed > free:
        raise BadInput(
            f"the tables for {size} nodes, {depth} layers and {rates.shape[1]} children of a node take "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free",
            hint="allow fewer nodes, layers or children; rates that never rise with the rank need no tables",
        )


def _next_layer(rates: Floats, below: Floats) -> Layer:
    """V and its arg-max for one more layer; `below` (distance, size) is V of a child of each row's nodes."""
    forest = np.full(below.shape, _UNREACHABLE)  # W for the ranks added so far
    forest[:, 1] = 1.0
    values, counts = forest.copy(), np.zeros(below.shape, np.int16)
    last = []
    reachable = np.isfinite(below)
    for rank in range(rates.shape[1]):
        rate = rates[:, rank, None]
        usable = reachable & ~np.isnan(rate)
        gain = np.where(usable, np.where(usable, rate, 0.0) * np.where(usable, below, 0.0), _UNREACHABLE)
        # V never falls with the size, so by the rearrangement inequality some best forest gives the larger
        # subtree to the larger rate. With j - 1 earlier ranks of at least this rate, j subtrees are no
        # smaller than this child's, which leaves it m <= (n - 1) / j: a harmonic sum over ranks in place of a
        # full one.
        place = 1 + int((rates[:, :rank] >= rate).sum(axis=1).min())
        forest, chosen = _append_child(forest, gain, place)
        last.append(chosen)
        better = forest > values
        values[better] = forest[better]
        counts[better] = rank + 1
        if not np.isfinite(forest).any():
            break  # no room for more children
    return Layer(values, counts, np.stack(last))


def _append_child(forest: Floats, gain: Floats, place: int) -> tuple[Floats, Ints]:
    """The max-plus convolution max over m <= (n - 1) / place of forest[n - m] + gain[m], and its arg-max.

    All arrays are (distance, size). Done in blocks of n: in each, the candidates are windows over `forest`.
    """
    rows, size = forest.shape[0], forest.shape[1] - 1
    out = np.full(forest.shape, _UNREACHABLE)
    chosen = np.zeros(forest.shape, np.int16)
    usable = np.flatnonzero(np.isfinite(gain).any(axis=0))
    reach = min((size - 1) // place, int(usable[-1]) if len(usable) else 0)
    filled = np.flatnonzero(np.isfinite(forest).any(axis=0))
    if reach < 1 or not len(filled):
        return out, chosen
    padded = np.concatenate([np.full((rows, reach), _UNREACHABLE), forest], axis=1)
    step = max(1, _BLOCK // (reach * rows))
    for low in range(int(filled[0]) + 1, size + 1, step):
        high = min(low + step, size + 1)
        most = min(reach, (high - 2) // place)
        if most < 1:
            continue
        # Entry (distance, n, i) of the windows is forest[n - most + i], the child's size there most - i.
        span = padded[:, reach + low - most :]
        shape, strides = (rows, high - low, most), (span.strides[0], span.strides[1], span.strides[1])
        windows = np.lib.stride_tricks.as_strided(span, shape, strides, writeable=False)
        candidates = windows + gain[:, None, most:0:-1]
        best = candidates.argmax(axis=2)
        firsts = np.arange(0, candidates.size, most).reshape(best.shape)
        out[:, low:high] = candidates.ravel()[firsts + best]
        chosen[:, low:high] = most - best
    return out, chosen
