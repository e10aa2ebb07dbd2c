"""The decoding loop with every verifier: the target's distribution and its greedy text, one draft or several.

Fixed seeds; a right program fails a chi-squared test in one of a million of them (see `text_distributions`).
"""

import random
from dataclasses import replace

import pytest
import torch

from decoding import TREE, decoder, new_ids, own_greedy
from enumeration import outcomes, random_row, with_replacement
from exhaustive import exhaustive, few
from features import feature_draft
from models import near, tiny_model
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draw import draw_children, draw_independently
from sequoia_cli.engine.merge import merge
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import NAIVE, SEQUOIA, SPECINFER, SPECTR, TRAVERSAL, VERIFIERS
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput
from text_distributions import CUT, WHOLE, p_value, table_distribution, texts

OTHERS = pytest.mark.parametrize(
    "verifier", [SPECINFER, SPECTR, NAIVE, TRAVERSAL], ids=lambda each: each.name
)

#: Behind each of four tokens: what the target says, and two drafts that are wrong in different ways.
SAID = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.0, 0.5], [0.25, 0.25, 0.25, 0.25]]
GUESSED = [[0.05, 0.05, 0.1, 0.8], [0.0, 0.0, 0.9, 0.1]] * 2, [[0.7, 0.1, 0.1, 0.1]] * 4
WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


def scripted_p_value(verifier, tables=GUESSED[:1], sampling=WHOLE, at_once=None):
    """Of three tokens behind the last of the prompt."""
    drafts = [*map(ScriptedDraft, tables)]
    decoder = Decoder(ScriptedTarget(SAID), drafts, WIDE, sampling, WHOLE, verifier=verifier, at_once=at_once)
    return p_value(texts(decoder, 3), table_distribution(SAID, sampling, 3))


@OTHERS
@pytest.mark.parametrize("at_once", few([False, True], False), ids=["", "drawn on the device"])
def test_texts_of_three_tokens_have_the_targets_distribution(verifier, at_once):
    assert scripted_p_value(verifier, at_once=at_once) > 1e-6


@exhaustive
@OTHERS
def test_they_do_where_the_targets_tail_is_cut_and_the_drafts_is_not(verifier):
    assert scripted_p_value(verifier, sampling=CUT) > 1e-6


@exhaustive
def test_texts_of_two_merged_drafts_with_equal_siblings_have_the_targets_distribution():
    assert scripted_p_value(SPECINFER, GUESSED) > 1e-6


@pytest.mark.parametrize("verifier", [SPECINFER, SPECTR, TRAVERSAL], ids=lambda each: each.name)
def test_the_check_sees_children_drawn_in_the_way_of_another_rule(verifier):
    other = draw_independently if verifier is TRAVERSAL else draw_children
    assert scripted_p_value(replace(verifier, draw=other)) < 1e-6


@pytest.mark.parametrize("verifier", [SPECTR, NAIVE, TRAVERSAL], ids=lambda each: each.name)
def test_several_drafts_are_refused_where_the_rule_is_for_one(verifier):
    with pytest.raises(BadInput, match=f"--verifier {verifier.name} takes one draft, and 2 are given"):
        Decoder(ScriptedTarget(SAID), [*map(ScriptedDraft, GUESSED)], WIDE, WHOLE, verifier=verifier)


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS.keys())
def test_a_greedy_text_is_the_targets_own_in_the_same_steps(verifier):
    target = tiny_model("llama")
    draft = near(target, 0.02)
    assert new_ids(decoder(target, draft, verifier=verifier)) == own_greedy(target)
    lengths = [
        [len(step.tokens) for step in decoder(target, draft, verifier=each).decode([5, 17, 3], 40)]
        for each in (verifier, SEQUOIA)
    ]
    assert lengths[0] == lengths[1]


@OTHERS
def test_a_draft_equal_to_the_target_is_followed_to_the_last_layer_unless_it_is_only_matched(verifier):
    target = tiny_model("llama")
    steps = decoder(target, target, tree=TREE, sampling=Sampling(0.8), verifier=verifier)
    generator = torch.Generator().manual_seed(0)
    lengths = [len(step.tokens) for step in steps.decode([5, 17, 3], 120, generator=generator)]
    assert sum(lengths) == 120
    if verifier is not NAIVE:
        assert min(lengths[:-1]) >= 2


@OTHERS
def test_a_draft_that_reads_hidden_states_and_knows_few_ids_is_used_as_well(verifier):
    model = LanguageModel(tiny_model("llama"))
    draft = feature_draft(model)
    run = Decoder(model, [draft], TREE, Sampling(0.8), verifier=verifier)
    text = [token for step in run.decode([5, 17, 3], 40) for token in step.tokens]
    assert len(text) == 40


# --- several drafts that draw with replacement


def test_copies_of_a_token_in_one_tree_stay_nodes_and_meet_those_of_the_others():
    star = TokenTree((-1, 0, 0, 0, 1, 2))
    merged = merge([star] * 2, [[9, 4, 4, 5, 6, 7], [9, 4, 5, 4, 6, 8]])
    assert list(merged.tree.parents) == [-1, 0, 0, 0, 1, 2, 3]
    assert list(merged.tokens) == [9, 4, 4, 5, 6, 7, 8]
    assert [list(nodes) for nodes in merged.nodes] == [[0, 1, 2, 3, 4, 5], [0, 1, 3, 2, 4, 6]]
    assert merged.own_path(1, [0, 1, 4]) == [0, 1, 4]
    for draft in range(2):
        assert all(len([own for source, own in found if source == draft]) <= 1 for found in merged.sources)


def exact_error(target, drafts, counts):
    """Of the distribution of the token after a root by SpecInfer's rule, over every draw of two drafts."""

    def token(choices):
        trial = ResidualRule(torch.tensor(target, dtype=torch.float64), replacement=True)
        for draft, count in zip(drafts, counts, strict=True):
            trial.turn_to(torch.tensor(draft, dtype=torch.float64))
            for child in choices.pick(with_replacement(draft, count)):
                chance = trial.chance(child)
                if choices.pick([(True, chance), (False, 1 - chance)]):
                    return child
                trial.reject(child)
        return choices.pick(list(enumerate(trial.residual().tolist())))

    distribution = [0.0] * len(target)
    for found, chance in outcomes(token):
        distribution[found] += chance
    return max(abs(a - b) for a, b in zip(distribution, target, strict=True))


@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 2)])
def test_the_distribution_after_two_drafts_that_draw_with_replacement_is_exactly_the_targets(counts, zeros):
    rng = random.Random(f"{counts} {zeros}")
    for size in (2, 3, 4):
        rows = [random_row(rng, size, zeros) for _ in range(3)]
        assert exact_error(rows[0], rows[1:], counts) < 1e-12


def test_the_exact_check_sees_a_residual_that_is_not_brought_up_to_date(monkeypatch):
    rng = random.Random(1)
    monkeypatch.setattr(ResidualRule, "_update", lambda trial: setattr(trial, "_stale", False))
    errors = sorted(
        exact_error(random_row(rng, 4, False), [random_row(rng, 4, False) for _ in range(2)], (1, 1))
        for _ in range(9)
    )
    assert errors[4] > 0.005
