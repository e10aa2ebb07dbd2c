"""The steps that `benchmarks/bench_adaptive.py` counts are those of the engine."""

import pytest
import torch
from adaptive.rules import BestFirst, Eagle2, OptTree
from adaptive.simulated import SimulatedText
from adaptive.steps import run

from scripted import ScriptedDraft, ScriptedTarget, counting_up, ranking
from sequoia_cli.core.costs import Curve, StepCosts
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.grow import FixedShape

COSTS = StepCosts(Curve(((1, 1.0), (64, 2.0))), Curve(((1, 0.1), (64, 0.1))))
VECTOR = [0.6, 0.2, 0.1]


def test_a_fixed_tree_brings_what_its_scores_add_up_to():
    tree, tokens = TokenTree((-1, 0, 0, 1)), 20000
    total = run(SimulatedText(VECTOR, tokens, 0, spread=1000.0), FixedShape(tree), 9, COSTS)
    # 1 + 0.6 + 0.2 + 0.36; about 9,000 steps have a standard error of 0.012.
    assert total.tokens / total.steps == pytest.approx(2.16, abs=0.05)
    assert total.seconds / total.steps == pytest.approx(COSTS.seconds(4, [1, 1]), abs=1e-3)


class Counting:
    """What `ReplayedText` is, of a scripted pair: the text counts up."""

    def __init__(self, table, tokens):
        self.draft, self.left, self.place = ScriptedDraft(table), tokens, 0
        self.tokens = []

    def extend(self, nodes):
        rows, winners = [], []
        for parent, rank in nodes:
            token = self.tokens[parent][1][rank] if parent >= 0 else self.place
            probs = self.draft.extend((), torch.tensor([token])).probabilities
            best = probs(Sampling(1.0)).probs[0].topk(3)
            self.tokens.append((token, best.indices.tolist()))
            rows.append(best.values.tolist())
            right = token + 1
            winners.append(best.indices.tolist().index(right) if right in best.indices else None)
        return rows, winners

    def commit(self, ranks):
        self.left, self.place, self.tokens = self.left - len(ranks) - 1, self.place + len(ranks) + 1, []


def test_steps_of_a_replayed_text_are_those_of_the_engine():
    table = ranking(40, [0, 1, None, 0, 0, 2, 0] * 6, 3)
    tree = TokenTree((-1, 0, 0, 0, 1, 1, 2))
    found = run(Counting(table, 36), FixedShape(tree), tree.depth, COSTS)
    decoder = Decoder(ScriptedTarget(counting_up(40)), [ScriptedDraft(table)], tree)
    steps = list(decoder.decode([0], 36))
    assert (found.tokens, found.steps) == (36, len(steps))
    assert found.seconds == pytest.approx(sum(COSTS.seconds(step.size, step.level_widths) for step in steps))


@pytest.mark.parametrize(
    "make", [lambda: Eagle2(8, 3, 3), lambda: BestFirst(8, 3, 5), lambda: OptTree(8, 3, 5, 0.1)]
)
def test_published_rules_keep_to_their_budget_and_beat_chains_where_the_draft_is_as_sure_as_right(make):
    found = run(SimulatedText(VECTOR, 4000, 1), make(), 9, COSTS)
    assert found.nodes <= 8 * found.steps
    other = run(SimulatedText(VECTOR, 4000, 1), FixedShape(chain(2)), 9, COSTS)
    assert found.tokens / found.steps > other.tokens / other.steps
