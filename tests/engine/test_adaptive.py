"""Trees chosen in each step out of the decoding loop: what they learn, and when they stop drafting."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding import own_greedy
from models import near, tiny_model
from scripted import ScriptedDraft, ScriptedTarget, counting_up, ranking
from sequoia_cli.core.calibration import BINS, EDGES, Calibration, bin_of
from sequoia_cli.core.costs import Curve, StepCosts
from sequoia_cli.core.plan import Adaptive, TreePlan
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.adaptive import check_plan, shapes_of, slopes_below
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification.verifiers import NAIVE, SEQUOIA, SPECTR
from sequoia_cli.errors import BadInput
from text_distributions import CUT, VOCABULARY, exact_distribution, p_value, texts

OUTER = TokenTree((-1, 0, 0, 0, 1, 1, 2, 4, 4, 7, 9))
SIZE = 60


def as_sure_as_right(orders=3) -> Calibration:
    """The draft's own probabilities are the acceptance."""
    middles = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
    seen = tuple(1 / BINS for _ in range(BINS))
    return Calibration((tuple(tuple(middles) for _ in range(orders)),), ((seen,) * orders,))


def plan(outer=OUTER, node=0.02, level=0.05) -> TreePlan:
    """Plain decoding takes a second; each node and each level of the draft a little."""
    target = Curve(((1, 1.0), (64, 1.0 + 63 * node)))
    adaptive = Adaptive(as_sure_as_right(), 1.5)
    return TreePlan(outer, costs=StepCosts(target, Curve(((1, level), (64, level)))), adaptive=adaptive)


def decoder(draft, made=None, table=None, **options):
    made = made or plan()
    return Decoder(
        ScriptedTarget(table or counting_up(SIZE)),
        [ScriptedDraft(draft)],
        made.tree,
        shape=shapes_of(made),
        **options,
    )


def step_list(run, count=SIZE - 2):
    return list(run.decode([0], count))


def seconds(steps, made):
    return sum(made.costs.seconds(step.size, step.level_widths) for step in steps)


FOLLOWS = ranking(SIZE, [0] * SIZE, 8)
LOST = ranking(SIZE, [None] * SIZE, 8)


@pytest.mark.parametrize("draft", [FOLLOWS, LOST], ids=["follows", "lost"])
def test_the_greedy_text_is_the_targets(draft):
    ids = [token for step in step_list(decoder(draft)) for token in step.tokens]
    assert ids == list(range(1, SIZE - 1))


def test_trees_of_tiny_models_change_from_step_to_step_and_the_text_does_not():
    target = tiny_model("llama")
    model = LanguageModel(target)
    draft = IndependentDraft(LanguageModel(near(target, 0.02)), model.vocabulary)
    made = plan(node=0.001, level=0.001)
    run = Decoder(model, [draft], made.tree, shape=shapes_of(made))
    steps = list(run.decode([5, 17, 3, 42, 8, 11, 2], 40))
    assert [token for step in steps for token in step.tokens] == own_greedy(target)
    assert len({step.size for step in steps}) > 2


def test_a_draft_that_cannot_follow_is_soon_left_alone():
    made = plan(level=0.15)
    steps = step_list(decoder(LOST, made))
    drafted = [step for step in steps if step.level_widths]
    assert len(drafted) < 16
    # Plain decoding takes a second for each token.
    assert seconds(steps[-20:], made) < 20 * 1.03
    # The control drafts in each step.
    fixed = Decoder(ScriptedTarget(counting_up(SIZE)), [ScriptedDraft(LOST)], chain(3))
    assert seconds(step_list(fixed), made) > 1.2 * seconds(steps, made)


def test_a_draft_that_follows_later_is_taken_up_again():
    half = [None] * 30 + [0] * SIZE
    steps = step_list(decoder(ranking(SIZE, half, 8), plan(level=0.15)))
    accepted = [len(step.ranks) for step in steps]
    assert sum(accepted[:12]) == 0 and sum(accepted) > 8


def test_trees_are_as_large_as_what_they_bring_pays():
    sizes = [
        np.mean([step.size for step in step_list(decoder(FOLLOWS, plan(node=node)))])
        for node in (0.001, 0.05, 0.2)
    ]
    assert sizes[0] > sizes[1] > sizes[2] >= 1


def test_steps_of_a_seed_are_the_same_and_another_text_starts_anew():
    run = decoder(FOLLOWS, sampling=Sampling(1.0), table=ranking(SIZE, [1] * SIZE, 8))
    found = [
        [(step.tokens, step.size) for step in run.decode([0], 40, generator=torch.Generator().manual_seed(s))]
        for s in (1, 2, 1)
    ]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("verifier", [SEQUOIA, NAIVE], ids=lambda each: each.name)
@pytest.mark.parametrize("at_once", [False, True])
def test_texts_of_tiny_models_have_the_targets_distribution(verifier, at_once):
    target = tiny_model("llama", vocab=VOCABULARY)
    model = LanguageModel(target)
    draft = IndependentDraft(LanguageModel(near(target, 0.3)), VOCABULARY)
    made = plan(node=0.001, level=0.001)
    options = {"verifier": verifier, "at_once": at_once, "shape": shapes_of(made)}
    assert (
        p_value(
            texts(Decoder(model, [draft], made.tree, CUT, **options), 2), exact_distribution(target, CUT, 2)
        )
        > 1e-6
    )


def test_slopes_are_those_of_the_largest_convex_curve_below():
    found = slopes_below(np.array([0.0, 1.0, 1.0, 3.0, 3.0, 8.0, np.inf]))
    assert found[2:].tolist() == [0.0, 1.0, 1.0, 5.0, np.inf, np.inf]


def test_what_is_not_lossless_is_refused():
    check_plan(plan(), SPECTR, greedy=True, drafts=1)
    check_plan(replace(plan(), adaptive=None), SPECTR, greedy=False, drafts=2)
    with pytest.raises(BadInput, match="spectr needs the number of children"):
        check_plan(plan(), SPECTR, greedy=False, drafts=1)
    with pytest.raises(BadInput, match="takes one draft, and 2"):
        check_plan(plan(), SEQUOIA, greedy=True, drafts=2)


def test_bins_end_at_their_edges():
    assert [bin_of(each) for each in (0.0, EDGES[0], 0.5, 1.0)] == [0, 1, EDGES.index(0.5) + 1, BINS - 1]
