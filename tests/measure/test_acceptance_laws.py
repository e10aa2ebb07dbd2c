"""Acceptance rates against exact laws: by enumeration of the children, and of whole texts."""

import random
from dataclasses import replace

import pytest
import torch

from reference import normalised, ordered_draws, residual_of, without
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.rates import PromptCounts, pooled_rate
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.acceptance import Place, Trials, on_policy, places_along, weigh


def trials(ranks, depths, new_tokens) -> Trials:
    return Trials(Sampling(1.0), Sampling(1.0), ranks, depths, new_tokens)


def exact_chances(target, draft, children, *, update=True):
    """The chance of each child, and what is left of the target and its chance, by the slow twin."""
    residual, current, left, chances = target, draft, 1.0, []
    for index, token in enumerate(children):
        accept = min(1.0, residual[token] / current[token]) if left > 0 else 0.0
        chances.append(left * accept)
        left *= 1 - accept
        if left > 1e-12:
            residual = residual_of(residual, current) if update else residual
            current = without(draft, children[: index + 1])
    return chances, left, residual


def marginal_rates(target, draft, ranks, *, update=True):
    """The exact rate of each rank, summed over every ordered draw of the children."""
    rates = [0.0] * ranks
    for children, drawn in ordered_draws(draft, ranks):
        for rank, chance in enumerate(exact_chances(target, draft, children, update=update)[0]):
            rates[rank] += drawn * chance
    return rates


def marginal_deviation(target, draft, rates, seed) -> float:
    """The largest deviation of the mean chances of 1,000 draws, in standard errors, over the ranks."""
    size, generator = len(target), torch.Generator().manual_seed(seed)
    law, proposing = ScriptedTarget([target] * size, 3000), ScriptedDraft([draft] * size, 3000)
    places = places_along(law, proposing, [0], trials(len(rates), 1, 1001), generator=generator)
    chances = torch.tensor([place.chances for place in places], dtype=torch.float64)
    assert chances.sum(1).max() <= 1 + 1e-9 and chances.min() >= 0
    hits = torch.tensor([[place.hit] for place in places], dtype=torch.float64)
    seen = torch.cat((chances, hits), 1)
    expected = torch.tensor([*rates, sum(rates)], dtype=torch.float64)
    errors = seen.std(0) / len(seen) ** 0.5 + 1e-9
    return float(((seen.mean(0) - expected).abs() / errors).max())


def random_pair(size, zeros):
    rng = random.Random(10 * size + zeros)
    rows = [[0.02 + rng.random() ** 3 for _ in range(size)] for _ in range(2)]
    if zeros:
        rows[0][0] = rows[1][1] = 0.0
    return tuple(map(normalised, rows))


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("zeros", [False, True])
def test_chances_averaged_over_draws_are_the_exact_marginal_rates(size, zeros):
    """Fixed seeds; 6 cases of 4 rates at 4.5 errors: a right program fails for one choice in 6,000."""
    target, draft = random_pair(size, zeros)
    assert marginal_deviation(target, draft, marginal_rates(target, draft, 3), size) < 4.5


def test_the_exact_marginal_rates_see_chances_that_forget_the_residual():
    target, draft = normalised([5, 4, 3, 1]), normalised([7, 2, 1, 3])
    assert marginal_deviation(target, draft, marginal_rates(target, draft, 3), 1) < 4.5
    assert marginal_deviation(target, draft, marginal_rates(target, draft, 3, update=False), 1) > 10


#: Behind 0 the draft is nearly right, behind 1 nearly wrong; and 1 follows where it is not believed.
TEXTS = 300
TABLE = [[0.6, 0.35, 0.05], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]]
PROPOSED = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]]


def exact_rates(tokens, depths):
    """The rate of the one child by depth, from the law of all texts: where steps begin, and what is hit."""
    size = len(TABLE)
    trial, accepted = [0.0] * depths, [0.0] * depths
    behind = [[[0.0] * size for _ in range(depths + 1)] for _ in range(tokens + 2)]  # place, depth, token
    behind[0][0][0] = 1.0
    for place in range(tokens - 1):
        for depth in range(depths):
            for token, weight in enumerate(behind[place][depth]):
                for children, drawn in ordered_draws(PROPOSED[token], 1):
                    chances, left, residual = exact_chances(TABLE[token], PROPOSED[token], children)
                    reached = weight * drawn
                    trial[depth] += reached
                    accepted[depth] += reached * chances[0]
                    behind[place + 1][depth + 1][children[0]] += reached * chances[0]
                    for next_token in range(size):
                        bonus = reached * chances[0] * TABLE[children[0]][next_token]
                        if depth == 0:
                            behind[place + 2][0][next_token] += bonus
                            behind[place + 1][0][next_token] += reached * left * residual[next_token]
    return [a / t for a, t in zip(accepted, trial, strict=True)]


def deviations(change=lambda places: places, *, coin=False) -> list[float]:
    """How far the rates by depth are from the exact ones, in standard errors, over all texts."""
    target, draft = ScriptedTarget(TABLE, 400), ScriptedDraft(PROPOSED)
    options = trials(1, 2, 24)
    counts = []
    for number in range(TEXTS):
        generator = torch.Generator().manual_seed(number)
        if coin:
            counts.append(on_policy(target, draft, [0], options, generator=generator))
        else:
            places = places_along(target, draft, [0], options, generator=generator)
            counts.append(PromptCounts(number, *weigh(change(places), options)))
    found = []
    for depth in range(len(counts[0].trials)):
        rows = [replace(c, trials=c.trials[depth:], accepted=c.accepted[depth:]) for c in counts]
        rate, error = pooled_rate(rows, 0)
        found.append(abs(rate - exact_rates(24, 2)[depth]) / error)
    return found


@pytest.mark.parametrize("coin", [True, False], ids=["on policy", "teacher-forced"])
def test_rates_are_right_where_the_token_that_is_hit_has_a_say_in_the_next_hit(coin):
    """Fixed seeds; 3 rates in all at 4 standard errors: a right program fails for one choice in 5,000."""
    assert max(deviations(coin=coin)) < 4


def test_the_exact_rates_see_hits_that_do_not_go_with_their_tokens():
    def by_themselves(places):
        rng = random.Random(str(places))
        return [Place(place.chances, rng.random() < sum(place.chances)) for place in places]

    assert min(deviations(by_themselves)) > 4


def test_the_exact_rates_see_places_that_all_count_alike():
    def every_place(places):
        return [Place(place.chances, False) for place in places]

    assert deviations(every_place)[0] > 4
