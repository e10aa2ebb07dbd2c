"""What a draft is trained for, against plain torch; and the counts that it is judged by, against hand."""

import pytest
import torch

from sequoia_cli.distill import objective
from sequoia_cli.distill.batches import collate
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.objective import Heads, count_hits, divergence, only_wrong
from sequoia_cli.engine.head import OutputHead

WIDTH, IDS = 6, 10


class Table:
    """A student that has one trained state per pass, text and place, whatever the batch says."""

    def __init__(self, states):
        self.model = torch.nn.Module()
        self.model.states = torch.nn.Parameter(states)
        self.passes = len(states)

    def predictions(self, batch, passes=None):
        for number in range(passes or self.passes):
            places = batch.answer.clone()
            places[:, :number] = False
            yield self.model.states[number][: len(places), : places.shape[1]][places], places


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def head(seed=1, rows=IDS, **options):
    return OutputHead(normal(rows, WIDTH, seed=seed), normal(rows, seed=seed + 50), **options)


def texts_of(lengths, seed=2):
    drawn = torch.Generator().manual_seed(seed)
    return [
        Text(
            torch.randint(IDS, (length,), generator=drawn),
            normal(length, WIDTH, seed=seed + length),
            torch.rand(length, generator=drawn) < 0.6,
        )
        for length in lengths
    ]


def batch_of(texts):
    return collate(texts, torch.device("cpu"))


def plain(student, batch, heads):
    """The same by torch's own functions, place by place."""
    total, weights = 0.0, 0.0
    for number in range(student.passes):
        terms = []
        for text, place in batch.answer.nonzero().tolist():
            if place >= number:
                wanted = torch.log_softmax(heads.target(batch.hidden[text, place]), -1)
                said = torch.log_softmax(heads.own(student.model.states[number, text, place]), -1)
                terms.append(torch.nn.functional.kl_div(said, wanted, reduction="sum", log_target=True))
        weight = 0.8**number
        total = total + weight * torch.stack(terms).mean()
        weights += weight
    return total / weights


def heads_like(kind):
    if kind == "own":
        return Heads(torch.arange(IDS), head(7), head(8), head(8))
    options = {"plain": {}, "capped and scaled": {"cap": 2.0, "scale": 0.5}}.get(kind, {})
    whole = head(1, **options)
    if kind == "cut":
        ids = torch.tensor([0, 3, 4, 9])
        return Heads(ids, whole.only(ids), whole.only(ids), whole)
    return Heads(torch.arange(IDS), whole, whole, whole)


@pytest.mark.parametrize("kind", ["plain", "capped and scaled", "own", "cut"])
@pytest.mark.parametrize("rows", [3, 256])
def test_value_and_gradient_are_those_of_the_plain_divergence(kind, rows, monkeypatch):
    monkeypatch.setattr(
        objective, "_ROWS", rows
    )  # also smaller than a batch, so that pieces are put together
    texts, heads = texts_of([5, 9, 7]), heads_like(kind)
    batch = batch_of(texts)
    student = Table(normal(3, 3, 9, WIDTH, seed=5))
    found, expected = divergence(student, batch, heads), plain(student, batch, heads)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    (slope,) = torch.autograd.grad(found * 3, student.model.states)
    (right,) = torch.autograd.grad(expected * 3, student.model.states)
    assert torch.allclose(slope, right, atol=1e-6)
    assert right.abs().max() > 0.01


def test_a_wrong_place_would_be_seen():
    texts, heads = texts_of([5, 9, 7]), heads_like("plain")
    batch, student = batch_of(texts), Table(normal(3, 3, 9, WIDTH, seed=5))
    shifted = batch_of([Text(t.tokens, t.hidden.roll(1, 0), t.answer) for t in texts])
    assert divergence(student, shifted, heads).item() != pytest.approx(
        plain(student, batch, heads).item(), rel=1e-2
    )


@pytest.mark.parametrize("kind", ["plain", "capped and scaled", "cut"])
def test_a_student_that_equals_the_target_is_at_zero_and_rests_there(kind):
    batch = batch_of(texts_of([5, 9]))
    student = Table(batch.hidden.expand(2, *batch.hidden.shape).clone())
    value = divergence(student, batch, heads_like(kind))
    assert abs(value.item()) < 1e-6
    (slope,) = torch.autograd.grad(value, student.model.states)
    assert slope.abs().max() < 1e-7


def test_a_batch_without_answers_has_nothing_to_learn_from_and_no_trouble():
    texts = [Text(t.tokens, t.hidden, torch.zeros_like(t.answer)) for t in texts_of([5, 9])]
    student = Table(normal(2, 2, 9, WIDTH))
    value = divergence(student, batch_of(texts), heads_like("plain"))
    value.backward()
    assert value.item() == 0
    assert student.model.states.grad.abs().max() == 0


def one_hot_case():
    """A head that reads off ids, a text of five tokens whose choices are known, and states by hand."""
    eye = OutputHead(torch.eye(IDS, dtype=torch.float64))
    choices = [4, 2, 7, 1, 9]
    hidden = torch.eye(IDS, dtype=torch.float64)[choices]
    text = Text(torch.tensor([0, 4, 2, 7, 1]), hidden, torch.tensor([False, False, True, True, True]))
    states = torch.zeros(2, 1, 5, IDS, dtype=torch.float64)

    def rank(number, place, *ids):
        for index, id in enumerate(ids):
            states[number, 0, place, id] = 9.0 - index

    # Answers follow places 1, 2 and 3, where the target's choices are 2, 7 and 1.
    rank(0, 1, 2, 5, 6), rank(0, 2, 3, 7, 8), rank(0, 3, 0, 5, 1)
    rank(1, 1, 9, 8, 7), rank(1, 2, 7, 1, 0), rank(1, 3, 8, 6, 5)
    return eye, text, Table(states)


def test_hits_are_counted_by_rank_and_depth():
    eye, text, student = one_hot_case()
    heads = Heads(torch.arange(IDS), eye, eye, eye)
    counts = count_hits(student, batch_of([text]), heads, 2)
    assert counts[0].tolist() == [3, 1, 1, 1, 0, 0, 0, 0, 0]
    # At depth 1, the ranks of the three places are 1, 1 and, after 8, 6, 5 and the zeros, none of the first
    # three.
    assert counts[1, :2].tolist() == [3, 1]
    assert counts[1, 2:4].tolist() == [0, 0]


def test_a_choice_that_the_drafts_head_has_no_row_for_is_never_hit():
    eye, text, student = one_hot_case()
    ids = torch.tensor([0, 1, 3, 5, 7])  # the target's choice 2 is not among them
    heads = Heads(ids, eye.only(ids), eye.only(ids), eye)
    counts = count_hits(student, batch_of([text]), heads, 1)
    assert counts[0, :4].tolist() == [3, 0, 1, 1]
    assert counts[0, 6:].tolist() == [0, 0, 0]


def test_a_second_draft_learns_exactly_what_the_first_one_got_wrong():
    eye, text, student = one_hot_case()
    heads = Heads(torch.arange(IDS), eye, eye, eye)
    (left,) = only_wrong(student, [text], heads, 100)
    # Place 1 was right; tokens 3 and 4 follow 2 and 3.
    assert left.answer.tolist() == [False, False, False, True, True]
    assert torch.equal(left.tokens, text.tokens)
    none = Text(text.tokens, text.hidden, torch.zeros(5, dtype=torch.bool))
    assert not only_wrong(student, [none], heads, 100)[0].answer.any()
    assert only_wrong(student, [], heads, 100) == []


class Lookup:
    """A student whose state is one per token, whichever texts stand beside it; counts its forwards."""

    passes, forwards = 1, 0

    def predictions(self, batch, passes=None):
        self.forwards += 1
        yield normal(IDS, WIDTH, seed=9)[batch.tokens[batch.answer]], batch.answer


@pytest.mark.parametrize("rows", [3, 256])
def test_what_was_got_wrong_is_found_in_batches_as_text_by_text(rows, monkeypatch):
    monkeypatch.setattr(objective, "_ROWS", rows)
    heads, student, done = heads_like("cut"), Lookup(), []
    texts = texts_of([5, 9, 7, 2, 12, 9, 30, 4])
    found = only_wrong(student, texts, heads, 36, done.append)
    assert sum(done) == len(texts)
    assert len(done) == student.forwards < len(texts)
    assert max(done) > 1
    wrong = 0
    for text, left in zip(texts, found, strict=True):
        assert left.tokens is text.tokens
        assert left.hidden is text.hidden
        for place in range(len(text)):
            state = normal(IDS, WIDTH, seed=9)[text.tokens[place - 1]]
            right = heads.ids[heads.own(state).argmax()] == heads.full(text.hidden[place - 1]).argmax()
            expected = place > 0 and bool(text.answer[place]) and not right
            assert bool(left.answer[place]) == expected, place
            wrong += expected
    assert 10 < wrong < sum(int(text.answer[1:].sum()) for text in texts)
