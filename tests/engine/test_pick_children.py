"""Children of a level's nodes as ids of the target, from the columns of a draft that knows fewer."""

import pytest
import torch

from sequoia_cli.engine.draw import draw_children, top_children
from sequoia_cli.engine.grow import over_vocabulary, pick_children

VOCABULARY, IDS = 10, torch.tensor([2, 5, 9])
COLUMNS = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.0, 0.1]], dtype=torch.float64)


def uniforms(children, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(COLUMNS), children, generator=generator, dtype=torch.float64)


def picked(counts, *, greedy, seed=0):
    children, probs = pick_children(
        COLUMNS,
        counts,
        uniforms(max(counts), seed),
        VOCABULARY,
        top_children if greedy else draw_children,
        IDS,
    )
    assert [len(row) for row in children] == list(counts)
    return [row.tolist() for row in children], probs


def test_columns_stand_at_their_ids_and_all_others_have_no_probability():
    whole = over_vocabulary(COLUMNS, VOCABULARY, IDS)
    assert whole.shape == (2, VOCABULARY)
    assert torch.equal(whole[:, IDS], COLUMNS)
    assert torch.equal(whole.sum(-1), COLUMNS.sum(-1))
    assert torch.equal(over_vocabulary(COLUMNS, 5, None), torch.nn.functional.pad(COLUMNS, (0, 2)))


def test_a_greedy_target_gets_the_most_probable_ids_in_order():
    assert picked((3, 1), greedy=True)[0] == [[5, 9, 2], [2]]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("children", [4, 7, 10])
def test_more_children_than_a_draft_has_ids_are_its_ids_first_and_then_others(greedy, children):
    for seed in range(20):
        rows, probs = picked((children, children - 1), greedy=greedy, seed=seed)
        assert probs.shape == (2, VOCABULARY)
        for row, count in zip(rows, (children, children - 1), strict=True):
            assert len(set(row)) == count and set(row) <= set(range(VOCABULARY))
        assert set(rows[0][:3]) == set(IDS.tolist())
        assert set(rows[1][:2]) == {2, 9}  # the third has no probability behind the second node


def test_more_children_than_the_target_has_ids_are_refused():
    with pytest.raises(ValueError, match="11 different children cannot be drawn from 10 tokens"):
        picked((11, 1), greedy=False)


def test_sampled_children_are_drawn_with_the_probabilities_that_are_returned():
    # 20,000 draws of one child: a right program is off by more in one of a million seeds.
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(20_000, 1, generator=generator, dtype=torch.float64)
    columns = COLUMNS[:1].expand(20_000, -1)
    children, probs = pick_children(columns, (1,) * 20_000, noise, VOCABULARY, draw_children, IDS)
    shares = torch.bincount(torch.cat(children), minlength=VOCABULARY) / 20_000
    assert float((shares - probs[0]).abs().max()) < 5 * (0.25 / 20_000) ** 0.5
    assert float((shares - over_vocabulary(COLUMNS[:1], VOCABULARY, IDS - 1)[0]).abs().max()) > 0.1
