"""A plan by which trees are chosen in each step: the outer tree, and what choosing goes by."""

from __future__ import annotations

from dataclasses import replace

from sequoia_cli.compiler.best import BestTrees, largest_tree
from sequoia_cli.compiler.choose import Limits
from sequoia_cli.compiler.result import Choice
from sequoia_cli.compiler.value import Rows
from sequoia_cli.core.calibration import Calibration
from sequoia_cli.core.plan import Adaptive, TreePlan


def adaptive_plan(
    plan: TreePlan, choice: Choice, rows: Rows, limits: Limits, calibration: Calibration
) -> TreePlan:
    """`plan` of a choice with the tree of most expected tokens within the limits and the costs in its place.

    The tree that was chosen, which is the best one where all steps have the same, becomes the first of the
    runners-up, and its tokens per second what is expected at the start of a text.
    """
    ends = [limits.budget, largest_tree(rows, limits.max_depth, limits.max_branch)]
    size = min([*ends, choice.costs.target.end or limits.budget])
    tree = BestTrees(rows, size, limits.max_depth, limits.max_branch).tree(size, limits.max_depth)
    chosen = choice.chosen
    same = {"shape": chosen.shape, "size": chosen.tree.size, "depth": chosen.tree.depth}
    if plan.predicted:
        same |= {
            "tokens_per_step": plan.predicted.tokens_per_step,
            "seconds_per_step": plan.predicted.seconds_per_step,
            "speedup": plan.predicted.speedup,
        }
    rate = float(f"{1 / chosen.seconds_per_token:.6g}")
    return replace(
        plan,
        tree=tree,
        predicted=None,
        runners_up=(same, *plan.runners_up),
        adaptive=Adaptive(calibration, rate),
    )
