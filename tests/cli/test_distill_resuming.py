"""Resuming an interrupted `sequoia distill`: finished work is kept, and only the same run is resumed."""

import itertools
import json
from pathlib import Path

import pytest

from exhaustive import exhaustive
from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill import stages
from sequoia_cli.distill import training as training_module
from sequoia_cli.distill import writing
from sequoia_cli.errors import BadInput, SequoiaError


def files(folder):
    return {path.name for path in Path(folder).iterdir()}


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


def interrupting(right, last):
    """`right`, interrupted at its call number `last`."""
    calls = itertools.count(1)

    def function(*arguments):
        if next(calls) == last:
            raise KeyboardInterrupt
        return right(*arguments)

    return function


def test_interrupted_while_writing_it_resumes(distill, done, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", interrupting(writing.write, 3))
        code, out, err = distill("-o", "made")
    assert (code, out) == (130, "")
    assert "unfinished work is kept in made.partial; the same command resumes" in err
    assert not Path("made").exists()
    err = done("-o", "made")
    assert "resuming from 768 tokens in made.partial/corpus" in err
    assert files(".") == {"made"}
    # Of 1536 that were written, the first texts that have as many as were asked for.
    assert 1500 <= json.loads(Path("made/distillation.json").read_text())["corpus"]["tokens"] <= 1536


@pytest.fixture
def interrupted(distill, monkeypatch):
    """Run it up to the fourth step of the training: what it said."""

    def command(*arguments):
        with monkeypatch.context() as patch:
            patch.setattr(training_module, "divergence", interrupting(training_module.divergence, 4))
            code, out, err = distill(*arguments)
        assert (code, out) == (130, "")
        return err

    return command


def test_interrupted_while_training_it_resumes_to_the_same_draft(done, interrupted):
    done("-o", "whole", "--epochs", "2")
    err = interrupted("-o", "made", "--epochs", "2")
    assert "unfinished work is kept in made.partial" in err
    err = done("-o", "made", "--epochs", "2")
    assert "made.partial/corpus has 1,536 tokens already" in err
    assert "resuming from step 3 of" in err
    assert weights("made") == weights("whole")
    assert files(".") == {"whole", "made"}


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        pytest.param(["--epochs", "1"], "epochs 2 there, 1 now", marks=exhaustive),
        pytest.param(["--epochs", "2", "--tokens", "3000"], "tokens 1500 there, 3000 now", marks=exhaustive),
        pytest.param(
            ["--epochs", "2", "--draft-vocab", "64"], "draft_vocab all there, 64 now", marks=exhaustive
        ),
        (["--epochs", "2", "--passes", "1", "--batch-tokens", "300"], "passes 3 there, 1 now; batch_tokens"),
    ],
)
def test_a_training_of_other_options_is_refused_before_texts_are_written(
    distill, done, interrupted, monkeypatch, options, difference
):
    interrupted("-o", "made", "--epochs", "2")
    place = Path("made.partial")
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", None)
        code, out, err = distill("-o", "made", *options)
    assert (code, out) == (2, "")
    assert "training-1.safetensors holds a training under other conditions: " + difference in err
    assert "--force to restart" in err
    assert "the same command resumes" not in err
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    # The same options go on, as if nothing had been tried.
    assert "resuming from step 3 of" in done("-o", "made", "--epochs", "2")


@exhaustive
def test_a_training_of_other_options_restarts_by_force(done, interrupted):
    done("-o", "whole")
    interrupted("-o", "made", "--epochs", "2")
    err = done("-o", "made", "--force")
    assert "training restarts: epochs 2 there, 1 now" in err
    assert "resuming from step" not in err
    assert weights("made") == weights("whole")


def test_force_resumes_a_training_of_the_same_options(done, interrupted):
    interrupted("-o", "made", "--epochs", "2")
    err = done("-o", "made", "--epochs", "2", "--force")
    assert "resuming from step 3 of" in err
    assert "restarts" not in err


def test_a_training_on_other_texts_is_refused_and_those_are_kept(distill, interrupted):
    err = interrupted("-o", "made", "--epochs", "2", "--corpus", "texts")
    assert "unfinished work is kept in made.partial and texts; the same command resumes" in err
    code, _, err = distill("-o", "made", "--epochs", "2", "--corpus", "others", "-T", "0.5")
    assert code == 2
    assert "holds a training under other conditions: corpus sha256:" in err
    assert "the same command resumes" not in err
    assert files("others") == files("texts")


@pytest.mark.parametrize(
    ("raised", "expected", "resumes"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt, True),
        (SequoiaError("the disk is full"), SequoiaError, True),
        (MemoryError("no more"), SequoiaError, True),
        (RuntimeError("can't allocate memory"), SequoiaError, True),
        (BadInput("too few texts"), BadInput, False),
        (ValueError("a fault"), ValueError, False),
    ],
)
def test_the_note_on_resuming_is_shown_only_where_it_is_true(capsys, raised, expected, resumes):
    with pytest.raises(expected), stages._resume_note(Path("made.partial"), None, Commentary()):
        raise raised
    said = "unfinished work is kept in made.partial; the same command resumes\n"
    assert capsys.readouterr().err == (said if resumes else "")
