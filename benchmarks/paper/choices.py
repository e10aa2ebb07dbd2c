"""The published trees of Tables 1 to 4 beside ours: of the same size and layers, and of our own choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paper import figures, machines, rates
from paper.figures import Row
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.result import Candidate, Choice
from sequoia_cli.compiler.shapes import chains
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree

#: No choice on a device comes near its limits. Offloaded, larger trees go on paying, slowly.
LIMITS = Limits(512, 32, rates.BRANCH)
OFFLOADED_LIMITS = Limits(1024, 32, rates.BRANCH)


@dataclass(frozen=True)
class Compared:
    """A published row beside our prediction for the same machine, with rates fitted to its tree and tokens.

    `cost` is the modelled step with the published tree in plain steps; `row.cost` is what was measured.
    `same` are the tokens of our best tree of the published size and layers, `layers` those that we choose for
    the published size. `published_speedup` and `speedup` are predicted for the published tree and for our
    free choice, of `size` nodes in `depth` layers; `listed` is our choice among powers of two, as the
    published search makes it. `specinfer` are the tokens of SpecInfer's 5x8 tree under the same rates and
    Sequoia's verification.
    """

    row: Row
    first_rates: tuple[float, float]
    cost: float
    same: float
    published_speedup: float
    layers: int
    listed: tuple[int, int]
    size: int
    depth: int
    tokens: float
    speedup: float
    specinfer: float


def compare_row(row: Row, tree: TokenTree, profile: HardwareProfile) -> Compared:
    """The published tree of a row against ours under the row's own rates."""
    fitted = rates.power_law(*rates.fitted_to_tree(tree, row.tokens))
    plain = Candidate.of(ROOT_ONLY, profile, [fitted])
    given = Candidate.of(tree, profile, [fitted])
    assert plain is not None and given is not None
    choice, sized = choose(profile, [fitted], LIMITS), choose(profile, [fitted], LIMITS, row.size)
    best = BestTrees([fitted], tree.size, tree.depth, rates.BRANCH)
    return Compared(
        row,
        (fitted[0], fitted[1]),
        given.seconds / plain.seconds,
        best.value(tree.size, tree.depth),
        choice.speedup(given),
        sized.chosen.tree.depth,
        _of_listed_sizes(choice),
        choice.chosen.tree.size,
        choice.chosen.tree.depth,
        choice.chosen.tokens_per_step,
        choice.speedup(choice.chosen),
        expected_tokens(chains(5, 41), [fitted]),
    )


def _of_listed_sizes(choice: Choice) -> tuple[int, int]:
    """Nodes and layers of the fastest tree among the powers of two."""
    fastest = min(choice.curve, key=lambda point: point.seconds_per_step / point.tokens_per_step)
    return fastest.size, fastest.depth


def compare_rows() -> list[Compared]:
    """All rows with a published tree."""
    trees = figures.published_trees()
    return [
        compare_row(row, trees[row.tree], machines.on_device(row.machine, row.target, row.draft))
        for row in figures.ROWS
    ]


def kept_shares() -> dict[str, dict[str, float]]:
    """By published vector and tree: its tokens over those of our best tree of its size and layers."""
    trees = figures.published_trees()
    vectors = {
        name: figures.published_rates(name) for name in ("sequoia_repo_demo", "llama3_70b_from_8b_cnn")
    }
    return {name: _shares(trees, vector) for name, vector in vectors.items()}


def _shares(trees: Mapping[str, TokenTree], vector: list[float]) -> dict[str, float]:
    largest, deepest = max(tree.size for tree in trees.values()), max(tree.depth for tree in trees.values())
    best = BestTrees([vector], largest, deepest, rates.BRANCH)
    return {
        name: expected_tokens(tree, [vector]) / best.value(tree.size, tree.depth)
        for name, tree in trees.items()
    }


@dataclass(frozen=True)
class Offloaded:
    """Our choice for offloading, and the best tree of the published size and layers.

    `published_cost` is its modelled step in plain steps.
    """

    overlapped: bool
    size: int
    depth: int
    tokens: float
    speedup: float
    published_tokens: float
    published_cost: float
    published_speedup: float


def choose_offloaded(vector: list[float], *, overlapped: bool) -> Offloaded:
    """The choice for Table 2's machine under `vector`; the trees of that table are not published."""
    profile = machines.offloaded(overlapped=overlapped)
    choice = choose(profile, [vector], OFFLOADED_LIMITS)
    size, depth = figures.OFFLOADED_ROWS[0].size, figures.OFFLOADED_ROWS[0].depth
    tree = BestTrees([vector], size, depth, rates.BRANCH).tree(size, depth)
    given = Candidate.of(tree, profile, [vector])
    assert given is not None
    return Offloaded(
        overlapped,
        choice.chosen.tree.size,
        choice.chosen.tree.depth,
        choice.chosen.tokens_per_step,
        choice.speedup(choice.chosen),
        given.tokens_per_step,
        given.seconds / choice.plain.seconds,
        choice.speedup(given),
    )
