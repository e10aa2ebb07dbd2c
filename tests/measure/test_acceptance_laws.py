"""What a draft's children meet at one place of a text, against the exact law over all children."""

import random

import pytest
import torch

from marginals import deviation, exact_chances, hit_rates, marginal_rates, random_pair
from reference import normalised, ordered_draws
from sequoia_cli.measure.trials import Try
from sequoia_cli.measure.tries import sampled_try


def tries(target, draft, token, ranks=3, count=1000) -> list[Try]:
    """What the children of `count` draws meet where `token` came; only a token the target gives can come."""
    generator = torch.Generator().manual_seed(token)
    law, proposed = (torch.tensor(row, dtype=torch.float64) for row in (target, draft))
    noise = torch.rand(count, ranks, generator=generator, dtype=torch.float64).tolist()
    found = [sampled_try(law, proposed, token, uniforms) for uniforms in noise]
    for one in found:
        assert min(one.chances) >= 0 and sum(one.chances) <= 1 + 1e-9 and -1e-9 <= one.hit <= 1
    return found


@pytest.mark.parametrize("size", [3, 4, 5])
@pytest.mark.parametrize("zeros", [False, True])
def test_chances_and_hits_averaged_over_draws_are_exact_whichever_token_came(size, zeros):
    """Fixed seeds; 84 means at 5 errors: a right program fails for one choice of seeds in 20,000."""
    target, draft = random_pair(size, zeros)
    rates, hits = marginal_rates(target, draft, 3), hit_rates(target, draft, 3)
    for token in (token for token in range(size) if target[token]):
        seen = [(*one.chances, one.hit) for one in tries(target, draft, token)]
        assert deviation(seen, (*rates, hits[token])) < 5


def test_one_child_is_exact_without_any_draw():
    target, draft = random_pair(5, zeros=True)
    overlap = sum(map(min, target, draft))
    for token in range(1, 5):
        (one,) = set(tries(target, draft, token, ranks=1, count=20))
        assert one.chances == pytest.approx((overlap,), abs=1e-12)
        assert one.hit == pytest.approx(min(1, draft[token] / target[token]), abs=1e-12)


def test_the_exact_rates_see_chances_that_forget_the_residual():
    target, draft = normalised([5, 4, 3, 1]), normalised([7, 2, 1, 3])
    chances = [one.chances for one in tries(target, draft, 0)]
    assert deviation(chances, marginal_rates(target, draft, 3)) < 5
    assert deviation(chances, marginal_rates(target, draft, 3, update=False)) > 10


def test_the_exact_hits_see_children_that_were_drawn_for_other_tokens():
    """Given the children of a step the token has not the target's law: chance / P is no probability then."""
    target, draft = normalised([5, 4, 3, 1]), normalised([7, 2, 1, 3])
    rng, right = random.Random(0), hit_rates(target, draft, 2)[3]
    assert deviation([[one.hit] for one in tries(target, draft, 3, 2)], [right]) < 5
    draws = list(ordered_draws(draft, 2))
    capped = []
    for children, _ in rng.choices(draws, [drawn for _, drawn in draws], k=1000):
        chances = dict(zip(children, exact_chances(target, draft, children)[0], strict=True))
        capped.append([min(1.0, chances.get(3, 0.0) / target[3])])
    assert deviation(capped, [right]) > 10
