"""The two estimators of acceptance rates: what each counts, exactly, and that they agree."""

import math
import random
from dataclasses import replace
from functools import cache

import pytest
import torch

from exhaustive import exhaustive
from models import near, tiny_model
from scripted import LeveledDraft, ScriptedDraft, ScriptedTarget, counting_up, ranking
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.acceptance import on_policy, teacher_forced
from sequoia_cli.measure.acceptance_counts import (
    AcceptanceSettings,
    NodeAcceptance,
    expected_counts,
    overlapping_steps,
)

BOTH = pytest.mark.parametrize("estimate", [on_policy, teacher_forced])


def trials(temperature=0.0, ranks=2, depths=1, new_tokens=32) -> AcceptanceSettings:
    sampling = Sampling(temperature)
    return AcceptanceSettings(sampling, Sampling(temperature or 1.0), ranks, depths, new_tokens)


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_pair(scale=0.02):
    target = tiny_model("llama")
    draft = near(target, scale) if scale else target
    return LanguageModel(target), IndependentDraft(LanguageModel(draft), 64)


def prompts(count):
    rng = random.Random(0)
    return [[rng.randrange(64) for _ in range(rng.randrange(3, 9))] for _ in range(count)]


# --- what is a trial


def scripted(places, estimate, *, eos=(), new_tokens=40, limits=(1000, 1000)):
    """Counts of one text that counts up, with a draft that ranks the right token at `places`."""
    target = ScriptedTarget(counting_up(12), limits[0])
    draft = ScriptedDraft(ranking(12, places, 2), limits[1])
    counts = estimate(target, draft, [0], trials(new_tokens=new_tokens), eos_ids=eos)
    return counts.trials[0], counts.accepted[0]


@BOTH
def test_a_rate_is_the_share_of_all_trials_and_the_bonus_token_is_no_acceptance(estimate):
    # Steps begin at 0 (rank 1, bonus 2), 2 (rank 2, bonus 4), 4 (none), 5 (rank 1, bonus 7 = end of text).
    places = [0, None, 1, None, None, 0]
    assert scripted(places, estimate, eos=(7,)) == (4, (2, 1))


@BOTH
def test_an_end_of_text_inside_a_step_counts_the_accepted_child_and_nothing_after_it(estimate):
    assert scripted([0, 0, 0], estimate, eos=(1,)) == (1, (1, 0))  # the bonus token is dropped
    assert scripted([None, 0, 0], estimate, eos=(1,)) == (1, (0, 0))


@BOTH
@pytest.mark.parametrize(("new_tokens", "expected"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_a_step_that_the_budget_cuts_is_no_trial(estimate, new_tokens, expected):
    assert scripted([0] * 12, estimate, new_tokens=new_tokens) == (expected, (expected, 0))


@BOTH
@pytest.mark.parametrize(("limit", "expected"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_a_step_that_either_context_cuts_is_no_trial(estimate, limit, expected):
    for limits in ((limit, 1000), (1000, limit)):
        # The draft's end is not the text's, but there is nothing to accept after it.
        assert scripted([0] * 12, estimate, limits=limits) == (expected, (expected, 0))


@BOTH
def test_a_prompt_beyond_the_drafts_context_has_no_trials(estimate):
    target = tiny_model("gpt2", n_positions=64)
    draft = IndependentDraft(LanguageModel(tiny_model("gpt2", n_positions=8)), 64)
    assert estimate(LanguageModel(target), draft, [1] * 9, trials()).trials == (0,)


@BOTH
def test_a_prompt_that_cannot_be_decoded_is_refused(estimate):
    target, draft = ScriptedTarget(counting_up(5), 4), ScriptedDraft(counting_up(5))
    with pytest.raises(BadInput, match="no tokens"):
        estimate(target, draft, [], trials())
    with pytest.raises(BadInput, match="5 tokens; the context ends at 4"):
        estimate(target, draft, [0] * 5, trials())


@BOTH
def test_a_text_too_short_for_a_trial_leaves_no_rates(estimate):
    counts = estimate(*tiny_pair(), [1, 2], trials(new_tokens=1))
    with pytest.raises(BadInput, match="no acceptance trials"):
        AcceptanceRates.from_samples([counts], {})


# --- weighing


def test_steps_and_depths_along_a_text_are_weighed_as_by_hand():
    hit, miss = NodeAcceptance((0.5, 0.25), 1.0), NodeAcceptance((0.25, 0.0), 0.0)
    # Steps start at 0, 2, 3 and 5. After the hits at 0 and 3 come trials of the second depth, at 1 and 4;
    # after the hit at 1 one of the third depth, at 2. Nothing comes after 5.
    weights, accepted, _ = expected_counts(
        overlapping_steps([hit, hit, miss, hit, miss, hit], 4), trials(depths=4)
    )
    assert weights == (4, 2, 1, 0)
    assert accepted == ((1.75, 0.75), (0.75, 0.25), (0.25, 0.0), (0, 0))


def test_an_empty_text_and_one_token_are_weighed():
    assert expected_counts([], trials(depths=2)) == ((0, 0), ((0, 0), (0, 0)), {})
    assert expected_counts([(NodeAcceptance((0.5, 0.1), 1.0),)], trials(depths=2)) == (
        (1, 0),
        ((0.5, 0.1), (0, 0)),
        {},
    )


def test_hits_that_are_likely_or_not_are_weighed_as_by_hand():
    tries = [NodeAcceptance((0.5, 0.25), hit) for hit in (0.5, 0.75, 0.25)]
    # Steps begin at 0, at 1 with the chance of a miss, 0.5, and at 2 with 0.5 (hit at 0) + 0.5 * 0.25.
    weights, accepted, _ = expected_counts(overlapping_steps(tries, 3), trials(depths=3))
    assert weights == (1 + 0.5 + 0.625, 0.5 + 0.5 * 0.75, 0.5 * 0.75)
    assert accepted == tuple((weight * 0.5, weight * 0.25) for weight in weights)


def test_each_level_of_a_step_is_weighed_by_the_hits_of_the_step_itself():
    first = (
        NodeAcceptance((0.5, 0.0), 0.5),
        NodeAcceptance((0.1, 0.2), 1.0),
        NodeAcceptance((0.3, 0.3), 0.0),
    )
    second = (NodeAcceptance((1.0, 0.0), 1.0), NodeAcceptance((0.0, 0.1), 0.0))
    third = (NodeAcceptance((0.0, 1.0), 0.0),)
    # The second begins half of the time, the third the other half.
    weights, accepted, _ = expected_counts([first, second, third], trials(depths=3))
    assert weights == (2, 1, 0.5)
    assert [list(row) for row in accepted] == [[1, 0.5], [0.05, pytest.approx(0.15)], [0.15, 0.15]]


def test_depths_beyond_the_first_count_runs_of_hits():
    target = ScriptedTarget(counting_up(12))
    draft = ScriptedDraft(ranking(12, [0, 1, None, 0, 0, 0], 2))
    counts = teacher_forced(target, draft, [0], trials(depths=3), eos_ids=(6,))
    # Steps at 0 (hit, hit, miss), 2 (miss), 3 (hit, hit, hit) and 5 (hit, then the text ends).
    assert counts.trials == (4, 2, 2)
    assert counts.accepted == ((3, 0), (1, 1), (1, 0))


def test_a_draft_that_reads_hidden_states_is_counted_by_what_it_proposes_at_each_level():
    tables = [ranking(8, places, 2) for places in ([0, 0, None, 1], [None, 0, 0, None, 1, None], [0] * 8)]
    # Steps at 0 (hit, hit, hit), 2 (miss), 3 (hit of rank 2, hit of rank 2), and 5, where the text ends.
    target, options = ScriptedTarget(counting_up(8)), trials(depths=3)
    counts = teacher_forced(target, LeveledDraft(tables), [0], options, eos_ids=(6,))
    assert counts.trials == (4, 2, 2)
    assert counts.accepted == ((1, 1), (1, 1), (2, 0))
    # The control reads every depth from the first level, where only the places 0, 1 and 3 are hits.
    counts = teacher_forced(target, LeveledDraft(tables, taps=()), [0], options, eos_ids=(6,))
    assert counts.trials == (4, 2, 1)
    assert counts.accepted == ((1, 1), (1, 0), (0, 0))


# --- one against the other


def test_for_a_greedy_target_both_count_the_very_same_trials():
    target, draft = tiny_pair()
    seen = 0
    for prompt in prompts(12):
        for new_tokens in (2, 3, 17, 18):
            counts = [
                estimate(target, draft, prompt, trials(ranks=4, new_tokens=new_tokens), eos_ids=(7, 11))
                for estimate in (on_policy, teacher_forced)
            ]
            assert counts[0] == replace(counts[1], cells={})
            seen += sum(counts[0].accepted[0][1:])
    assert seen > 0  # later ranks too


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_a_draft_equal_to_the_target_is_accepted_at_every_trial_of_every_depth(temperature):
    target, draft = tiny_pair(0)
    for index, prompt in enumerate(prompts(4)):
        options = trials(temperature, depths=3, new_tokens=25)
        counts = teacher_forced(target, draft, prompt, options, index=index, generator=seeded())
        assert counts.trials == pytest.approx((12, 12, 11), rel=1e-4) and counts.prompt == index
        assert counts.accepted[0][0] == pytest.approx(12, rel=1e-4)
        assert [sum(row) for row in counts.accepted] == pytest.approx(counts.trials, rel=1e-4)
        counts = on_policy(target, draft, prompt, options, index=index, generator=seeded())
        assert (counts.prompt, counts.trials, counts.accepted) == (index, (12,), ((12, 0),))


class RunAtEveryLevel(IndependentDraft):
    """Asked for every level, as if what it proposes at a place depended on where the step began."""

    taps = (-1,)


@pytest.mark.parametrize(("new_tokens", "eos"), [(3, ()), (24, ()), (24, (7, 11))])
def test_levels_along_the_text_and_the_places_further_on_are_the_same_to_an_independent_draft(
    new_tokens, eos
):
    target, draft = tiny_pair()
    options = trials(ranks=4, depths=4, new_tokens=new_tokens)
    seen = 0
    for prompt in prompts(6):
        by_place, by_level = (
            teacher_forced(target, each, prompt, options, eos_ids=eos)
            for each in (draft, RunAtEveryLevel(draft.model, 64))
        )
        assert by_level == by_place
        seen += by_level.trials[min(2, new_tokens - 2)]
    assert seen > 0


def errors_apart(first, second) -> list[float]:
    """The difference of two runs' rates in standard errors, by rank."""
    errors = map(math.hypot, first.standard_errors(), second.standard_errors())
    return [abs(a - b) / error for a, b, error in zip(first.p[0], second.p[0], errors, strict=True)]


@cache
def measured(estimate, first_seed) -> AcceptanceRates:
    pair, options = tiny_pair(0.05), trials(0.8, ranks=3, new_tokens=20)
    counts = [
        estimate(*pair, prompt, options, generator=seeded(first_seed + number))
        for number, prompt in enumerate(prompts(60))
    ]
    return AcceptanceRates.from_samples(counts, {})


@exhaustive
def test_for_a_sampled_target_both_agree_within_their_errors():
    """Fixed seeds; 3 ranks at 4 standard errors: a right program fails for one choice of seeds in 5,000."""
    coin, exact = measured(on_policy, 1000), measured(teacher_forced, 2000)
    assert max(errors_apart(coin, exact)) < 4
    assert exact.standard_errors()[0] < coin.standard_errors()[0] < 0.03
    assert 0.2 < coin.p[0][0] < 0.8 and coin.p[0][1] > 0.03


def test_the_comparison_sees_rates_conditional_on_the_ranks_before():
    coin, exact = measured(on_policy, 1000), measured(teacher_forced, 2000)
    first, second, third = exact.p[0]
    conditional = (first, second / (1 - first), third / (1 - first - second))
    assert max(errors_apart(coin, replace(exact, p=(conditional,)))) > 4
