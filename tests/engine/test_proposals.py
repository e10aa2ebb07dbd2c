"""Children of a level's nodes as ids of the target, from the columns of a draft that knows fewer."""

import pytest
import torch

from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import draw_children, draw_independently
from sequoia_cli.engine.proposals import Proposals, Proposed

VOCABULARY, IDS = 10, torch.tensor([2, 5, 9])
COLUMNS = torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.0, 0.1]], dtype=torch.float64)


def uniforms(children, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(len(COLUMNS), children, generator=generator, dtype=torch.float64)


PROPOSED = Proposed(COLUMNS, IDS)


def picked(counts, *, greedy, seed=0):
    if greedy:
        children = Proposals(COLUMNS.log(), IDS).top(counts, VOCABULARY)
    else:
        children = PROPOSED.children(counts, uniforms(max(counts), seed), VOCABULARY, draw_children)
    assert [len(row) for row in children] == list(counts)
    return [row.tolist() for row in children]


def test_columns_stand_at_their_ids_and_all_others_have_no_probability():
    whole = PROPOSED.over(VOCABULARY)
    assert whole.shape == (2, VOCABULARY)
    assert torch.equal(whole[:, IDS], COLUMNS)
    assert torch.equal(whole.sum(-1), COLUMNS.sum(-1))
    assert torch.equal(Proposed(COLUMNS).over(5), torch.nn.functional.pad(COLUMNS, (0, 2)))
    assert torch.equal(PROPOSED.over(VOCABULARY, 1), whole[1])


def test_nodes_may_have_columns_of_their_own():
    sparse = Proposed(COLUMNS, torch.tensor([[2, 5, 9], [7, 0, 1]]))
    whole = sparse.over(VOCABULARY)
    assert whole[1, [7, 0, 1]].tolist() == COLUMNS[1].tolist()
    assert torch.equal(sparse.over(VOCABULARY, 1), whole[1])
    for seed in range(20):
        noise = uniforms(2, seed)
        drawn = sparse.children((2, 2), noise, VOCABULARY, draw_children)
        assert set(drawn[0].tolist()) <= {2, 5, 9} and set(drawn[1].tolist()) == {7, 1}
    logits = Proposals(COLUMNS.log(), sparse.ids)
    assert [row.tolist() for row in logits.top((2, 1), VOCABULARY)] == [[5, 9], [7]]
    assert torch.allclose(logits.probabilities(Sampling(1.0)).over(VOCABULARY), whole)


@pytest.mark.parametrize("draw", [draw_children, draw_independently])
@pytest.mark.parametrize("children", [1, 2, 3])
def test_children_drawn_among_a_drafts_columns_are_those_drawn_from_the_whole_vocabulary(draw, children):
    ids = torch.arange(3, 203, 2)
    logits = 3 * torch.randn(5, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    proposed, counts = Proposed(logits.softmax(-1), ids), (children, 1, children, 1, children)
    for seed in range(50):
        noise = torch.rand(5, children, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found = proposed.children(counts, noise, 300, draw)
        expected = draw(proposed.over(300), counts, noise)
        assert [row.tolist() for row in found] == [row.tolist() for row in expected]


def test_a_greedy_target_gets_the_most_probable_ids_in_order():
    assert picked((3, 1), greedy=True) == [[5, 9, 2], [2]]


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("children", [4, 7, 10])
def test_more_children_than_a_draft_has_ids_are_its_ids_first_and_then_others(greedy, children):
    for seed in range(20):
        rows = picked((children, children - 1), greedy=greedy, seed=seed)
        for row, count in zip(rows, (children, children - 1), strict=True):
            assert len(set(row)) == count and set(row) <= set(range(VOCABULARY))
        assert set(rows[0][:3]) == set(IDS.tolist())
        assert set(rows[1][:2]) == {2, 9}  # the third has no probability after the second node


def test_more_children_than_the_target_has_ids_are_refused():
    with pytest.raises(ValueError, match="11 different children cannot be drawn from 10 tokens"):
        picked((11, 1), greedy=False)


def test_sampled_children_are_drawn_with_the_probabilities_that_are_returned():
    # 20,000 draws of one child: a right program is off by more in one of a million seeds.
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(20_000, 1, generator=generator, dtype=torch.float64)
    proposed = Proposed(COLUMNS[:1].expand(20_000, -1), IDS)
    children = proposed.children((1,) * 20_000, noise, VOCABULARY, draw_children)
    shares = torch.bincount(torch.cat(children), minlength=VOCABULARY) / 20_000
    assert float((shares - proposed.over(VOCABULARY, 0)).abs().max()) < 5 * (0.25 / 20_000) ** 0.5
    assert float((shares - Proposed(COLUMNS, IDS - 1).over(VOCABULARY, 0)).abs().max()) > 0.1
