"""Single results that the papers print: the released demonstration, and the vector of Appendix E."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paper import figures
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.core.tree import TokenTree

#: The sizes of Appendix E's vector that we state values for, and the layers of its offloading trees.
APPENDIX_E_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768)
OFFLOADED_LAYERS = 18


def demo_rates() -> list[float]:
    """The released demonstration's vector, which this project ships."""
    return list(
        AcceptanceRates.from_document(read_document(shipped("profiles", "published_demo_rates.yaml"))).p[0]
    )


def paper_objective(
    rates: Sequence[float], draft: float, target: Sequence[tuple[int, float]], depth: int = 10
) -> tuple[float, TokenTree]:
    """Seconds per token and tree of the paper's own choice (section 4.1).

    The least (t(n) + d c) / G(n, d) over the listed sizes and all depths up to `depth`, the root among the d.
    """
    best = BestTrees([rates], target[-1][0], depth, len(rates))
    per_token, size, layers = min(
        ((seconds + layers * draft) / best.value(size, layers), size, layers)
        for size, seconds in target
        for layers in range(1, best.depth + 1)
        if np.isfinite(best.value(size, layers))
    )
    return per_token, best.tree(size, layers)


def demonstration() -> tuple[int, int, float, float]:
    """Nodes, layers, seconds per token and speedup of the released demonstration."""
    per_token, tree = paper_objective(demo_rates(), figures.DEMO_DRAFT, figures.DEMO_TARGET)
    return tree.size, tree.depth, per_token, figures.DEMO_TARGET[0][1] / per_token


def values(rates: Sequence[float]) -> list[float]:
    """G(n) at `APPENDIX_E_SIZES`, without a limit of layers that matters."""
    best = BestTrees([rates], APPENDIX_E_SIZES[-1], 64, len(rates))
    return [best.value(size, 64) for size in APPENDIX_E_SIZES]


def value_within_layers(rates: Sequence[float], size: int = 768, layers: int = OFFLOADED_LAYERS) -> float:
    """G(n, d)."""
    return BestTrees([rates], size, layers, len(rates)).value(size, layers)


def bounds(rates: Sequence[float]) -> dict[str, float]:
    """What trees of the other shapes can reach, of any size (section 3.1 and Appendix D)."""
    one = 1 / (1 - rates[0])
    return {"one chain": one, "independent chains": one + 1, "binary tree": 1 / (1 - rates[0] - rates[1])}


def all_rejected(rates: Sequence[float], children: Sequence[int]) -> dict[int, float]:
    """r_k, the chance that all of the first k children are rejected (Definition 3.5)."""
    return {count: 1 - sum(rates[:count]) for count in children}
