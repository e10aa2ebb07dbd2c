"""The distribution of whole texts (models, cache, draft, verification) against the target's own.

Fixed seeds. A right program fails each of these chi-squared tests in one of a million seeds; 1,000 texts see
a total variation of about 0.1 over the few dozen outcomes.
"""

from dataclasses import replace

import pytest

from exhaustive import exhaustive, few
from models import near, tiny_model
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.draw import top_children
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import SEQUOIA
from sequoia_cli.engine.warp import Sampling
from text_distributions import CUT, VOCABULARY, WHOLE, exact_distribution, p_value, table_distribution, texts

WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


def decoder_of(tree, sampling, draft_sampling=None, scale=0.05, verifier=SEQUOIA):
    target = tiny_model("llama", vocab=VOCABULARY)
    model = LanguageModel(target)
    draft = IndependentDraft(LanguageModel(near(target, scale)), VOCABULARY)
    return target, Decoder(model, [draft], tree, sampling, draft_sampling, verifier=verifier)


@pytest.mark.parametrize(
    "case",
    few(
        [(ROOT_ONLY, CUT), (chain(3), CUT), (TokenTree((-1, 0, 0, 0, 0)), CUT), (WIDE, CUT), (WIDE, WHOLE)],
        (ROOT_ONLY, CUT),
        (WIDE, CUT),
    ),
    ids=["plain", "chain", "star", "tree", "tree, whole vocabulary"],
)
def test_texts_of_two_tokens_have_the_targets_distribution(case):
    tree, sampling = case
    target, decoder = decoder_of(tree, sampling)
    assert p_value(texts(decoder, 2), exact_distribution(target, sampling, 2)) > 1e-6


@exhaustive
def test_the_distribution_does_not_depend_on_how_the_draft_is_sampled():
    sampling = Sampling(1.0, 6)
    target, decoder = decoder_of(WIDE, sampling, Sampling(3.0, 0, 0.5), scale=0.5)
    assert p_value(texts(decoder, 2), exact_distribution(target, sampling, 2)) > 1e-6


@exhaustive
def test_three_tokens_of_a_draft_equal_to_the_target_have_its_distribution():
    # Fully accepted paths: the token behind them must come from the target itself, not from a residual.
    sampling = Sampling(0.8, 3)
    target, decoder = decoder_of(chain(3), sampling, Sampling(0.8, 3), scale=0.0)
    assert p_value(texts(decoder, 3), exact_distribution(target, sampling, 3)) > 1e-6


def test_the_check_sees_children_that_are_treated_as_samples_but_are_the_most_probable():
    # Not `top_children` itself: where that draws, no probabilities are kept.
    sampling = Sampling(1.0)
    target, decoder = decoder_of(
        WIDE, sampling, verifier=replace(SEQUOIA, draw=lambda *given: top_children(*given))
    )
    assert p_value(texts(decoder, 2), exact_distribution(target, sampling, 2)) < 1e-6


@exhaustive
def test_texts_of_two_merged_drafts_have_the_targets_distribution():
    target = tiny_model("llama", vocab=VOCABULARY)
    models = near(target, 0.3), tiny_model("llama", vocab=VOCABULARY, seed=4)
    drafts = [IndependentDraft(LanguageModel(model), VOCABULARY) for model in models]
    decoder = Decoder(LanguageModel(target), drafts, WIDE, CUT)
    assert p_value(texts(decoder, 2), exact_distribution(target, CUT, 2)) > 1e-6


#: Behind each of four tokens: what the target says, and two drafts that are wrong in different ways.
SAID = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.0, 0.5], [0.25, 0.25, 0.25, 0.25]]
GUESSED = [[0.85, 0.05, 0.05, 0.05]] * 4, [[0.05, 0.05, 0.1, 0.8], [0.0, 0.0, 0.9, 0.1]] * 2


def scripted_p_value(tree, sampling=WHOLE, draft_sampling=WHOLE):
    """Of three tokens behind the last of the prompt, with both drafts' trees merged."""
    decoder = Decoder(ScriptedTarget(SAID), [*map(ScriptedDraft, GUESSED)], tree, sampling, draft_sampling)
    return p_value(texts(decoder, 3), table_distribution(SAID, sampling, 3))


@pytest.mark.parametrize(
    "tree", few([chain(3), TokenTree((-1, 0, 0)), WIDE], WIDE), ids=["chain", "star", "tree"]
)
@pytest.mark.parametrize(
    "samplings", [(), (CUT, WHOLE), (WHOLE, Sampling(3.0, 0, 0.5))], ids=["whole", "cut", "cut drafts"]
)
def test_texts_of_merged_scripted_drafts_have_the_targets_distribution(tree, samplings):
    assert scripted_p_value(tree, *samplings) > 1e-6


def test_the_check_sees_a_second_drafts_children_tested_by_the_first_ones_distribution(monkeypatch):
    def turn_to(trial, probs):
        right(trial, first.setdefault(trial, probs))

    first, right = {}, ResidualRule.turn_to
    monkeypatch.setattr(ResidualRule, "turn_to", turn_to)
    assert scripted_p_value(chain(3)) < 1e-6
