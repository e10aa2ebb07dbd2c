"""Trees chosen in each step keep the target's distribution: every draw of whole steps is enumerated."""

import random

import numpy as np
import pytest
import torch

from enumeration import DRAWS, Coin, Pair, completed_distribution, outcomes
from exhaustive import exhaustive
from sequoia_cli.core.calibration import BINS
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.adaptive import AdaptiveShape, Policy, slopes_below
from sequoia_cli.engine.draw import top_children
from sequoia_cli.engine.grow import grow
from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.step import Stopwatch
from sequoia_cli.engine.verification import traversal, walk
from sequoia_cli.engine.verification.verifiers import NAIVE, SEQUOIA, SPECINFER, SPECTR, TRAVERSAL, VERIFIERS
from sequoia_cli.engine.verification.walk import Drawn
from sequoia_cli.engine.warp import Sampling

CPU = torch.device("cpu")
LOSSLESS = pytest.mark.parametrize(
    "verifier", [each for each in VERIFIERS.values() if each.stops], ids=lambda each: each.name
)

OUTER = TokenTree((-1, 0, 0, 1, 1))

#: Pairs and policies that choose among several trees.
SEEDS = (6, 7, 12, 24)


class PairDraft:
    """A draft with a distribution of its own after every text."""

    def __init__(self, pair):
        self.pair, self.texts = pair, []

    def extend(self, parents, tokens):
        for parent, token in zip(parents, tokens.tolist(), strict=True):
            self.texts.append((*self.texts[parent], token) if parent >= 0 else ())
        rows = [self.pair("draft", text) for text in self.texts[-len(parents) :]]
        return Proposals(torch.tensor(rows, dtype=torch.float64).log())


def random_policy(seed, size) -> Policy:
    """Rates that jump from bin to bin and costs that jump at sizes, so that rows of the draft matter."""
    rng = random.Random(seed)
    accept = np.array(
        [[[rng.choice((0.1, 0.6, 1.0)) for _ in range(BINS)] for _ in range(2)] for _ in range(2)]
    )
    target = np.array([0.0, 1.0, *np.cumsum([rng.choice([0.0, 0.1, 0.35]) for _ in range(size - 1)]) + 1.0])
    draft = np.array([0.0, *np.cumsum([rng.choice([0.01, 0.12]) for _ in range(size)])])
    return Policy(accept, np.full(accept.shape, 1 / BINS), target, slopes_below(target), draft, 1.0)


class AnyShape:
    """Takes nodes at random by all that was read so far, which is all that `engine/adaptive.py` relies on."""

    def __init__(self, outer, seed):
        self.outer, self.seed, self.read = outer, seed, []

    def start(self, layers):
        self.places, self.drawn, self.first = [0], {}, {}
        return self.outer.size

    def random(self):
        return random.Random(f"{self.seed} {self.read}")

    def run(self, nodes):
        rng = self.random()
        open_nodes = [node for node in nodes if self.outer.children[self.places[node]]]
        return [node for node in open_nodes if node == 0 or rng.random() < 0.6]

    def children(self, nodes, largest):
        self.read.append([[round(each, 9) for each in row] for row in largest(2).tolist()])
        for node in nodes:
            children = self.outer.children[self.places[node]]
            self.drawn[node] = range(len(self.places), len(self.places) + len(children))
            self.places += children
        return [len(self.drawn[node]) for node in nodes]

    def keep(self, size):
        rng, kept = self.random(), [0]
        for children in self.drawn.values():
            run = [place for place, child in enumerate(children, 1) if child in self.drawn]
            kept += children[: rng.randint(max(run, default=0), len(children))]
        return kept

    def learn(self, ranks):
        pass


def steps(verifier, pair, outer, make_shape, monkeypatch, leave_out=lambda grown, node, children: children):
    """The tokens of every step there can be, with their probabilities; and the trees that there were."""
    trees = set()

    def step(choices):
        shape = make_shape(outer)
        shape.own = [1.0]  # for rules that look where they must not

        def draw(probs, counts, noise):
            rows = []
            for row, count in zip(probs.tolist(), counts, strict=True):
                picked = choices.pick(DRAWS[verifier.name](row, count)) if count else ()
                shape.own += [row[token] for token in picked]
                rows.append(torch.tensor(picked, dtype=torch.long))
            return rows

        size = shape.start(outer.depth)
        drawing = top_children if verifier is NAIVE else draw
        noise = torch.zeros(size, dtype=torch.float64)
        grown = grow(
            PairDraft(pair), shape, size, 0, pair.size, CPU, Sampling(1.0), noise, drawing, Stopwatch(CPU)
        )
        tree, tokens = grown.tree, grown.tokens.tolist()
        trees.add(tree)

        def drawn(node):
            children = leave_out(grown, node, list(tree.children[node]))
            return [Drawn(grown.probs(node, pair.size), children)] if children else []

        def target(node):
            text = tuple(tokens[each] for each in tree.path(node)[1:])
            return torch.tensor(pair("target", text), dtype=torch.float64)

        with monkeypatch.context() as patch:
            for module in (traversal, walk):
                patch.setattr(
                    module,
                    "draw",
                    lambda probs, _: choices.pick(list(enumerate((probs / probs.sum()).tolist()))),
                )
            verdict = verifier.judge(tokens, target, drawn, [Coin(choices)] * (tree.size + 1))
        return (*(tokens[node] for node in verdict.path[1:]), verdict.next_token)

    return list(outcomes(step)), trees


def error(verifier, seed, monkeypatch, shape=AdaptiveShape, outer=OUTER, size=3, **options):
    """How far texts are from the target's distribution at most, and the number of trees there were."""
    pair, chosen_by = Pair(size, seed % 3 == 2, seed), seed
    if shape is not AnyShape:
        chosen_by = random_policy(seed, outer.size)
    found, trees = steps(verifier, pair, outer, lambda tree: shape(tree, chosen_by), monkeypatch, **options)
    texts = completed_distribution(found, pair, outer.depth)
    return max(abs(texts[text] - chance) for text, chance in pair.distribution(outer.depth).items()), len(
        trees
    )


@LOSSLESS
def test_texts_have_the_targets_distribution_however_nodes_are_taken_before_they_are_read(
    verifier, monkeypatch
):
    found = [error(verifier, seed, monkeypatch, AnyShape) for seed in SEEDS]
    assert max(each for each, _ in found) < 1e-12
    assert verifier is NAIVE or max(trees for _, trees in found) > 1


@exhaustive
@LOSSLESS
@pytest.mark.parametrize("seed", range(20))
def test_so_they_have_in_many_more_ways(verifier, seed, monkeypatch):
    assert error(verifier, seed, monkeypatch, AnyShape)[0] < 1e-12
    assert error(verifier, seed, monkeypatch)[0] < 1e-12


@exhaustive
@LOSSLESS
@pytest.mark.parametrize("seed", range(3))
def test_so_they_have_with_another_level(verifier, seed, monkeypatch):
    for outer in (TokenTree((-1, 0, 0, 1, 1, 2, 4)), TokenTree((-1, 0, 0, 1, 1, 2, 2, 3, 5))):
        assert error(verifier, seed, monkeypatch, AnyShape, outer, 2)[0] < 1e-12


@LOSSLESS
def test_texts_have_the_targets_distribution_where_the_nodes_that_pay_are_taken(verifier, monkeypatch):
    found = [error(verifier, seed, monkeypatch) for seed in (2, 6, 12, 28)]
    assert max(each for each, _ in found) < 1e-12
    assert verifier is NAIVE or max(trees for _, trees in found) > 1  # the policy does choose


# --- rules that are not lossless


def worst(verifier, monkeypatch, shape, seeds=SEEDS, **options):
    return max(error(verifier, seed, monkeypatch, shape, **options)[0] for seed in seeds)


class Peeking(AnyShape):
    """Leaves out last children that were not run and whose own drawn token is improbable."""

    def keep(self, size):
        kept = set(super().keep(size))
        for children in self.drawn.values():
            last = max(kept & set(children), default=0)
            if last and last not in self.drawn and self.own[last] < 0.5:
                kept.remove(last)
        return sorted(kept)


def without_barren(grown, node, children):
    """Leaves out last children that the draft ran, and of whose children few were kept."""
    barren = children and children[-1] in grown.numbers and len(grown.tree.children[children[-1]]) < 2
    return children[:-1] if barren else children


DRAWN = pytest.mark.parametrize("verifier", [SEQUOIA, SPECINFER, TRAVERSAL], ids=lambda each: each.name)


@DRAWN
def test_the_check_sees_scores_that_use_the_probability_of_the_drawn_token(verifier, monkeypatch):
    assert worst(verifier, monkeypatch, Peeking) > 0.005


@DRAWN
def test_the_check_sees_nodes_that_are_dropped_for_what_was_drawn_after_them(verifier, monkeypatch):
    assert worst(verifier, monkeypatch, AnyShape, leave_out=without_barren) > 0.005


def test_the_most_probable_children_may_be_dropped_for_anything(monkeypatch):
    assert worst(NAIVE, monkeypatch, AnyShape, leave_out=without_barren) < 1e-12


def test_the_check_sees_why_spectr_is_refused(monkeypatch):
    assert worst(SPECTR, monkeypatch, AnyShape, [7], outer=TokenTree((-1, 0, 0, 1))) > 0.001
