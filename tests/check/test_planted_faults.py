"""Faults that were shipped in the field, planted in the engine: `check` finds each, and nothing without them.

A right program fails the statistical part of a check once in ten thousand seeds; these are fixed.
"""

import copy

import pytest
import torch

from checking import WIDE, scripted, tiny
from faults import FAULTS
from models import near, tiny_model
from sequoia_cli.check import tally
from sequoia_cli.check.reference import OwnForward
from sequoia_cli.check.texts import SLACK
from sequoia_cli.check.watched import Watched
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.verifiers import VERIFIERS


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


@pytest.mark.parametrize(
    ("fault", "tree", "found"),
    [
        ("noise reused across steps", WIDE, {tally.SUCCESSIVE}),
        ("residual not updated", WIDE, {tally.FIRST, tally.FAVOURED}),
        ("every proposal accepted", WIDE, {tally.FIRST, tally.FAVOURED}),
        ("last token from the draft's law", chain(2), set()),
        ("draft's top-p not in q", chain(2), set()),
        ("top children as if drawn", WIDE, set()),
        ("another temperature", WIDE, set()),
    ],
)
def test_a_fault_in_the_law_is_found(fault, tree, found, monkeypatch):
    FAULTS[fault](monkeypatch)
    by = failed(scripted(tree=tree))
    assert by
    assert by >= found


#: A confident draft: the logits 14, 2, 1, 0.5, 0, -1, -2, -3 at temperature 0.6.
CONFIDENT = [(torch.tensor([14, 2, 1, 0.5, 0, -1, -2, -3]).double() / 0.6).softmax(0).tolist()] * 8
ELSEWHERE = [[0.1, 1e-9, 1e-9, 0.3, 0.3, 0.3 - 4e-9, 1e-9, 1e-9]] * 8


def test_keys_in_half_precision_which_underflow_for_improbable_children_are_found(monkeypatch):
    star = TokenTree((-1, 0, 0, 0, 0))
    assert scripted(ELSEWHERE, CONFIDENT, tree=star).failures == []
    FAULTS["sampling keys in float16"](monkeypatch)
    assert tally.FIRST in failed(scripted(ELSEWHERE, CONFIDENT, tree=star))


# --- texts


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def pair(request):
    target = tiny_model("llama").to(request.param)
    return target, near(target, 0.02), OwnForward(target)


def test_right_texts_pass_in_every_dtype(pair):
    verdict = tiny(*pair)
    assert verdict.failures == []


@pytest.mark.parametrize(
    "fault", ["rows of a side branch kept", "siblings see each other", "positions counted by row"]
)
def test_a_fault_in_the_forward_is_found(fault, pair, monkeypatch):
    FAULTS[fault](monkeypatch)
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
    FAULTS["end of text run past"](monkeypatch)
    verdict = tiny(target, target, reference, eos_ids=(end,))
    assert any("behind an end of text" in line for line in verdict.failures)


def test_a_target_with_one_weight_changed_is_found(pair):
    target, draft, reference = pair
    other = copy.deepcopy(target)
    with torch.no_grad():
        other.model.layers[0].mlp.down_proj.weight[3] *= 4
    assert_wrong(tiny(other, draft, reference))


def test_no_two_texts_have_the_same_numbers(monkeypatch):
    """Behind no two prompts, either: what is tested of all of them together takes them to be independent."""
    seeds, right = [], Watched.steps

    def steps(watched, ids, budget, eos_ids, seed):
        seeds.append(seed)
        return right(watched, ids, budget, eos_ids, seed)

    verdict = scripted(prompts=([5, 3], [2, 4], [1]), sample=False)
    monkeypatch.setattr(Watched, "steps", steps)
    list(verdict.check.sample())
    assert len(seeds) == len(set(seeds)) == 3 * verdict.check.samples
