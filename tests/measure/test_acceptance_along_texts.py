"""Acceptance rates by depth, compared with enumeration of whole texts and with decoding with a deep tree."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from exhaustive import exhaustive
from marginals import deviation, exact_chances, marginal_rates
from reference import normalised, ordered_draws
from scripted import LeveledDraft, ScriptedDraft, ScriptedTarget
from sequoia_cli.core.counts import PromptCounts, pooled_rate
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.acceptance import on_policy, teacher_forced
from sequoia_cli.measure.acceptance_counts import AcceptanceSettings, expected_counts
from sequoia_cli.measure.target_text import acceptance_along


def trials(ranks, depths, new_tokens) -> AcceptanceSettings:
    return AcceptanceSettings(Sampling(1.0), Sampling(1.0), ranks, depths, new_tokens)


#: After 0 the draft is nearly right, after 1 nearly wrong, and 1 follows a rejection.
TEXTS = 300
TABLE = [[0.6, 0.35, 0.05], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]]
PROPOSED = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]]

#: At the root as above, and worse the further down.
BY_LEVEL = [
    PROPOSED,
    [[0.2, 0.7, 0.1], [0.02, 0.96, 0.02], [0.1, 0.8, 0.1]],
    [[0.05, 0.15, 0.8], [0.01, 0.98, 0.01], [0.9, 0.05, 0.05]],
]


@cache
def exact_rates(tokens, depths, *, by_level=False):
    """The exact rate of the single child by depth, enumerated over all texts, starts of steps and hits."""
    size = len(TABLE)
    trial, accepted = [0.0] * depths, [0.0] * depths
    mass = [[[0.0] * size for _ in range(depths + 1)] for _ in range(tokens + 2)]  # place, depth, token
    mass[0][0][0] = 1.0
    for place in range(tokens - 1):
        for depth in range(depths):
            proposed = BY_LEVEL[depth] if by_level else PROPOSED
            for token, weight in enumerate(mass[place][depth]):
                for children, drawn in ordered_draws(proposed[token], 1):
                    chances, left, residual = exact_chances(TABLE[token], proposed[token], children)
                    reached = weight * drawn
                    trial[depth] += reached
                    accepted[depth] += reached * chances[0]
                    mass[place + 1][depth + 1][children[0]] += reached * chances[0]
                    for next_token in range(size):
                        bonus = reached * chances[0] * TABLE[children[0]][next_token]
                        if depth == 0:
                            mass[place + 2][0][next_token] += bonus
                            mass[place + 1][0][next_token] += reached * left * residual[next_token]
    return [a / t for a, t in zip(accepted, trial, strict=True)]


def far_from(exact, counts) -> list[float]:
    """How far the rates of texts are from the exact ones by depth, in standard errors."""
    found = []
    for depth in range(len(counts[0].trials)):
        rows = [replace(c, trials=c.trials[depth:], accepted=c.accepted[depth:]) for c in counts]
        rate, error = pooled_rate(rows, 0)
        found.append(abs(rate - exact[depth]) / error)
    return found


def texts(draft, depths, estimate):
    """Counts of all texts."""
    target, options = ScriptedTarget(TABLE, 400), trials(1, depths, 24)
    generators = [torch.Generator().manual_seed(number) for number in range(TEXTS)]
    return [estimate(target, draft, [0], options, generator=generator) for generator in generators]


def changed(change):
    """The teacher-forced estimator with its tries changed: a control."""

    def estimate(target, draft, prompt, options, *, generator):
        steps = acceptance_along(target, draft, prompt, options, generator=generator)
        return PromptCounts(0, *expected_counts([tuple(map(change, step)) for step in steps], options)[:2])

    return estimate


@pytest.mark.parametrize("estimate", [on_policy, teacher_forced])
def test_rates_are_right_where_the_token_that_is_hit_has_a_say_in_the_next_hit(estimate):
    """Fixed seeds; 3 rates in all at 4 standard errors: a right program fails for one choice in 5,000."""
    assert max(far_from(exact_rates(24, 2), texts(ScriptedDraft(PROPOSED), 2, estimate))) < 4


def test_the_exact_rates_see_hits_that_do_not_go_with_their_tokens():
    estimate = changed(lambda tried: replace(tried, hit_prob=sum(tried.accept_probs)))
    assert min(far_from(exact_rates(24, 2), texts(ScriptedDraft(PROPOSED), 2, estimate))) > 4


def test_the_exact_rates_see_places_that_all_count_alike():
    estimate = changed(lambda tried: replace(tried, hit_prob=0.0))
    assert far_from(exact_rates(24, 2), texts(ScriptedDraft(PROPOSED), 2, estimate))[0] > 4


# --- a draft that reads hidden states proposes at a place according to where the step began


@exhaustive
def test_each_depth_is_measured_with_what_is_proposed_at_that_depth():
    """Fixed seeds; 3 rates at 4 standard errors: a right program fails for one choice in 5,000."""
    exact = exact_rates(24, 3, by_level=True)
    assert max(far_from(exact, texts(LeveledDraft(BY_LEVEL), 3, teacher_forced))) < 4
    # Its root alone can be tried on policy, and is the same there.
    assert max(far_from(exact, texts(LeveledDraft(BY_LEVEL), 3, on_policy))) < 4


def test_the_exact_rates_see_depths_that_are_read_from_the_root():
    exact = exact_rates(24, 3, by_level=True)
    root, *deeper = far_from(exact, texts(LeveledDraft(BY_LEVEL, taps=()), 3, teacher_forced))
    assert root < 4
    assert min(deeper) > 10


#: The same distribution after every token, so that starts of steps do not matter; drafts get worse by depth.
EVEN = normalised([6, 4, 2, 1])
FALLING = [normalised(row) for row in ([5, 5, 2, 1], [2, 4, 5, 1], [1, 2, 3, 9])]
FULL = TokenTree((-1, 0, 0, 1, 1, 2, 2, *(node for node in range(3, 7) for _ in range(2))))


def decoded_deviations(rates) -> list[float]:
    """How far what a full tree of two ranks has accepted is from these rates by depth, in standard errors."""
    target, draft = ScriptedTarget([EVEN] * 4, 6000), LeveledDraft([[row] * 4 for row in FALLING])
    decoder = Decoder(target, [draft], FULL, Sampling(1.0), Sampling(1.0))
    steps = list(decoder.decode([0], 4000, generator=torch.Generator().manual_seed(0)))
    found = []
    for depth, row in enumerate(rates):
        reached = [step.ranks for step in steps if step.depth == FULL.depth and len(step.ranks) >= depth]
        taken = [[float(ranks[depth : depth + 1] == (rank,)) for rank in range(2)] for ranks in reached]
        found.append(deviation(taken, row))
    return found


def test_rates_by_depth_are_what_decoding_with_a_deep_tree_accepts():
    """Fixed seeds; 12 rates at 4 standard errors: a right program fails for one choice in 1,300."""
    exact = [marginal_rates(EVEN, row, 2) for row in FALLING]
    assert max(decoded_deviations(exact)) < 4
    target, draft = ScriptedTarget([EVEN] * 4), LeveledDraft([[row] * 4 for row in FALLING])
    counts = [
        teacher_forced(target, draft, [0], trials(2, 3, 24), generator=torch.Generator().manual_seed(seed))
        for seed in range(100)
    ]
    for depth, row in enumerate(exact):
        for rank, rate in enumerate(row):
            rows = [replace(c, trials=c.trials[depth:], accepted=c.accepted[depth:]) for c in counts]
            measured, error = pooled_rate(rows, rank)
            assert abs(measured - rate) < 4 * error + 1e-9
    assert len(AcceptanceRates.from_samples(counts, {}).p) == 3
    # The control: the rates of the root at every depth.
    assert min(decoded_deviations([exact[0]] * 3)[1:]) > 4
