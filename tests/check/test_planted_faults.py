"""Faults that were shipped in the field, planted in the engine: `check` finds each, and nothing without them.

A right program fails the statistical part of a check in at most one of ten thousand seeds; these are fixed.
"""

import copy

import pytest
import torch

from checking import WIDE, scripted, tiny
from exhaustive import exhaustive, few
from faults import FAULTS
from models import near, tiny_model
from sequoia_cli.check import tally
from sequoia_cli.check.observed import ObservedDecoder
from sequoia_cli.check.reference import TransformersReference
from sequoia_cli.check.run import NamedPrompt, long_prompt
from sequoia_cli.check.texts import SLACK
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine import model
from sequoia_cli.engine.verification.verifiers import VERIFIERS


def failed(findings):
    """The names of the tests that the tool failed."""
    return {one.test.name for one in findings.tests if not one.passed}


# --- nothing is found where nothing is wrong


@pytest.mark.parametrize(
    "tree", few([WIDE, chain(3), TokenTree((-1, 0, 0, 0, 0))], WIDE), ids=["tree", "chain", "star"]
)
def test_a_right_program_passes_and_both_controls_are_caught(tree):
    findings = scripted(tree=tree, samples=400)
    assert findings.failures == []
    assert [control.caught for control in findings.controls] == [True, True]


def test_a_right_program_passes_with_a_cut_distribution_and_another_draft_temperature():
    # A nucleus that ends between two tokens of the same logit: either may be in it.
    findings = scripted(sampling=Sampling(0.7, 4, 0.9), draft_sampling=Sampling(2.0))
    assert findings.failures == []
    assert findings.tests and findings.detectable < 0.25


@pytest.mark.parametrize("name", few(VERIFIERS, "specinfer"))
def test_every_verifier_passes(name):
    assert scripted(verifier=VERIFIERS[name]).failures == []


# --- distributions


@pytest.mark.parametrize(
    ("fault", "tree", "found"),
    [
        ("noise reused across steps", WIDE, {tally.SUCCESSIVE}),
        ("residual not updated", WIDE, {tally.FAVOURED}),
        pytest.param("every proposal accepted", WIDE, {tally.FIRST, tally.FAVOURED}, marks=exhaustive),
        pytest.param("last token from the draft's distribution", chain(2), set(), marks=exhaustive),
        pytest.param("draft's top-p not in q", chain(2), set(), marks=exhaustive),
        pytest.param("top children as if drawn", WIDE, set(), marks=exhaustive),
        ("another temperature", WIDE, set()),
        ("same noise for every text", WIDE, {tally.FIRST, tally.TEXTS}),
    ],
)
def test_a_fault_in_the_distribution_is_found(fault, tree, found, monkeypatch):
    FAULTS[fault](monkeypatch)
    by = failed(scripted(tree=tree))
    assert by
    assert by >= found


@pytest.mark.parametrize("fault", few(["another top-k", "another top-p", "top-p left out"], "another top-p"))
def test_a_fault_in_the_cut_is_found(fault, monkeypatch):
    # Without the fault nothing is found (see above).
    FAULTS[fault](monkeypatch)
    findings = scripted(sampling=Sampling(0.7, 4, 0.9), draft_sampling=Sampling(2.0))
    assert findings.failures


@exhaustive
def test_noise_that_prompts_share_is_found_and_by_the_pairs_of_texts_alone(monkeypatch):
    prompts = ([5, 3], [2, 4])
    assert scripted(prompts=prompts).failures == []
    FAULTS["same noise for every prompt"](monkeypatch)
    assert failed(scripted(prompts=prompts)) == {tally.PROMPTS}


def test_the_favourites_of_every_draft_are_tested():
    findings = scripted(drafts=2)
    assert findings.failures == []
    second = next(one.test for one in findings.tests if one.test.name == tally.favourites(1))
    assert second.count >= 2 * findings.check.samples * 0.9


#: A confident draft: the logits 14, 2, 1, 0.5, 0, -1, -2, -3 at temperature 0.6.
CONFIDENT = [(torch.tensor([14, 2, 1, 0.5, 0, -1, -2, -3]).double() / 0.6).softmax(0).tolist()] * 8
ELSEWHERE = [[0.1, 1e-9, 1e-9, 0.3, 0.3, 0.3 - 4e-9, 1e-9, 1e-9]] * 8


@exhaustive
def test_keys_in_half_precision_which_underflow_for_improbable_children_are_found(monkeypatch):
    star = TokenTree((-1, 0, 0, 0, 0))
    assert scripted(ELSEWHERE, CONFIDENT, tree=star).failures == []
    FAULTS["sampling keys in float16"](monkeypatch)
    assert tally.FIRST in failed(scripted(ELSEWHERE, CONFIDENT, tree=star))


# --- texts


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def pair(request):
    target = tiny_model("llama").to(request.param)
    return target, near(target, 0.02), TransformersReference(target)


def test_right_texts_pass_in_every_dtype(pair):
    findings = tiny(*pair)
    assert findings.failures == []


@pytest.mark.parametrize(
    "fault", ["rows of a side branch kept", "siblings see each other", "positions counted by row"]
)
def test_a_fault_in_the_forward_is_found(fault, pair, monkeypatch):
    FAULTS[fault](monkeypatch)
    assert_wrong(tiny(*pair))


def assert_wrong(findings):
    """Logits are wrong, and by more than that it would matter where exactly the line is drawn."""
    rows = [row for text in findings.check.ours for row in text.rows]
    assert max(row.error / row.rounding for row in rows) > 1.5 * SLACK
    assert any("wrong rows" in line for line in findings.failures)


@pytest.mark.parametrize("fault", ["second piece from position 0", "row between pieces dropped"])
def test_a_fault_in_the_second_prefill_piece_is_found_with_a_prompt_that_has_one(fault, pair, monkeypatch):
    monkeypatch.setattr(model, "PREFILL_TOKENS", 16)
    longer = NamedPrompt("1", [5, 17, 3, 42, 9])
    prompts = (longer.ids, long_prompt([longer], 100).ids)
    assert tiny(*pair, prompts=prompts).failures == []
    FAULTS[fault](monkeypatch)
    short, long = tiny(*pair, prompts=prompts).check.ours
    assert long.wrong_rows and not short.wrong_rows


def test_a_prompt_of_several_pieces_is_made_only_where_none_is_there():
    short, many = NamedPrompt("a", [1, 2, 3]), NamedPrompt("b", range(600))
    made = long_prompt([short], 1000)
    assert (made.name, len(made.ids), made.ids[:4]) == ("a, repeated", 576, [1, 2, 3, 1])
    assert long_prompt([short, many], 1000) is None
    with pytest.raises(ValueError, match="576 tokens; there is room for 500"):
        long_prompt([short], 500)


def test_an_end_of_text_that_is_run_past_is_found(monkeypatch):
    target = tiny_model("llama")
    reference = TransformersReference(target)
    end = tiny(target, target, reference).check.ours[0].token_ids[1]
    assert tiny(target, target, reference, eos_ids=(end,)).failures == []
    FAULTS["end of text run past"](monkeypatch)
    findings = tiny(target, target, reference, eos_ids=(end,))
    assert any("after an end of text" in line for line in findings.failures)


def test_a_target_with_one_weight_changed_is_found(pair):
    target, draft, reference = pair
    other = copy.deepcopy(target)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight[3] *= 4
    assert_wrong(tiny(other, draft, reference))


@exhaustive
def test_no_two_texts_have_the_same_numbers(monkeypatch):
    """Of no two prompts, either: the tests take all texts to be independent."""
    seeds, right = [], ObservedDecoder.steps

    def steps(watched, ids, budget, eos_ids, seed):
        seeds.append(seed)
        return right(watched, ids, budget, eos_ids, seed)

    findings = scripted(prompts=([5, 3], [2, 4], [1]), sample=False)
    monkeypatch.setattr(ObservedDecoder, "steps", steps)
    list(findings.check.sample())
    assert len(seeds) == len(set(seeds)) == 3 * findings.check.samples
