"""Figures as the papers print them, each with its source, and the published files of `tests/data`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequoia_cli.core.tree import TokenTree

#: Published vectors and trees; the README there names their sources.
DATA = Path(__file__).resolve().parents[2] / "tests" / "data"

#: Nodes in the scalability plot of the Sequoia project page (github Infini-AI-Lab/Sequoia-Page), and tokens
#: per step as plotted, read out of the vector graphics. The pair is not named; p_1 is 0.663.
PLOTTED_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
PLOTTED = {
    "sequoia": (1.663, 2.395, 2.911, 3.342, 3.758, 4.169, 4.580, 4.983, 5.390, 5.796, 6.575),
    "independent chains": (1.663, 2.103, 2.803, 3.097, 3.380, 3.558, 3.687, 3.783, 3.844, 3.887, 3.937),
    "binary tree": (1.476, 1.981, 2.454, 2.748, 3.137, 3.434, 3.598, 3.812, 3.934, 4.040, 4.171),
    "one chain": (1.663, 2.395, 2.859, 2.966, 2.970, 2.971, 2.971, 2.971, 2.971, 2.971, 2.971),
}
#: Where the plotted curves end, and Sequoia's at 2.6e5 nodes.
PLOTTED_LIMITS = {"sequoia": 8.70, "independent chains": 3.941, "binary tree": 4.36, "one chain": 2.971}
#: Tokens that a doubling of Sequoia's tree adds there, and its gain over independent chains at 512 nodes.
PLOTTED_DOUBLING = 0.41
PLOTTED_GAIN_AT_512 = 1.40

#: For the vector of Appendix E (arXiv 2402.12374v3): upper bounds of other shapes, one chain 1/(1-p_1),
#: independent chains one more, a binary tree 1/(1-p_1-p_2), and the chance that the first k children are all
#: rejected.
APPENDIX_E_BOUNDS = {"one chain": 4.409, "independent chains": 5.409, "binary tree": 8.137}
APPENDIX_E_ALL_REJECTED = {1: 0.2268, 2: 0.1229, 4: 0.0621, 8: 0.0305, 16: 0.0148, 31: 0.0072}

#: The released demonstration (github Infini-AI-Lab/Sequoia, tree_search.py): seconds of a draft step and of
#: the target by size, and the tree that it finds: nodes, layers, seconds per token, speedup.
DEMO_DRAFT = 0.3
DEMO_TARGET = ((1, 10.0), (2, 10.0), (4, 10.0), (8, 12.0), (16, 14.0), (32, 18.0))
DEMO_BEST = (4, 4, 4.888, 2.046)


@dataclass(frozen=True)
class Row:
    """A row of the main tables: where, the tree's nodes and layers, speedup and tokens per step.

    `specinfer` are the tokens of SpecInfer's 5x8 tree, None where another one was run.
    """

    machine: str
    target: str
    draft: str
    data: str
    temperature: float
    size: int
    depth: int
    speedup: float
    tokens: float
    specinfer: float | None = None

    @property
    def name(self) -> str:
        """Machine, target, data and temperature."""
        return f"{self.machine} {self.target} {self.data} T={self.temperature:g}"

    @property
    def tree(self) -> str:
        """The tree's name among the published ones."""
        way = "stochastic" if self.temperature else "greedy"
        stem = f"{self.machine}-{self.data}-{self.draft}-{self.target}-{way}"
        return f"{self.machine}_{self.draft}_{self.target}/{stem}"

    @property
    def cost(self) -> float:
        """t(n) + d c in plain steps, which the row implies: tokens per step over speedup (section 4.1)."""
        return self.tokens / self.speedup


#: arXiv 2402.12374v3, Tables 1 and 3 (A100) and 4 (L40), the rows whose trees are published: machine, target,
#: draft, data, temperature, nodes, layers, speedup, tokens per step, and those of SpecInfer's 5x8 tree.
_PRINTED = """
A100  7b  68m C4          0   128 10 4.04 5.08 3.96
A100  7b  68m C4          0.6 128  7 3.18 3.92 2.97
A100  7b  68m OpenWebText 0   128  7 3.22 3.86 3.15
A100  7b  68m OpenWebText 0.6 128  6 2.71 3.33 2.54
A100  7b  68m CNN         0   128  7 3.41 4.05 3.27
A100  7b  68m CNN         0.6 128  6 2.83 3.45 2.58
A100 13b  68m C4          0    64  9 3.73 4.20 3.64
A100 13b  68m C4          0.6  64  7 3.19 3.57 2.87
A100 13b  68m OpenWebText 0    64  7 3.18 3.49 3.05
A100 13b  68m OpenWebText 0.6  64  6 2.77 3.06 2.49
A100 13b  68m CNN         0    64  7 3.33 3.68 3.22
A100 13b  68m CNN         0.6  64  6 2.88 3.17 2.54
A100 33b 1.3b C4          0    64  6 2.27 4.28 3.86
A100 33b 1.3b C4          0.6  64  6 2.19 4.16 3.53
A100 33b 1.3b OpenWebText 0    64  5 2.21 3.93 3.70
A100 33b 1.3b OpenWebText 0.6  64  5 2.13 3.82 3.36
A100 33b 1.3b CNN         0    64  5 2.21 3.93 3.71
A100 33b 1.3b CNN         0.6  64  5 2.16 3.86 3.40
L40   7b  68m C4          0    64 10 3.95 4.68 3.98
L40   7b  68m C4          0.6  64  7 3.10 3.63 2.89
L40   7b  68m OpenWebText 0    64  7 3.12 3.58 3.16
L40   7b  68m OpenWebText 0.6  64  6 2.68 3.12 2.54
L40   7b  68m CNN         0    64  7 3.30 3.79 3.28
L40   7b  68m CNN         0.6  64  6 2.81 3.27 2.59
L40  13b  68m C4          0    64 10 3.15 4.25 3.61
L40  13b  68m C4          0.6  64  8 2.62 3.57 2.81
L40  13b  68m OpenWebText 0    64  8 2.64 3.52 3.05
L40  13b  68m OpenWebText 0.6  64  6 2.28 3.07 2.44
L40  13b  68m CNN         0    64  7 2.78 3.68 3.21
L40  13b  68m CNN         0.6  64  7 2.37 3.22 2.51
"""
#: Table 2, MT-Bench: the L40 with the target's weights in host memory.
_PRINTED_OFFLOADED = """
L40 llama2-70b 7b MT-Bench 0   768 18 8.6 10.30
L40 llama2-70b 7b MT-Bench 0.6 768 18 8.4 9.91
L40 llama3-70b 8b MT-Bench 0   768 18 9.5 11.68
L40 llama3-70b 8b MT-Bench 0.6 768 18 9.3 11.37
"""


def _rows(printed: str) -> tuple[Row, ...]:
    rows = []
    for line in printed.strip().splitlines():
        machine, target, draft, data, *numbers = line.split()
        temperature, size, depth, *measured = map(float, numbers)
        rows.append(Row(machine, target, draft, data, temperature, int(size), int(depth), *measured))
    return tuple(rows)


ROWS, OFFLOADED_ROWS = _rows(_PRINTED), _rows(_PRINTED_OFFLOADED)

#: Seconds per token of plain decoding with Hugging Face on the A100: 24.2 ms is printed (section 4.1), the
#: others are speedup times seconds per token of Table 3. Of the 68M draft 0.5 ms is printed.
A100_PLAIN_SECONDS = {"7b": 24.2e-3, "13b": 31.3e-3, "33b": 53.2e-3}
DRAFT_68M_SECONDS = 0.5e-3

#: Seconds per token of plain decoding with offloading, the baseline of Table 2 (DeepSpeed-ZeRO-Inference).
OFFLOADED_PLAIN_SECONDS = 5.7
#: Bytes per second of PCIe 4.0 with 16 lanes, as the project page prints it.
PCIE_BANDWIDTH = 31.5e9


def _published(name: str) -> Any:
    """The parsed file from `DATA`."""
    return json.loads((DATA / name).read_text())


def published_rates(name: str) -> list[float]:
    """The published acceptance vector of this name: marginal rates by rank."""
    rates: list[float] = _published("published_rates.json")["vectors"][name]["p"]
    return rates


def published_trees() -> dict[str, TokenTree]:
    """The 62 published trees by name."""
    return {
        name: TokenTree(tuple(entry["parents"])) for name, entry in _published("published_trees.json").items()
    }
