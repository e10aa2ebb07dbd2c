"""Training and decoding a feature draft are one function: its passes are the levels of the engine's draft."""

import pytest
import torch

from distilling import target_of, written
from features import feature_draft
from models import SUPPORTED
from sequoia_cli.distill import feature_student as module
from sequoia_cli.distill.batches import collate
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.feature_student import FeatureStudent
from sequoia_cli.engine.warp import Sampling, probabilities

PASSES = 4
SAMPLING = Sampling(1.0)
SHAPES = {
    "one layer": {"layers": 1},
    "two layers": {"layers": 2},
    "ungrouped heads": {"layers": 1, "kv_heads": 4},
    "two layers, one key head": {"layers": 2, "kv_heads": 1},
}
#: Far below what any mistake gives (see the last test), and far above rounding in float64.
EXACT, SEEN = 1e-9, 1e-3


def pair(family="llama", dtype=torch.float64, **shape):
    """A target, a random feature draft of it, and the same network in training."""
    target = target_of(family, dtype)
    draft = feature_draft(target, **shape)
    return target, draft, FeatureStudent(draft.model, draft.embedding, PASSES)


def as_decoded(draft, text, root):
    """The draft's distributions after the root and after the text's own tokens below it, level by level."""
    tokens = text.tokens
    levels = min(PASSES, len(tokens) - root)
    draft.start(tokens[: root + 1], 80, [text.hidden[:root]] if root else [])
    for level in range(levels):
        proposals = draft.extend((level - 1,), tokens[root + level : root + level + 1])
        yield proposals.probabilities(SAMPLING).probs[0]


def as_trained(student, draft, texts):
    """(pass, text, place) -> the same as training has it, of several texts at once."""
    every = [Text(text.tokens, text.hidden, torch.arange(len(text)) > 0) for text in texts]
    found = {}
    with torch.no_grad():
        for number, (states, places) in enumerate(student.predictions(collate(every, torch.device("cpu")))):
            rows = probabilities(draft.head(states), SAMPLING)
            for probs, (text, place) in zip(rows, places.nonzero().tolist(), strict=True):
                found[number, text, place] = probs
    return found


def worst_error(draft, student, texts):
    """Largest difference of the two over all passes, texts and places; all of them are compared."""
    trained, errors = as_trained(student, draft, texts), {}
    for index, text in enumerate(texts):
        for root in range(len(text)):
            for level, probs in enumerate(as_decoded(draft, text, root)):
                if (key := (level, index, root + level)) in trained:
                    errors[key] = float((probs - trained[key]).abs().max())
    assert errors.keys() == trained.keys()
    assert {number for number, _, _ in errors} == set(range(PASSES))
    return max(errors.values())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_pass_j_at_a_place_is_level_j_of_the_draft_below_the_root_j_places_before(shape):
    target, draft, student = pair(**shape)
    texts = [written(target, rows=1, length=length, seed=length)[0] for length in (14, 5, 9)]
    assert worst_error(draft, student, texts) < EXACT


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gemma3", "qwen2", "cohere"])
def test_so_it_is_for_targets_of_other_families(family):
    assert family in SUPPORTED
    target, draft, student = pair(family)
    texts = [written(target, rows=1, length=length, seed=length)[0] for length in (10, 6)]
    assert worst_error(draft, student, texts) < EXACT


def test_so_it_is_along_a_text_that_steps_commit():
    """The rows of accepted tokens are recomputed from the target's states, as in pass 0."""
    target, draft, student = pair(layers=2)
    text = written(target, rows=1, length=24, seed=3)[0]
    trained = as_trained(student, draft, [text])
    root = 2
    draft.start(text.tokens[: root + 1], 80, [text.hidden[:root]])
    for accepted in (2, 0, PASSES, 1, 3):
        for level in range(PASSES):
            place = root + level
            proposals = draft.extend((level - 1,), text.tokens[place : place + 1])
            probs = proposals.probabilities(SAMPLING).probs[0]
            assert torch.allclose(probs, trained[level, 0, place], atol=EXACT)
        new = slice(root + 1, root + accepted + 2)
        hidden = text.hidden[root : root + accepted + 1]
        draft.commit(range(min(accepted + 1, PASSES)), text.tokens[new].tolist(), [hidden])
        root += accepted + 1


def test_padding_after_a_text_changes_nothing():
    target, draft, student = pair()
    short, long = (written(target, rows=1, length=length, seed=1)[0] for length in (6, 17))
    alone, beside = as_trained(student, draft, [short]), as_trained(student, draft, [short, long])
    for key, probs in alone.items():
        assert torch.allclose(probs, beside[key], atol=EXACT)


def test_predictions_stand_where_answers_follow_as_far_as_each_pass_reaches():
    _, _, student = pair()
    answer = torch.tensor([True, True, False, True, False, True])
    text = Text(torch.arange(1, 7), torch.randn(6, 32, dtype=torch.float64), answer)
    batch = collate([text], torch.device("cpu"))
    found = [places[0].nonzero()[:, 0].tolist() for _, places in student.predictions(batch)]
    assert found == [[0, 2, 4], [2, 4], [2, 4], [4]]
    assert len(list(student.predictions(batch, 2))) == 2


def test_gradients_reach_the_network_through_every_pass_and_never_the_embedding():
    target, draft, student = pair()
    draft.model.requires_grad_(True)
    draft.embedding.requires_grad_(True)
    batch = collate(written(target, rows=2, length=8), torch.device("cpu"))
    for states, _ in student.predictions(batch):
        student.model.zero_grad()
        states.sum().backward(retain_graph=True)
        assert all(parameter.grad.abs().max() > 0 for parameter in student.model.parameters())
    assert draft.embedding.weight.grad is None


def test_products_beyond_the_range_of_a_narrow_dtype_are_scaled_before_they_are_made():
    drawn = torch.Generator().manual_seed(0)
    queries, keys, values = (torch.randn(1, 2, 5, 64, generator=drawn) for _ in range(3))
    queries, keys = 20 + queries, 200 + keys  # 64 * 20 * 200 is more than float16 holds, an eighth is not
    passes = [(keys, values), (keys.roll(1, 2), values)]
    assert torch.isfinite(module._attend(queries.half(), [(k.half(), v.half()) for k, v in passes])).all()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("_shifted", lambda states: states),
        ("_shifted_by", lambda rows, by: rows.roll(by + 1, 2)),
        ("_shifted_by", lambda rows, by: rows),
    ],
    ids=["state of the token itself", "rows one place on", "rows not moved"],
)
def test_a_network_that_reads_one_place_from_where_it_should_is_seen(name, wrong, monkeypatch):
    target, draft, student = pair()
    texts = [written(target, rows=1, length=12, seed=1)[0]]
    assert worst_error(draft, student, texts) < EXACT
    monkeypatch.setattr(module, name, wrong)
    assert worst_error(draft, student, texts) > SEEN
