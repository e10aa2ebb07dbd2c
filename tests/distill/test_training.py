"""The training loop: it learns, keeps the best, resumes where it stopped, and never changes the target."""

import dataclasses
import hashlib
import itertools
import json

import pytest
import torch

from distilling import from_start, heads_of, target_of, written
from sequoia_cli.distill import training as module
from sequoia_cli.distill.batches import collate
from sequoia_cli.distill.checkpoint import Evaluation, load_checkpoint
from sequoia_cli.distill.objective import count_hits
from sequoia_cli.distill.students import Design, new_student
from sequoia_cli.distill.training import Recipe, Training
from sequoia_cli.engine.loading import tensors
from sequoia_cli.errors import BadInput, SequoiaError

RECIPE = Recipe(epochs=3, batch_tokens=120, learning_rate=5e-3, evaluations=4)
KINDS = ("feature", "independent")


@pytest.fixture(scope="module")
def material():
    """A tiny float32 target, texts to learn from, and texts held out."""
    target = target_of("llama", torch.float32)
    texts = written(target, from_start(0.8), rows=40, length=24)
    return target, texts[8:], texts[:8]


@pytest.fixture
def training(material):
    """A training of a new student; options replace those of `Training`."""

    def make(kind="feature", recipe=RECIPE, passes=2, **options):
        target, texts, held_out = material
        heads = heads_of(target)
        student = new_student(target, heads.full, Design(kind, 1, passes), texts, seed=0)
        return Training(
            **{
                "student": student,
                "heads": heads,
                "texts": texts,
                "held_out": held_out,
                "recipe": recipe,
                **options,
            }
        )

    return make


def weights(training):
    return {name: value.clone() for name, value in training.student.model.state_dict().items()}


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def digest_of(model):
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def held_out_rates(training):
    """How often the student's first choice is the target's, by depth."""
    batch = collate(training.held_out, torch.device("cpu"))
    counts = count_hits(training.student, batch, training.heads, training.student.passes)
    return (counts[:, 1] / counts[:, 0]).tolist()


def stop_at(step, raised=KeyboardInterrupt):
    def on_step(progress):
        if progress.step == step:
            raise raised

    return on_step


# --- it learns


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_held_out_rate_rises(training, kind):
    run = training(kind, dataclasses.replace(RECIPE, epochs=12))
    before, losses = held_out_rates(run), []
    run.run(lambda progress: losses.append(progress.loss))
    after = held_out_rates(run)
    few = len(losses) // 10
    # Measured: below 0.2 times the loss, and 0.3 to 0.4 more.
    assert sum(losses[-few:]) < 0.5 * sum(losses[:few])
    assert after[0] > before[0] + 0.2
    assert after == pytest.approx([row[0] for row in run.best.p])
    assert len(losses) == run.steps == run.step


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_stays_as_it_was_bit_for_bit(training, material, kind):
    before = digest_of(material[0].model)
    run = training(kind)
    started = weights(run)
    run.run()
    assert digest_of(material[0].model) == before
    assert not equal(weights(run), started)


def test_progress_says_where_training_stands(training):
    run, heard = training(), []
    run.run(heard.append)
    assert [progress.step for progress in heard] == list(range(1, run.steps + 1))
    assert {progress.steps for progress in heard} == {run.steps}
    evaluated = [progress.step for progress in heard if progress.evaluated]
    assert evaluated == [entry.step for entry in run.history]
    assert evaluated[-1] == run.steps
    assert 3 <= len(evaluated) <= 5


# --- it keeps the best


def test_the_best_by_held_out_texts_is_kept_and_not_the_last(training, monkeypatch):
    run, seen = training(), {}
    counted = iter([0.2, 0.9, 0.4, 0.3, 0.1])

    def counted_hits(student, batch, heads, depths):
        rate = next(counted)
        seen[rate] = weights(run)
        return torch.tensor([[10, round(10 * rate), 0]]).expand(depths, 3)

    monkeypatch.setattr(module, "count_hits", counted_hits)
    run.held_out = run.held_out[:1]
    run.run()
    assert run.best.p[0][0] == pytest.approx(0.9)
    assert equal(weights(run), seen[0.9])
    assert not equal(seen[0.9], seen[0.4])


def test_an_evaluation_is_worth_the_tokens_of_a_step_along_a_chain():
    found = Evaluation(1, 0.5, (20, 10, 8), ((10, 4), (4, 1), (2, 0)))
    assert found.p == ((0.5, 0.2), (0.4, 0.1), (0.25, 0.0))
    assert found.value == 1 + 0.5 + 0.2 + 0.05


# --- resuming


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", [1, 5, 11])
def test_an_interrupted_training_resumes_to_the_same_weights_as_a_whole_one(training, tmp_path, kind, step):
    whole = training(kind)
    whole.run()
    options = {"checkpoint": tmp_path / "t.safetensors", "conditions": {"a": (1, 2)}}
    first = training(kind, **options)
    with pytest.raises(KeyboardInterrupt):
        first.run(stop_at(step))
    again = training(kind, **options)
    assert again.step == step < again.steps
    again.run()
    assert equal(weights(again), weights(whole))
    assert [(entry.step, entry.p) for entry in again.history] == [
        (entry.step, entry.p) for entry in whole.history
    ]
    # A finished one is taken up as it is.
    finished = training(kind, **options)
    assert finished.step == finished.steps
    finished.run(stop_at(finished.step, AssertionError))
    assert equal(weights(finished), weights(whole))


def test_a_killed_training_resumes_from_its_last_evaluation(training, tmp_path):
    path = tmp_path / "t.safetensors"
    run = training(checkpoint=path)
    with pytest.raises(MemoryError):
        run.run(stop_at(7, MemoryError))
    again = training(checkpoint=path)
    assert 0 < again.step < 7
    assert again.step == again.history[-1].step


def results(training):
    return [(entry.step, entry.trials, entry.hits) for entry in training.history]


def interrupting(function, call):
    """The function, with a keyboard interrupt in place of its n-th call."""
    calls = itertools.count(1)

    def called(*arguments, **options):
        if next(calls) == call:
            raise KeyboardInterrupt
        return function(*arguments, **options)

    return called


def test_an_evaluation_that_was_interrupted_is_made_up_for_the_last_one_too(training, tmp_path, monkeypatch):
    path = tmp_path / "t.safetensors"
    whole = training()
    whole.run()
    looks = len(whole.history)
    groups = len(module.batched(whole.held_out, RECIPE.batch_tokens, 0))
    for look in (1, looks):
        path.unlink(missing_ok=True)
        run = training(checkpoint=path)
        with monkeypatch.context() as patch:
            patch.setattr(module, "count_hits", interrupting(count_hits, look * groups))
            with pytest.raises(KeyboardInterrupt):
                run.run()
        again = training(checkpoint=path)
        assert again.step == whole.history[look - 1].step
        assert len(again.history) == look - 1
        again.run()
        assert results(again) == results(whole)
        assert [entry.loss for entry in again.history] == [entry.loss for entry in whole.history]
        assert equal(weights(again), weights(whole))
        assert results(training(checkpoint=path)) == results(whole)  # on the disk too


@pytest.mark.parametrize("where", ["first optimiser", "second optimiser", "weights"])
def test_a_step_that_was_interrupted_is_not_taken_twice(training, tmp_path, monkeypatch, where):
    path, step = tmp_path / "t.safetensors", 7
    whole = training()
    whole.run()
    right = module.optimisers_for

    def optimisers(*arguments):
        found = right(*arguments)
        assert len(found) == 2
        one = found[where == "second optimiser"]
        one.step = interrupting(one.step, step)
        return found

    run = None
    with monkeypatch.context() as patch:
        if where == "weights":
            patch.setattr(Training, "_put", interrupting(Training._put, step))
        else:
            patch.setattr(module, "optimisers_for", optimisers)
        run = training(checkpoint=path)
        with pytest.raises(KeyboardInterrupt):
            run.run()
    again = training(checkpoint=path)
    assert again.step == run.history[-1].step < step
    again.run()
    assert equal(weights(again), weights(whole))
    assert results(again) == results(whole)


def test_an_interrupt_before_the_first_step_leaves_nothing_to_resume(training, tmp_path, monkeypatch):
    path = tmp_path / "t.safetensors"
    monkeypatch.setattr(module, "divergence", interrupting(module.divergence, 1))
    with pytest.raises(KeyboardInterrupt):
        training(checkpoint=path).run()
    assert not path.exists()


def test_a_training_under_other_conditions_is_refused_by_what_differs(training, tmp_path):
    path = tmp_path / "t.safetensors"
    training(checkpoint=path, conditions={"seed": 0, "same": [1], "config": {"a": "b" * 99}}).run()
    before = path.read_bytes()
    with pytest.raises(BadInput, match="holds a training under other conditions") as caught:
        training(checkpoint=path, conditions={"seed": 1, "same": (1,), "config": None})
    assert "seed 0 there, 1 now; config" in caught.value.message
    assert "same" not in caught.value.message
    assert len(caught.value.message) < len(str(path)) + 150
    assert "--force to restart" in caught.value.hint
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: b"nonsense"])
def test_a_damaged_state_is_named(training, tmp_path, damage):
    path = tmp_path / "t.safetensors"
    training(checkpoint=path).run()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadInput, match=r"t\.safetensors is damaged") as caught:
        training(checkpoint=path)
    assert "training restarts" in caught.value.hint


def test_a_full_disk_keeps_the_state_before(training, tmp_path, monkeypatch):
    path, right = tmp_path / "t.safetensors", tensors.save_file
    calls = []

    def full(contents, place, **options):
        calls.append(place)
        if len(calls) > 1:
            place.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        right(contents, place, **options)

    monkeypatch.setattr(tensors, "save_file", full)
    with pytest.raises(SequoiaError, match=r"t\.safetensors could not be written: No space left") as caught:
        training(checkpoint=path).run()
    assert "the same command resumes" in caught.value.hint
    assert [each.name for each in tmp_path.iterdir()] == ["t.safetensors"]
    assert load_checkpoint(path)[1]["step"] == training(checkpoint=path).step > 0


# --- it diverges


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_training_that_diverges_ends_in_words_and_can_be_gone_on_with(
    training, tmp_path, monkeypatch, what
):
    path, right, calls = tmp_path / "t.safetensors", module.divergence, []

    def broken(*arguments):
        calls.append(1)
        loss = right(*arguments)
        if len(calls) < 8:
            return loss
        # The root of 0 is 0, and its slope is infinite.
        return loss * torch.nan if what == "loss" else loss + (loss - loss.detach()).sqrt()

    run = training(checkpoint=path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "divergence", broken)
        with pytest.raises(SequoiaError, match="at step 8: training has diverged") as caught:
            run.run()
    assert "smaller --learning-rate" in caught.value.hint
    tensors, notes = load_checkpoint(path)
    assert 0 < notes["step"] < 8
    assert all(torch.isfinite(value).all() for value in tensors.values())
    # The same conditions with another rate: it resumes.
    again = training(checkpoint=path, recipe=dataclasses.replace(RECIPE, learning_rate=1e-4))
    assert again.step == notes["step"]
    again.run()
    assert again.step == again.steps
    json.dumps([entry.loss for entry in again.history], allow_nan=False)
