"""Drawing children without replacement: the law of the ordered draw, exactly where that can be summed."""

import itertools

import pytest
import torch

from reference import inverse, ordered_draws, without
from sequoia_cli.engine.draw import draw, draw_children, top_children


def grid(cells: int) -> list[float]:
    """The middles of `cells` equal parts of [0, 1)."""
    return [(cell + 0.5) / cells for cell in range(cells)]


@pytest.mark.parametrize("draft", [[0.5, 0.25, 0.25, 0.0], [0.125, 0.125, 0.5, 0.25], [1.0, 0.0, 0.0, 0.0]])
def test_ordered_draws_have_the_law_of_successive_renormalised_draws(draft):
    # With rates in multiples of 1/8 every conditional law of two draws is constant on cells of 1/168, so the
    # share of cells is the probability itself, not an estimate.
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
    for size in (2, 5, 40):
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


def test_mass_far_below_float_resolution_of_the_sum_is_still_drawn_by_its_own_law():
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
