"""Drawing children without replacement: the distribution of ordered draws, exactly where possible."""

import itertools
from collections import Counter

import pytest
import torch
from scipy.stats import chi2
from torch.utils._python_dispatch import TorchDispatchMode

from reference import inverse, ordered_draws, without
from sequoia_cli.engine.draw import draw, draw_children, on_device, on_host, top_children


def grid(cells: int) -> list[float]:
    """The middles of `cells` equal parts of [0, 1)."""
    return [(cell + 0.5) / cells for cell in range(cells)]


@pytest.mark.parametrize("draft", [[0.5, 0.25, 0.25, 0.0], [0.125, 0.125, 0.5, 0.25], [1.0, 0.0, 0.0, 0.0]])
def test_ordered_draws_have_the_distribution_of_successive_renormalised_draws(draft):
    # With rates in multiples of 1/8 every conditional distribution of two draws is constant on cells of
    # 1/168, so the share of cells is the probability itself, not an estimate.
    cells = 168
    counts: dict[tuple[int, ...], int] = {}
    points = torch.tensor(list(itertools.product(grid(cells), repeat=2)), dtype=torch.float64)
    rows = torch.tensor(draft, dtype=torch.float64).expand(len(points), -1)
    for drawn in draw_children(rows, [2] * len(points), points):
        counts[tuple(drawn.tolist())] = counts.get(tuple(drawn.tolist()), 0) + 1
    expected = dict(ordered_draws(draft, 2))
    assert set(counts) == set(expected)
    for drawn, count in counts.items():
        assert count / cells**2 == pytest.approx(expected[drawn], abs=1e-12)


def test_draws_agree_with_the_slow_twin_on_the_same_noise():
    generator = torch.Generator().manual_seed(3)
    for size in (2, 5, 40, 150):
        probs = torch.rand(6, size, generator=generator, dtype=torch.float64) ** 4
        probs[torch.rand(6, size, generator=generator) < 0.3] = 0
        probs[:, 0] += 0.1
        probs /= probs.sum(-1, keepdim=True)
        uniforms = torch.rand(6, size, generator=generator, dtype=torch.float64)
        for row, drawn in enumerate(draw_children(probs, [size] * 6, uniforms)):
            tried: list[int] = []
            for uniform in uniforms[row].tolist():
                current = without(probs[row].tolist(), tried) if tried else probs[row].tolist()
                tried.append(inverse(current, uniform))
            assert drawn.tolist() == tried


def test_draws_on_the_host_are_those_on_a_device():
    generator = torch.Generator().manual_seed(5)
    for rows, size, children in ((3, 4, 4), (5, 60, 60), (2, 2000, 127)):
        probs = torch.rand(rows, size, generator=generator, dtype=torch.float64) ** 8 + 1e-6
        cumulative = (probs / probs.sum(1, keepdim=True)).cumsum(1)
        uniforms = torch.rand(rows, children, generator=generator, dtype=torch.float64)
        (ours, left), (theirs, same) = on_host(cumulative, uniforms), on_device(cumulative, uniforms)
        assert torch.equal(ours, theirs)
        assert (left - same).abs().max() < 1e-12


@pytest.mark.parametrize("by_inversion", [on_host, on_device])
def test_a_point_at_the_end_of_a_drawn_token_is_in_the_next_one(by_inversion):
    cumulative = torch.tensor([[0.25, 0.5, 1.0]], dtype=torch.float64)
    tokens, left = by_inversion(cumulative, torch.zeros(1, 3, dtype=torch.float64))
    assert (tokens.tolist(), left.tolist()) == ([[0, 1, 2]], [0.5])


@pytest.mark.parametrize("by_inversion", [on_host, on_device])
def test_of_a_row_that_is_not_finite_a_token_is_drawn_that_can_be_looked_up(by_inversion):
    row = torch.full((1, 4), torch.nan, dtype=torch.float64)
    tokens, _ = by_inversion(row, torch.full((1, 2), 0.5, dtype=torch.float64))
    assert tokens.tolist() == [[3, 3]]
    assert draw(row[0], 0.5) == 3


class Operations(TorchDispatchMode):
    """Counts what is launched."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_launches_of_a_child_do_not_grow_with_the_children_before_it():
    launched, cumulative = [], torch.full((2, 200), 1 / 200, dtype=torch.float64).cumsum(1)
    for children in (20, 40, 80):
        noise = torch.rand(2, children, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        with Operations() as operations:
            on_device(cumulative, noise)
        launched.append(operations.count)
    assert launched[2] - launched[1] == 2 * (launched[1] - launched[0])


def test_children_are_different_and_those_with_mass_come_first():
    probs = torch.zeros(1, 50, dtype=torch.float32)
    probs[0, [7, 20]] = torch.tensor([0.999999, 1e-6])
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        drawn = draw_children(probs, [5], torch.rand(1, 5, generator=generator, dtype=torch.float64))[
            0
        ].tolist()
        assert set(drawn[:2]) == {7, 20}
        assert len(set(drawn)) == 5


def test_mass_far_below_float_resolution_of_the_sum_is_still_drawn_by_its_own_distribution():
    # A confident draft: 1e-30 is lost in a cumulative sum that ends at 1, not in what is left of it.
    probs = torch.tensor([[1.0, 0.0, 3e-30, 1e-30]], dtype=torch.float32)
    uniforms = torch.tensor([[0.3, 0.2, 0.9], [0.3, 0.8, 0.9]], dtype=torch.float64)
    drawn = draw_children(probs.expand(2, -1), [3, 3], uniforms)
    assert [row.tolist() for row in drawn] == [[0, 2, 3], [0, 3, 2]]


def test_rows_take_as_many_children_as_they_are_given():
    probs = torch.full((3, 8), 0.125)
    drawn = draw_children(probs, [1, 3, 2], torch.rand(3, 3, generator=torch.Generator().manual_seed(0)))
    assert [len(row) for row in drawn] == [1, 3, 2]


def test_more_children_than_tokens_cannot_be_drawn():
    with pytest.raises(ValueError, match="5 different children"):
        draw_children(torch.full((1, 4), 0.25), [5], torch.zeros(1, 5))


def test_a_token_without_mass_is_never_drawn():
    row = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert {draw(row, uniform) for uniform in (0.0, 0.49, 0.5, 0.999999, 1 - 1e-16)} == {1, 3}


def test_top_children_are_the_most_probable_in_order():
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert top_children(probs, [3])[0].tolist() == [1, 3, 2]


def raced(rows, most, seed=0):
    drawn = draw_children(rows, [most] * len(rows), torch.Generator().manual_seed(seed))
    return [tuple(row.tolist()) for row in drawn]


def race_p_value(draft, distribution, most=2, draws=20_000):
    """Chi-squared of ordered draws by a generator; a right program fails in one of a million seeds."""
    rows = torch.tensor(draft, dtype=torch.float32).expand(draws, -1)
    counts = Counter(raced(rows, most))
    assert set(counts) <= set(distribution)
    cells = [(counts[drawn], draws * chance) for drawn, chance in distribution.items()]
    return float(chi2.sf(sum((seen - mean) ** 2 / mean for seen, mean in cells), len(cells) - 1))


RACED = [[0.5, 0.25, 0.25, 0.0], [0.05, 0.15, 0.1, 0.7], [1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("draft", RACED)
def test_draws_by_a_generator_have_the_distribution_of_successive_renormalised_draws(draft):
    assert race_p_value(draft, dict(ordered_draws(draft, 2))) > 1e-6


def test_the_check_sees_draws_of_another_distribution():
    assert race_p_value([0.05, 0.15, 0.1, 0.7], dict(ordered_draws([0.06, 0.14, 0.1, 0.7], 2))) < 1e-6


def test_by_a_generator_tokens_with_mass_come_first_however_little_it_is():
    row = torch.tensor([[1.0, 0.0, 3e-30, 1e-30, 0.0]]).expand(2000, -1)
    drawn = raced(row, 5)
    assert {each[0] for each in drawn} == {0}
    assert {frozenset(each[1:3]) for each in drawn} == {frozenset((2, 3))}
    assert {frozenset(each[3:]) for each in drawn} == {frozenset((1, 4))}
    # 2,000 draws at a chance of 3/4: five standard deviations.
    assert abs(sum(each[1] == 2 for each in drawn) / 2000 - 0.75) < 5 * (0.1875 / 2000) ** 0.5


def test_a_generator_goes_on_from_draw_to_draw():
    generator, row = torch.Generator().manual_seed(1), torch.full((1, 1000), 1e-3)
    assert draw_children(row, [4], generator)[0].tolist() != draw_children(row, [4], generator)[0].tolist()
