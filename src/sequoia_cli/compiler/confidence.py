"""How far a prediction can be trusted: its interval, the optimism of a chosen best, leads over simple shapes.

All of it is computed on the same draws of the acceptance rates (`estimate`), so comparisons are paired. Times
are taken as they are in the profile. Logarithms of ratios are taken to be normal, with Student's t for the
number of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt

import numpy as np

from sequoia_cli.compiler import heap
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.choose import Limits
from sequoia_cli.compiler.cost import CostTable
from sequoia_cli.compiler.estimate import Estimate
from sequoia_cli.compiler.families import best_family
from sequoia_cli.compiler.result import Choice, Confidence, Lead
from sequoia_cli.compiler.tables import MAX_SIZE, Floats
from sequoia_cli.compiler.value import Rows
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import TokenTree

LEVEL = 0.95

#: Draws for which the tree is chosen again, and the largest tree that is then looked at.
RECHOSEN, RECHOSEN_SIZE = 24, 128


def assess(choice: Choice, estimate: Estimate, rechoose: Rechoose | None = None) -> Confidence:
    """The confidence of a choice by `estimate.rows`.

    `rechoose` is what the tree was searched for with; a fixed shape has none, and no optimism.
    """
    chosen, draws = choice.chosen, estimate.draws
    simple = [each for each in choice.runners_up if each.shape == "chain" or each.shape.endswith(" chains")]
    ratios = [each.seconds_per_token / chosen.seconds_per_token for each in simple]
    if draws is None or chosen.tree.size == 1:
        leads = [Lead(each.shape, ratio - 1) for each, ratio in zip(simple, ratios, strict=True)]
        return Confidence(leads=tuple(leads))
    optimism = rechoose.optimism(choice, estimate.rows, draws) if rechoose else 0.0
    tokens, quantile = _log_tokens(chosen.tree, draws), _quantile(estimate.prompts)
    leads = []
    for each, ratio in zip(simple, ratios, strict=True):
        low, high = _factors(tokens - _log_tokens(each.tree, draws), quantile, optimism)
        leads.append(Lead(each.shape, ratio - 1, (ratio * low - 1, ratio * high - 1)))
    # No step brings less than one token, nor more than one per layer.
    low, high = (
        min(max(factor * chosen.tokens_per_step, 1.0), float(chosen.tree.depth))
        for factor in _factors(tokens, quantile, optimism)
    )
    per_token = choice.speedup(chosen) / chosen.tokens_per_step
    return Confidence(
        (low, high),
        (low * per_token, high * per_token),
        float(np.expm1(optimism)),
        tuple(leads),
        estimate.prompts,
    )


@dataclass(frozen=True)
class Rechoose:
    """What a tree was searched for with, to search again by other rates; `size` as `choose` takes it."""

    profile: HardwareProfile
    limits: Limits
    size: int | None = None

    def optimism(self, choice: Choice, rows: Rows, draws: Floats) -> float:
        """The logarithm by which a tree chosen by some counts looks better by these than it is; at least 0.

        For each of some draws the tree is chosen again, and its speed by that draw is compared with its speed
        by `rows`, which stand for the truth. The same difference of the chosen tree is 0 on average; taking
        it off leaves less noise.
        """
        costs = self.profile.costs
        largest = min(self.limits.budget, costs.target.end or MAX_SIZE)
        size = self.size or min(largest, max(2 * choice.chosen.tree.size, 16), RECHOSEN_SIZE)
        depth = min(self.limits.max_depth, choice.chosen.tree.depth + 4)
        table, truth = CostTable.of(costs, size), _as_draw(rows, draws.shape[2])
        known = [
            (each.tree, each.seconds)
            for each in (choice.chosen, *choice.runners_up)
            if self.size in (None, each.tree.size)
        ]
        gains = []
        for draw in draws[:RECHOSEN]:
            falling = heap.means(draw).tolist()
            best = best_family(BestTrees(falling, size, depth, self.limits.max_branch), table)
            number = best.fastest(self.size or 1)
            found = [] if number is None else [(best.tree(number), float(best.seconds[number]))]
            both = np.stack([draw, truth])
            speeds = np.array([_log_tokens(tree, both) - log(seconds) for tree, seconds in [*known, *found]])
            by_draw, by_truth = speeds[speeds[:, 0].argmax()] - speeds[0]  # the chosen tree is the first
            gains.append(by_draw - by_truth)
        return max(0.0, float(np.mean(gains)))


def _as_draw(rows: Rows, ranks: int) -> Floats:
    """Rates as one draw (distance, rank); a rank that a row lacks counts 0."""
    return np.array([[*row, *[0.0] * (ranks - len(row))] for row in rows])


def _log_tokens(tree: TokenTree, draws: Floats) -> Floats:
    """Logarithm of the expected tokens per step, for each draw (draw, distance, rank)."""
    ranks = draws.shape[2]
    scores = np.ones((tree.size, len(draws)))
    for node in range(1, tree.size):
        row, rank = min(tree.node_depths[node], draws.shape[1]) - 1, tree.ranks[node]
        scores[node] = scores[tree.parents[node]] * draws[:, row, rank] if rank < ranks else 0.0
    logs: Floats = np.log(scores.sum(axis=0))
    return logs


def _quantile(prompts: int) -> float:
    """Deviations of the draws on either side: Student's t for prompts, normal for independent trials.

    Draws by weights deviate less than means of so many prompts do, by the root of (n - 1) / (n + 1).
    """
    from scipy.special import ndtri, stdtrit

    tail = 1 - (1 - LEVEL) / 2
    if not prompts:
        return float(ndtri(tail))
    return float(stdtrit(prompts - 1, tail)) * sqrt((prompts + 1) / (prompts - 1))


def _factors(logs: Floats, quantile: float, optimism: float) -> tuple[float, float]:
    """The ends of the interval as factors of the estimate."""
    error = quantile * float(logs.std(ddof=1))
    return float(np.exp(-optimism - error)), float(np.exp(-optimism + error))
