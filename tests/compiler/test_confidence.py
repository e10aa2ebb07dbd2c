"""How far a prediction can be trusted: intervals that cover, optimism that is there, leads that are noise."""

from dataclasses import replace

import numpy as np
import pytest

from hand_written import linear, profile
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.confidence import Rechoose, assess
from sequoia_cli.compiler.estimate import Estimate
from sequoia_cli.compiler.fixed import weigh
from sequoia_cli.compiler.result import Confidence, Lead
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.core.tree import TokenTree, chain

TRUTH = (0.5, 0.15, 0.08, 0.05, 0.03, 0.02, 0.02, 0.01)
TIMED = profile(target_slope=0.01, draft=0.02)
LIMITS = Limits(24)


def counted(random, prompts, trials, spread=0.3):
    """Counts of prompts whose acceptance differs, at one depth."""
    samples = []
    for number in range(prompts):
        first = np.clip(TRUTH[0] * np.exp(random.normal(0, spread) - spread**2 / 2), 0, 0.6)
        own = np.array([first, *TRUTH[1:]])
        hits = random.multinomial(trials, [*own, 1 - own.sum()])[:-1]
        samples.append(PromptCounts(number, (trials,), (tuple(map(float, hits)),)))
    return AcceptanceRates.from_samples(samples, {})


def compiled(rates, limits=LIMITS, timed=TIMED):
    estimate = Estimate.of(rates)
    choice = choose(timed, estimate.rows, limits)
    return choice, assess(choice, estimate, Rechoose(timed, limits))


def test_the_interval_of_95_percent_covers_the_tokens_of_the_chosen_tree():
    """40 measurements of 12 prompts, fixed seed: at 95%, fewer than 33 covered has a chance of 0.1%.

    The control takes the trials for independent and covers less often.
    """
    random = np.random.default_rng(0)
    whole = counted(np.random.default_rng(1), 4000, 60).p
    covered = control = 0
    for _ in range(40):
        rates = counted(random, 12, 60, spread=0.4)
        choice, confidence = compiled(rates)
        true = expected_tokens(choice.chosen.tree, whole)
        covered += confidence.tokens_per_step[0] <= true <= confidence.tokens_per_step[1]
        together = PromptCounts(0, rates.trials, rates.accepted)
        estimate = Estimate.of(AcceptanceRates.from_samples([together], {}))
        narrow = assess(choice, estimate)
        control += narrow.tokens_per_step[0] <= true <= narrow.tokens_per_step[1]
    assert covered >= 33
    assert control < covered


def test_a_tree_chosen_by_thin_counts_is_optimistic_and_one_by_many_is_not():
    random = np.random.default_rng(2)
    thin, thick = (compiled(counted(random, 10, trials))[1].optimism for trials in (8, 4000))
    assert thin > 0.005
    assert thick < 0.5 * thin


def test_the_interval_of_speedup_is_that_of_tokens_at_the_same_cost():
    choice, confidence = compiled(counted(np.random.default_rng(3), 10, 100))
    ratio = choice.speedup(choice.chosen) / choice.chosen.tokens_per_step
    assert confidence.speedup == pytest.approx(tuple(ratio * end for end in confidence.tokens_per_step))
    planned = choice.plan({}, {}, confidence).predicted
    assert planned.speedup_interval == pytest.approx(confidence.speedup, rel=0.01)
    low, high = confidence.tokens_per_step
    assert 1 <= low < choice.chosen.tokens_per_step < high <= choice.chosen.tree.depth


def test_no_interval_leaves_what_a_step_can_bring():
    one, other = (PromptCounts(n, (400,), ((hits, 10.0),)) for n, hits in enumerate((30.0, 380.0)))
    choice, confidence = compiled(AcceptanceRates.from_samples([one, other], {}))
    assert confidence.tokens_per_step == (1.0, choice.chosen.tree.depth)


def test_leads_over_simple_shapes_are_told_with_their_noise():
    choice, many = compiled(counted(np.random.default_rng(4), 200, 100))
    leads = {lead.shape.split()[-1]: lead for lead in many.leads}
    assert set(leads) == {"chain", "chains"}
    for lead in many.leads:
        (other,) = (each for each in choice.runners_up if each.shape == lead.shape)
        assert lead.share == pytest.approx(other.seconds_per_token / choice.chosen.seconds_per_token - 1)
        low, high = lead.interval
        assert low < lead.share < high
        # In logarithms it lies evenly about the lead, which is lower by the optimism.
        middle = (1 + lead.share) / (1 + many.optimism)
        assert (1 + low) * (1 + high) == pytest.approx(middle**2)
    assert not leads["chain"].within_noise


def test_a_lead_over_several_chains_that_is_within_the_noise_is_told_as_that():
    """A target that is flat up to six nodes: the best tree and three chains differ in one grandchild."""
    timed = HardwareProfile(((1, 1.0), (6, 1.02), (7, 1.2), (32, 3.0)), ((1, 0.085), (31, 0.085)))
    random = np.random.default_rng(5)
    pairs = zip(counted(random, 16, 60).samples, counted(random, 16, 30).samples, strict=True)
    samples = [
        PromptCounts(one.prompt, one.trials + two.trials, one.accepted + two.accepted) for one, two in pairs
    ]
    choice, confidence = compiled(AcceptanceRates.from_samples(samples, {}), Limits(32), timed)
    leads = {lead.shape.split()[-1]: lead for lead in confidence.leads}
    assert choice.chosen.tree.size == 6
    assert leads["chains"].within_noise
    assert 0 < leads["chains"].share < 0.02
    assert not leads["chain"].within_noise
    # Both trees are looked at by the same draws, which leaves the noise of what they differ in.
    (low, high), (least, most) = leads["chains"].interval, confidence.tokens_per_step
    assert high - low < 0.5 * (most - least) / choice.chosen.tokens_per_step


def test_leads_are_told_without_intervals_where_there_are_no_counts():
    choice, confidence = compiled(AcceptanceRates((TRUTH,)))
    assert confidence.tokens_per_step is confidence.speedup is confidence.optimism is None
    slower = {each.shape: each.seconds_per_token for each in choice.runners_up}
    assert len(confidence.leads) == 2
    for lead in confidence.leads:
        assert lead.share == pytest.approx(slower[lead.shape] / choice.chosen.seconds_per_token - 1)
    assert not any(lead.interval or lead.within_noise for lead in confidence.leads)


def test_no_speculation_has_nothing_to_be_uncertain_of():
    timed = profile(target_slope=0.9, draft=0.3)
    choice, confidence = compiled(counted(np.random.default_rng(6), 10, 100), timed=timed)
    assert choice.chosen.tree.size == 1
    assert confidence.speedup is None


def test_a_fixed_shape_has_an_interval_and_no_optimism():
    estimate = Estimate.of(counted(np.random.default_rng(7), 10, 20))
    choice = weigh(TIMED, estimate.rows, chain(4), "chain:3")
    confidence = assess(choice, estimate)
    assert confidence.optimism == 0
    assert confidence.tokens_per_step[0] < choice.chosen.tokens_per_step < confidence.tokens_per_step[1]


@pytest.mark.parametrize(
    ("prompts", "deviations"),
    [
        (0, 1.959964),
        (3, 4.302653 * np.sqrt(4 / 2)),
        (12, 2.200985 * np.sqrt(13 / 11)),
    ],
    ids=str,
)
def test_an_interval_is_students_for_prompts_and_normal_for_trials(prompts, deviations):
    """Tables of the quantiles at 97.5%; draws by weights spread less than means over prompts do."""
    logs = np.log(1.5) + np.array([-0.01, 0.01])
    estimate = Estimate(((0.5,),), (np.exp(logs) - 1).reshape(2, 1, 1), prompts)
    low, high = assess(weigh(TIMED, estimate.rows, chain(2), "chain:1"), estimate).tokens_per_step
    spread = deviations * 0.01 * np.sqrt(2)
    assert (low, high) == pytest.approx((1.5 * np.exp(-spread), 1.5 * np.exp(spread)))


def test_a_rank_that_was_not_measured_brings_nothing():
    estimate = Estimate.of(counted(np.random.default_rng(7), 10, 20))
    ranks = len(TRUTH)
    all_ranks, more = (
        assess(weigh(TIMED, estimate.rows, TokenTree((-1, *[0] * children)), "k-ary"), estimate)
        for children in (ranks, ranks + 2)
    )
    assert more.tokens_per_step == pytest.approx(all_ranks.tokens_per_step)


def test_a_forced_size_is_compared_with_trees_of_its_size_alone():
    estimate = Estimate.of(counted(np.random.default_rng(8), 10, 20))
    timed = profile(0.01, 0.02, verify_seconds=linear(0, 0.002, (1, 64)))
    choice = choose(timed, estimate.rows, Limits(20), size=20)
    confidence = assess(choice, estimate, Rechoose(timed, Limits(20), 20))
    assert 0 <= confidence.optimism < 0.2
    equal = tuple(each for each in choice.runners_up if each.tree.size == 20)
    assert len(equal) < len(choice.runners_up)
    without = assess(replace(choice, runners_up=equal), estimate, Rechoose(timed, Limits(20), 20))
    assert confidence.optimism == without.optimism


def test_a_tree_that_is_the_only_one_the_profile_covers_is_not_optimistic():
    """The best trees of 20 nodes expand more than two nodes of a level, where the draft's times end."""
    timed = HardwareProfile(((1, 1.0), (20, 1.1)), ((1, 0.02), (2, 0.02)))
    estimate = Estimate.of(counted(np.random.default_rng(9), 10, 20))
    choice = choose(timed, estimate.rows, Limits(20), size=20)
    assert assess(replace(choice, runners_up=()), estimate, Rechoose(timed, Limits(20), 20)).optimism == 0


def test_optimism_is_by_how_much_what_each_draw_chooses_looks_better_than_it_is():
    """Three nodes: 1 + a + b tokens in 1.2 seconds side by side, 1 + a + a * a in 1.4 as a chain.

    The rates (0.5, 0.3) and the first draw choose the pair, the second the chain, though it is the worse one.
    """
    draws = np.array([[[0.5, 0.1]], [[0.6, 0.05]]])
    timed, rows = profile(draft=0.2), ((0.5, 0.3),)
    choice = choose(timed, rows, Limits(3), size=3)
    assert choice.chosen.tree.depth == 2
    by_draw, by_rates = 1.96 / 1.65, 1.75 / 1.8  # the chain's tokens by those of the pair
    confidence = assess(choice, Estimate(rows, draws), Rechoose(timed, Limits(3), 3))
    assert confidence.optimism == pytest.approx(np.sqrt(by_draw / by_rates) - 1)
    # And the other way round: the rates choose the chain, the only draw the pair.
    draws_of_pair = np.array([[[0.5, 0.1]]] * 2)
    choice_of_chain = choose(timed, ((0.7, 0.05),), Limits(3), size=3)
    other = assess(choice_of_chain, Estimate(((0.7, 0.05),), draws_of_pair), Rechoose(timed, Limits(3), 3))
    assert other.optimism == pytest.approx((1.6 / 1.75) / (1.75 / 2.19) - 1)
    # The interval lies about what is left without it.
    low, high = confidence.tokens_per_step
    assert low * high == pytest.approx((1.8 / (1 + confidence.optimism)) ** 2)


def test_figures_have_three_digits_and_none_without_counts():
    assert Confidence((1.23456, 2.34567), (0.98765, 1.99999), 0.0123).figures() == {
        "tokens_per_step_interval": (1.23, 2.35),
        "speedup_interval": (0.988, 2.0),
        "optimism": 0.012,
    }
    assert set(Confidence().figures().values()) == {None}


def test_a_lead_that_may_be_none_is_within_the_noise():
    assert Lead("chain", 0.1, (0.0, 0.2)).within_noise
    assert not Lead("chain", 0.1, (0.01, 0.2)).within_noise
