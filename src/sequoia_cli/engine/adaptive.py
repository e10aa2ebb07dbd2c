"""Trees chosen in each step: best nodes first, as long as they pay.

What maximises tokens per second over a text is, in each step, the tree with the most tokens - r * seconds,
where r are the tokens per second of the text as a whole (Dinkelbach, Management Science 13, 1967): a step may
be slow where the draft is sure, and brief where it is not. The stop rules of OPT-Tree (arXiv 2406.17276) and
CaDDTree (arXiv 2606.01813) look at the ratio of the step alone.

Child j of a node X has the score of X times the acceptance that was measured for its depth, its order and
the j-th largest of the probabilities after X (see `Calibration`): the chance that the target accepts it. Of
scores that would rise with j the lower one holds.

Why the text keeps the target's distribution: a node is taken into the tree before its token is read, and
what is in the tree stays. Its token is read where the draft runs the node, so what the draft has run stays,
with the siblings drawn before it; what was drawn further is taken or left by scores, which know the
probabilities that a token is drawn from, but not the token. So, whatever has been read when a node is taken,
its token still has the distribution that the verifier assumes, and children stop coming only by what was
read of the ones before: given that these are rejected, the verifier's residual is the same with a next child
as without. Depths, budgets and rates of past steps are known before. A rule that looks at the drawn token's
own probability, or that drops nodes for what was drawn after them, has neither
(`tests/engine/test_adaptive_distribution.py` shows both). SpecTr's rule needs the number of children before
the first of them is tested, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sequoia_cli.core.calibration import EDGES
from sequoia_cli.core.costs import StepCosts
from sequoia_cli.core.plan import Adaptive, TreePlan
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.grow import FixedShape, Shape
from sequoia_cli.engine.verification.verifiers import Verifier
from sequoia_cli.errors import BadInput

Floats = NDArray[np.float64]

#: How much of what a text has shown so far is left after one more step.
_MEMORY = 0.97
#: Seconds that the compiled rate is worth against the text's own, in steps of plain decoding.
_RATE_STEPS = 16
#: Acceptances that the calibration is worth against the text's own.
_TRUST = 4.0
#: Tokens that drafting may lose on a text, against plain decoding, before plain steps follow.
_CREDIT = 1.0
#: Plain steps between two trials where drafting does not pay: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 4, 64


@dataclass(frozen=True)
class Policy:
    """The numbers of an adaptive plan as arrays, made once for all texts.

    `accept` and `seen` (depth, order, bin); `target` seconds of a step by nodes and `draft` by width, both
    from 0 on and infinite beyond what was measured; `price` seconds that the next node adds, on the largest
    convex curve below `target`. `rate` in tokens per second.
    """

    accept: Floats
    seen: Floats
    target: Floats
    price: Floats
    draft: Floats
    rate: float

    @classmethod
    def of(cls, costs: StepCosts, adaptive: Adaptive, size: int) -> Policy:
        """For trees of up to `size` nodes."""

        def table(seconds: Callable[[int], float]) -> Floats:
            return np.array([0.0, *map(seconds, range(1, size + 1))])

        target = table(costs.seconds)
        return cls(
            np.array(adaptive.calibration.acceptance),
            np.array(adaptive.calibration.seen),
            target,
            slopes_below(target),
            table(costs.draft.seconds),
            max(adaptive.tokens_per_second, 1 / float(target[1])),
        )


def slopes_below(seconds: Floats) -> Floats:
    """By node, what it adds on the largest convex curve below the points from 1 on."""
    slopes = np.full(len(seconds) + 1, np.inf)
    slopes[:2] = 0.0
    last, end = 1, int(np.isfinite(seconds).sum())
    while last < end - 1:
        rises = (seconds[last + 1 : end] - seconds[last]) / np.arange(1, end - last)
        step = int(len(rises) - 1 - np.argmin(rises[::-1]))
        slopes[last + 1 : last + step + 2] = max(0.0, rises[step])
        last += step + 1
    return slopes


def shapes_of(plan: TreePlan) -> Callable[[TokenTree], Shape]:
    """What a `Decoder` makes the shapes of its texts with, its tree being the plan's."""
    if plan.adaptive is None or plan.costs is None:
        return FixedShape
    return partial(AdaptiveShape, policy=Policy.of(plan.costs, plan.adaptive, plan.tree.size))


def check_plan(plan: TreePlan, verifier: Verifier, *, greedy: bool, drafts: int) -> None:
    """Raise `BadInput` for an adaptive plan where it is not lossless, or with several drafts."""
    if plan.adaptive is None:
        return
    if drafts > 1:
        raise BadInput(f"a plan that chooses trees in each step takes one draft, and {drafts} are given")
    if not (greedy or verifier.stops):
        raise BadInput(
            f"--verifier {verifier.name} needs the number of children before they are drawn, and this plan "
            "chooses it in each step",
            hint="take another verifier, or a plan compiled without --adaptive",
        )


class AdaptiveShape:
    """Of the `outer` tree, in each step the part that is expected to pay.

    It learns from the text: how often the target accepts what the calibration expects (one factor on all
    rates), and how many tokens come in a second, by the plan's own costs, so that a text depends on no clock.
    Where drafting has lost more than it gained lately, plain steps follow, and then a trial.
    """

    def __init__(self, outer: TokenTree, policy: Policy) -> None:
        self._whole = self._outer = outer
        self._limited: dict[int, TokenTree] = {}
        self._policy = policy
        plain = float(policy.target[1])
        self._seconds = _RATE_STEPS * plain
        self._tokens = policy.rate * self._seconds
        self._expected = self._found = _TRUST
        self._credit = _CREDIT
        self._pause, self._plain_steps = _FIRST_PAUSE, 0

    def start(self, layers: int) -> int:
        """See `Shape`."""
        if layers not in self._limited:
            self._limited[layers] = self._whole.limited(layers)
        self._outer = self._limited[layers]
        self._rate = max(self._tokens / self._seconds, 1 / float(self._policy.target[1]))
        self._factor = self._found / self._expected
        self._scores, self._places = [1.0], [0]  # of each node: its score, its node of the outer tree
        #: What was drawn for each node that the draft ran, and what of all is kept.
        self.children_of: dict[int, range] = {}
        self.kept: set[int] = set()
        self._widths: list[int] = []
        self._resting = self._outer.size == 1 or self._plain_steps > 0
        return 1 if self._resting else self._outer.size

    def run(self, nodes: range) -> Sequence[int]:
        """The best of the nodes, as many as pay: by what their children are expected to bring."""
        if self._resting:
            return ()
        open_nodes = [node for node in nodes if self._outer.children[self._places[node]]]
        if open_nodes and self._widths:
            open_nodes.sort(key=lambda node: -self._scores[node])
            gains = np.cumsum(self._expected_gains([self._scores[node] for node in open_nodes]))
            values = gains - self._rate * self._policy.draft[1 : len(open_nodes) + 1]
            best = int(values.argmax())
            open_nodes = sorted(open_nodes[: best + 1]) if values[best] > 0 else []
        if open_nodes:
            self._widths.append(len(open_nodes))
        return open_nodes

    def children(self, nodes: Sequence[int], largest: Callable[[int], Tensor]) -> Sequence[int]:
        """As many as could be kept."""
        policy, depth = self._policy, min(len(self._widths), len(self._policy.accept)) - 1
        most = [len(self._outer.children[self._places[node]]) for node in nodes]
        given = largest(min(max(most), policy.accept.shape[1])).tolist()
        counts = []
        least = self._rate * float(policy.price[2])
        for node, limit, row in zip(nodes, most, given, strict=True):
            count = min(limit, len(row))
            bins = np.searchsorted(EDGES, row[:count], side="right")
            rates = policy.accept[depth, np.arange(count), bins] * self._factor
            scores = self._scores[node] * np.minimum.accumulate(np.minimum(rates, 1.0))
            kept = scores[scores > least].tolist()
            self.children_of[node] = range(len(self._scores), len(self._scores) + len(kept))
            self._scores += kept
            first = self._outer.children[self._places[node]].start
            self._places += range(first, first + len(kept))
            counts.append(len(kept))
        return counts

    def keep(self, size: int) -> Sequence[int]:
        """What the draft has run and what was drawn before it; then the best others, as many as pay."""
        stays = np.zeros(size, dtype=bool)
        stays[0] = True
        siblings = {node: children for children in self.children_of.values() for node in children}
        for node in self.children_of:
            stays[siblings[node].start if node else 0 : node + 1] = True
        scores = np.array(self._scores)
        # A stable sort: of equal scores the earlier sibling is first.
        others = np.flatnonzero(~stays)
        others = others[np.argsort(-scores[others], kind="stable")]
        base = size - len(others)
        values = np.concatenate(([0.0], np.cumsum(scores[others])))
        values -= self._rate * self._policy.target[base : size + 1]
        stays[others[: int(values.argmax())]] = True
        kept = np.flatnonzero(stays).tolist()
        self.kept = set(kept)
        return kept

    def kept_children(self, node: int) -> list[int]:
        """The children of a node that the target runs."""
        return [child for child in self.children_of.get(node, ()) if child in self.kept]

    def learn(self, ranks: Sequence[int]) -> None:
        """Of what was accepted, and what it cost."""
        policy = self._policy
        plain = float(policy.target[1])
        nodes = 1 if self._resting else len(self.kept)
        seconds = float(policy.target[nodes] + policy.draft[self._widths].sum())
        self._tokens = _MEMORY * self._tokens + len(ranks) + 1
        self._seconds = _MEMORY * self._seconds + seconds
        for name in ("_expected", "_found"):
            setattr(self, name, _TRUST + _MEMORY * (getattr(self, name) - _TRUST))
        if self._resting:
            self._plain_steps = max(0, self._plain_steps - 1)
            return
        self._count(ranks)
        gain = len(ranks) - (seconds - plain) / plain
        self._credit = min(_CREDIT, self._credit + gain)
        if self._credit < 0:
            # The next trial goes on only if it gains.
            self._plain_steps, self._credit = self._pause, 0.0
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        elif gain > 0:
            self._pause = _FIRST_PAUSE

    def _count(self, ranks: Sequence[int]) -> None:
        """How many acceptances the calibration expected along the path, and how many there were."""
        node = 0
        for rank in (*ranks, None):
            children = self.kept_children(node)
            if not children:
                return
            chances = sum(self._scores[child] for child in children) / self._scores[node]
            self._expected += chances / self._factor
            self._found += rank is not None
            if rank is None:
                return
            node = children[rank]

    def _expected_gains(self, scores: Sequence[float]) -> Floats:
        """What running a node of the next level is expected to bring by its children, by the node's score."""
        policy, depth = self._policy, min(len(self._widths) + 1, len(self._policy.accept)) - 1
        drawn = -np.sort(-np.array(self._scores[: len(policy.price) - 2]))
        pay = int((drawn[1:] > self._rate * policy.price[2 : len(drawn) + 1]).sum())
        cost = self._rate * policy.price[pay + 2]
        rates = np.minimum(policy.accept[depth] * self._factor, 1.0)
        gains = np.array(scores)[:, None, None] * rates - cost
        found: Floats = (np.maximum(gains, 0.0) * policy.seen[depth]).sum((1, 2))
        return found
