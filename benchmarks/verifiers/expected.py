"""What a step is expected to bring by each rule, given the tree that was drawn: no coin is tossed.

The twins of the verifiers' judges, with chances multiplied out where those compare them with a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draw import top_children
from sequoia_cli.engine.merge import Rows
from sequoia_cli.engine.verification.k_sequential import KSequential
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import specinfer_rule
from sequoia_cli.engine.verification.walk import Rule, sequoia_rule
from sequoia_cli.measure.node_acceptance import (
    k_sequential_acceptance,
    matched_acceptance,
    sampled_acceptance,
)

#: The rules that test the children of a node one after the other, from the root down.
RULES: dict[str, Callable[[Tensor, int], Rule]] = {
    "sequoia": sequoia_rule,
    "specinfer": specinfer_rule,
    "spectr": KSequential,
}


def tokens_of_step(
    name: str,
    tree: TokenTree,
    tokens: Sequence[int],
    distributions: Callable[[int], Tensor],
    rows: Rows,
) -> float:
    """Tokens that a step with this tree brings by the rule of that name, the bonus token included.

    `distributions(i)` is the target's after node i, `rows[i]` the draft's that its children were drawn from.
    """
    if name == "naive":
        return _matching(0, tree, tokens, distributions)
    if name == "traversal":
        return _leaf_first(0, 1.0, tree, tokens, distributions, rows)[1]
    return _top_down(0, tree, tokens, distributions, rows, RULES[name])


def _top_down(
    node: int,
    tree: TokenTree,
    tokens: Sequence[int],
    distributions: Callable[[int], Tensor],
    rows: Rows,
    rule: Callable[[Tensor, int], Rule],
) -> float:
    children, total, reached = tree.children[node], 1.0, 1.0
    if not children:
        return total
    trial = rule(distributions(node), len(children))
    trial.turn_to(rows[node])
    for child in children:
        accepted = reached * trial.chance(tokens[child])
        if accepted > 0:
            total += accepted * _top_down(child, tree, tokens, distributions, rows, rule)
        reached -= accepted
        if reached <= 0:
            break
        trial.reject(tokens[child])
    return total


def _matching(
    node: int, tree: TokenTree, tokens: Sequence[int], distributions: Callable[[int], Tensor]
) -> float:
    if not tree.children[node]:
        return 1.0
    distribution = distributions(node)
    chances = {child: float(distribution[tokens[child]]) for child in tree.children[node]}
    return 1.0 + sum(
        chance * _matching(child, tree, tokens, distributions) for child, chance in chances.items() if chance
    )


def _leaf_first(
    node: int,
    weight: float,
    tree: TokenTree,
    tokens: Sequence[int],
    distributions: Callable[[int], Tensor],
    rows: Rows,
) -> tuple[float, float]:
    """The chance that a path through the node is accepted, and the tokens that this brings."""
    own = tree.node_depths[node] + 1
    if weight == 0 or not tree.children[node]:
        return weight, weight * own
    trial, total, reached = ResidualRule(distributions(node), weight=weight), 0.0, 1.0
    trial.turn_to(rows[node])
    for child in tree.children[node]:
        chance = trial.chance(tokens[child])
        accepted, brought = _leaf_first(child, chance, tree, tokens, distributions, rows)
        total += reached * brought
        reached *= 1 - accepted
        trial.reject(tokens[child])
    last = reached * trial.weight()
    return 1 - reached + last, total + last * own


def acceptance(
    name: str, distribution: Tensor, proposed: Tensor, uniforms: Sequence[Sequence[float]]
) -> float:
    """The chance that one of the children of a single node is accepted, as many as a row of `uniforms` has.

    `distribution` is the target's and `proposed` the draft's. Without replacement the chance depends on the
    children rejected: it is the mean over rows of `uniforms`, each of which draws these once. All others are
    exact.
    """
    count = len(uniforms[0])
    if name == "naive":
        (children,) = top_children(proposed[None], [count])
        return sum(matched_acceptance(distribution, children.tolist(), 0).accept_probs)
    token = int(distribution.argmax())
    if name == "spectr":
        return sum(k_sequential_acceptance(distribution, proposed, token, count).accept_probs)
    if name == "specinfer":
        return sum(
            sampled_acceptance(distribution, proposed, token, uniforms[0], replacement=True).accept_probs
        )
    found = [sum(sampled_acceptance(distribution, proposed, token, row).accept_probs) for row in uniforms]
    return sum(found) / len(found)
