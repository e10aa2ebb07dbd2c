"""Faults that were shipped in the field, planted in the engine: `check` finds each, and nothing without them.

A right program fails the statistical part of a check once in ten thousand seeds; these are fixed.
"""

import copy
from dataclasses import replace

import pytest
import torch

from checking import WIDE, scripted, tiny
from models import near, tiny_model
from sequoia_cli.check import tally
from sequoia_cli.check.reference import OwnForward
from sequoia_cli.check.texts import SLACK
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine import continuation, masks, warp
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.draw import draw, draw_children, top_children
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.trial import Trial
from sequoia_cli.engine.verifiers import SEQUOIA, VERIFIERS
from sequoia_cli.engine.verify import verify


def failed(verdict):
    """The names of the tests that the tool failed."""
    return {one.test.name for one in verdict.tests if not one.passed}


# --- nothing is found where nothing is wrong


@pytest.mark.parametrize("tree", [WIDE, chain(3), TokenTree((-1, 0, 0, 0, 0))], ids=["tree", "chain", "star"])
def test_a_right_program_passes_and_both_controls_are_caught(tree):
    verdict = scripted(tree=tree)
    assert verdict.failures == []
    assert [control.caught for control in verdict.controls] == [True, True]


def test_a_right_program_passes_with_a_cut_law_and_another_draft_temperature():
    verdict = scripted(sampling=Sampling(0.7, 4, 0.9), draft_sampling=Sampling(2.0))
    assert verdict.failures == []
    assert verdict.controls[0].caught


@pytest.mark.parametrize("name", VERIFIERS)
def test_every_verifier_passes(name):
    assert scripted(verifier=VERIFIERS[name]).failures == []


# --- laws


def test_noise_that_is_drawn_once_and_used_in_every_step_is_found(monkeypatch):
    def step(text, eos_ids):
        text.first = getattr(text, "first", text.generator.get_state())
        text.generator.set_state(text.first)
        return right(text, eos_ids)

    right = continuation.Continuation.step
    monkeypatch.setattr(continuation.Continuation, "step", step)
    assert tally.SUCCESSIVE in failed(scripted())


def test_a_residual_that_is_not_updated_is_found(monkeypatch):
    monkeypatch.setattr(Trial, "_update", lambda trial: setattr(trial, "_stale", False))
    assert {tally.FIRST, tally.FAVOURED} <= failed(scripted())


def test_proposals_that_are_always_accepted_are_found(monkeypatch):
    monkeypatch.setattr(Trial, "chance", lambda trial, token: 1.0)
    assert {tally.FIRST, tally.FAVOURED} <= failed(scripted())


def test_a_last_token_drawn_from_the_drafts_law_is_found():
    def judge(tokens, target_probs, drawn, uniforms):
        verdict = verify(tokens, target_probs, drawn, uniforms)
        if len(verdict.path) < 2 or drawn(verdict.path[-1]):
            return verdict
        law = drawn(verdict.path[-2])[0].probs
        return type(verdict)(verdict.path, draw(law, uniforms[-1]))

    assert failed(scripted(tree=chain(2), verifier=replace(SEQUOIA, judge=judge)))


def test_a_draft_cut_to_its_nucleus_and_verified_as_if_it_were_whole_is_found():
    def cut(probs, counts, noise):
        kept = warp._nucleus(probs, 0.5)
        return draw_children(kept / kept.sum(-1, keepdim=True), counts, noise)

    assert failed(scripted(tree=chain(2), verifier=replace(SEQUOIA, draw=cut)))


def test_the_most_probable_children_verified_as_if_they_were_drawn_are_found():
    assert failed(scripted(verifier=replace(SEQUOIA, draw=top_children)))


#: A confident draft: the logits 14, 2, 1, 0.5, 0, -1, -2, -3 at temperature 0.6.
CONFIDENT = [(torch.tensor([14, 2, 1, 0.5, 0, -1, -2, -3]).double() / 0.6).softmax(0).tolist()] * 8
ELSEWHERE = [[0.1, 1e-9, 1e-9, 0.3, 0.3, 0.3 - 4e-9, 1e-9, 1e-9]] * 8


def test_keys_in_half_precision_which_underflow_for_improbable_children_are_found():
    star = TokenTree((-1, 0, 0, 0, 0))
    assert scripted(ELSEWHERE, CONFIDENT, tree=star).failures == []

    def keyed(probs, counts, noise):
        seed = int(float(noise[0, 0]) * 2**53)
        uniforms = torch.rand(probs.shape, generator=torch.Generator().manual_seed(seed)).clamp(
            1e-6, 1 - 1e-3
        )
        keys = uniforms.half().log() / probs.half()
        return [keys[row].topk(count).indices for row, count in enumerate(counts)]

    verifier = replace(SEQUOIA, draw=keyed)
    assert tally.FIRST in failed(scripted(ELSEWHERE, CONFIDENT, tree=star, verifier=verifier))


def test_another_temperature_than_was_asked_for_is_found(monkeypatch):
    right = continuation.probabilities
    colder = lambda logits, sampling: right(logits, Sampling(0.5))  # noqa: E731
    monkeypatch.setattr(continuation, "probabilities", colder)
    assert failed(scripted())


# --- texts


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def pair(request):
    target = tiny_model("llama").to(request.param)
    return target, near(target, 0.02), OwnForward(target)


def test_right_texts_pass_in_every_dtype(pair):
    verdict = tiny(*pair)
    assert verdict.failures == []


def test_rows_of_a_side_branch_left_in_the_cache_are_found(pair, monkeypatch):
    keep = TreeCache.keep
    monkeypatch.setattr(
        TreeCache, "keep", lambda cache, prefix, path: keep(cache, prefix, list(range(len(path))))
    )
    assert_wrong(tiny(*pair))


def test_a_mask_that_lets_siblings_see_each_other_is_found(pair, monkeypatch):
    right = masks.TreeMask.__init__

    def open_mask(mask, block, *arguments, **options):
        right(mask, torch.ones_like(block).tril(), *arguments, **options)

    monkeypatch.setattr(masks.TreeMask, "__init__", open_mask)
    assert_wrong(tiny(*pair))


def test_positions_counted_by_row_are_found(pair, monkeypatch):
    right = LanguageModel.forward

    def by_row(model, tokens, positions, cache, masks, **options):
        if masks is not None:
            positions = torch.arange(cache.length, cache.length + len(tokens))
        return right(model, tokens, positions, cache, masks, **options)

    monkeypatch.setattr(LanguageModel, "forward", by_row)
    assert_wrong(tiny(*pair))


def assert_wrong(verdict):
    """Logits are wrong, and by more than that it would matter where exactly the line is drawn."""
    rows = [row for text in verdict.check.ours for row in text.rows]
    assert max(row.error / row.rounding for row in rows) > 1.5 * SLACK
    assert any("wrong rows" in line for line in verdict.failures)


def test_an_end_of_text_that_is_run_past_is_found(monkeypatch):
    target = tiny_model("llama")
    reference = OwnForward(target)
    end = tiny(target, target, reference).check.ours[0].token_ids[1]
    assert tiny(target, target, reference, eos_ids=(end,)).failures == []
    monkeypatch.setattr(continuation, "cut", lambda tokens, eos_ids, most: list(tokens)[:most])
    verdict = tiny(target, target, reference, eos_ids=(end,))
    assert any("behind an end of text" in line for line in verdict.failures)


def test_a_target_with_one_weight_changed_is_found(pair):
    target, draft, reference = pair
    other = copy.deepcopy(target)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight[3] *= 4
    assert_wrong(tiny(other, draft, reference))
