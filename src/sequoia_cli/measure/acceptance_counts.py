"""Settings of an acceptance measurement, and counts from the acceptance probabilities along a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sequoia_cli.core.calibration import Cells, bin_of
from sequoia_cli.core.counts import Rows
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.verification.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.warp import Sampling


@dataclass(frozen=True)
class AcceptanceSettings:
    """Measure children of `ranks` ranks at `depths` depths on texts of `new_tokens` tokens."""

    sampling: Sampling
    draft_sampling: Sampling
    ranks: int
    depths: int
    new_tokens: int
    verifier: Verifier = SEQUOIA

    @property
    def tree(self) -> TokenTree:
        """A one-level tree with a child of each rank."""
        return TokenTree((-1, *[0] * self.ranks))


@dataclass(frozen=True)
class NodeAcceptance:
    """Acceptance of the children of one node, at one position of a text.

    `accept_probs` has for each rank the probability that its child is the one accepted, before the next token
    is known. `hit_prob` is the probability that a child was accepted, given the token that the text has
    there. `largest` has the draft's largest probabilities, at most one for each rank.
    """

    accept_probs: tuple[float, ...]
    hit_prob: float
    largest: tuple[float, ...] = ()


#: One step along a text: acceptance of the root's children, then of those after each next token of the text.
StepAcceptance = tuple[NodeAcceptance, ...]


def overlapping_steps(nodes: Sequence[NodeAcceptance], depths: int) -> list[StepAcceptance]:
    """The step from each position, where a node's acceptance does not depend on where its step began."""
    return [tuple(nodes[start : start + depths]) for start in range(len(nodes))]


def expected_counts(
    steps: Sequence[StepAcceptance], settings: AcceptanceSettings
) -> tuple[tuple[float, ...], Rows, Cells]:
    """Expected trials by depth, expected acceptances by depth and rank, and both by `Cells`, given the text.

    `steps[i]` is a step that starts at position i of the text. Not every position starts one: after an
    accepted child comes the bonus token, and the next step starts after that. So positions where the draft is
    poor start more than their share of steps. Depth d of a step is reached if all depths before were hits.

    The probabilities of successive hits multiply because, given the text, the children of different nodes are
    independent, and no product contains a node twice: a step starts after the positions it depends on.
    """
    starts = [1.0, *[0.0] * (len(steps) + 1)]  # the probability that a step starts at each position
    trials = [0.0] * settings.depths
    accepted = [[0.0] * settings.ranks for _ in range(settings.depths)]
    cells: dict[tuple[int, int, int], tuple[float, float]] = {}
    for position, nodes in enumerate(steps):
        reached = starts[position]
        starts[position + 1] += reached * (1 - nodes[0].hit_prob)
        starts[position + 2] += reached * nodes[0].hit_prob
        for depth, node in enumerate(nodes):
            trials[depth] += reached
            for rank, prob in enumerate(node.accept_probs):
                accepted[depth][rank] += reached * prob
            for rank, (largest, prob) in enumerate(zip(node.largest, node.accept_probs, strict=False)):
                key = depth, rank, bin_of(largest)
                before = cells.get(key, (0.0, 0.0))
                cells[key] = before[0] + reached, before[1] + reached * prob
            reached *= node.hit_prob
    return tuple(trials), tuple(map(tuple, accepted)), dict(sorted(cells.items()))
