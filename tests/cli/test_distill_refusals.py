"""What `sequoia distill` refuses, by name, and what it never removes."""

import json
from pathlib import Path

import pytest
import torch

from folders import edit_json, save
from models import tiny_model
from sequoia_cli.distill import writing
from sequoia_cli.distill.corpus import write_lock
from sequoia_cli.distill.output_folder import OutputFolder
from sequoia_cli.engine.loading import tensors
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import SequoiaError
from tiny_tokenizers import CHAT, byte_level

SMALL = (
    *("--dtype", "float32", "--rows", "4", "--length", "32", "--tokens", "400", "--epochs", "1"),
    *("--batch-tokens", "100", "--max-new-tokens", "8"),
)


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Targets with a byte-level tokenizer: one good, one that cannot verify trees, some that cannot begin."""
    place = tmp_path_factory.mktemp("targets")
    raising = "{{ raise_exception('no chats today') }}"
    made = {
        "good": ("llama", CHAT),
        "linear": ("mamba", None),
        "mute": ("llama", None),
        "raising": ("llama", raising),
    }
    for name, (family, template) in made.items():
        tokenizer = byte_level(chat_template=template)
        if name == "mute":
            tokenizer.bos_token = tokenizer.eos_token = None
        save(place / name, family, len(tokenizer), tokenizer)
        edit_json(place / name / "generation_config.json", eos_token_id=None)
    return {name: str(place / name) for name in made}


@pytest.fixture
def distill(run, targets):
    def command(*arguments, target="good"):
        return run("distill", "--target", targets[target], *SMALL, *arguments)

    return command


@pytest.fixture
def no_models(monkeypatch):
    """Fails a test that gets as far as loading models."""
    from sequoia_cli.measure import session

    def opened(*arguments, **options):
        raise AssertionError("models were loaded before the checks were done")

    monkeypatch.setattr(session, "open_session", opened)


@pytest.fixture
def no_texts(monkeypatch):
    """Fails a test that gets as far as writing texts."""

    def written(*arguments, **options):
        raise AssertionError("texts were written before the checks were done")

    monkeypatch.setattr(LanguageModel, "forward_rows", written)


def contents(folder):
    """Every file below a folder, with what it holds."""
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


# --- options, before models are loaded


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--kind", "tree"], "--kind is 'tree'; expected feature or independent"),
        (["--layers", "0"], "--layers is 0; at least 1 is needed"),
        (["--layers", "some"], "Invalid value for '--layers'"),
        (["--count", "0"], "--count is 0; at least 1 is needed"),
        (["--tokens", "0"], "--tokens is 0; at least 1 is needed"),
        (["--limit", "0"], "--limit is 0; at least 1 is needed"),
        (["--max-new-tokens", "1"], "--max-new-tokens is 1; at least 2 is needed"),
        (["--length", "15"], "--length is 15; at least 16 is needed"),
        (["--rows", "0"], "--rows is 0; at least 1 is needed"),
        (["--forward", "quick"], "--forward is 'quick'; expected plain or fast or compiled"),
        (["--epochs", "0"], "--epochs is 0; at least 1 is needed"),
        (["--batch-tokens", "0"], "--batch-tokens is 0; at least 1 is needed"),
        (["--passes", "0"], "--passes is 0; at least 1 is needed"),
        (["--learning-rate", "0"], "--learning-rate is 0.0; expected a number above 0 and below 1"),
        (["--learning-rate", "nan"], "--learning-rate is nan"),
        (["-T", "0.6", "-T", "-1"], "--temperature is -1.0; expected a number from 0 (greedy) up"),
        (["-T", "nan"], "--temperature is nan"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--config", "c.json"], "--config is for independent drafts; add --kind independent"),
        (["--kind", "independent", "--config", "c.json", "--layers", "2"], "leave --layers out"),
        (["--kind", "independent", "--config", "none"], "--config none cannot be used"),
        (["--start", "d", "--layers", "2"], "--start trains an existing draft"),
        (["--start", "d", "--count", "2"], "--start trains one draft"),
        (["--dataset", "none.jsonl"], "none.jsonl does not exist"),
        (["--dataset", "empty.txt"], "empty.txt holds no prompts"),
        (["-o", "-"], "a draft is a folder, which stdout cannot take"),
        (["-o", "."], ". cannot be a draft's folder"),
        (["-o", "empty.txt"], "empty.txt is a file; a draft is a folder"),
        (["-o", "empty.txt/made"], "cannot be written"),
        (["-o", "made", "--corpus", "made"], "are one, or one lies in the other"),
        (["-o", "made", "--corpus", "./made/texts"], "are one, or one lies in the other"),
        (["-o", "texts/made", "--corpus", "drafts/../texts"], "are one, or one lies in the other"),
        (["-o", "made", "--corpus", "made.partial"], "made.partial, which is removed once the draft is"),
        (["-o", "made", "--corpus", "made.partial/corpus"], "made.partial, which is removed once the draft"),
        (["--corpus", "drafts/good-draft/texts"], "are one, or one lies in the other"),
    ],
)
def test_a_bad_option_is_refused_by_name(distill, empty_place, no_models, arguments, line):
    (empty_place / "empty.txt").write_text("")
    code, out, err = distill(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert [path.name for path in empty_place.iterdir() if path.name != "drafts"] == ["empty.txt"]
    assert contents(empty_place / "drafts") == {}


# --- folders that are there already


def drafts_in(place, *names):
    for name in names:
        (place / name).mkdir(parents=True)
        (place / name / "distillation.json").write_text("{}")
        (place / name / "model.safetensors").write_bytes(b"mine")


@pytest.mark.parametrize("arguments", [[], ["--force"]])
def test_a_folder_that_is_no_draft_is_never_replaced(distill, empty_place, no_models, arguments):
    (empty_place / "mine").mkdir()
    (empty_place / "mine" / "thesis.tex").write_text("mine")
    before = contents(".")
    code, out, err = distill("-o", "mine", *arguments)
    assert (code, out) == (2, "")
    assert ("--force does not remove it" if arguments else "mine exists") in err
    assert contents(".") == before


@pytest.mark.parametrize("names", [("one", "2"), ("1", "2", "2/3")])
def test_a_folder_that_holds_drafts_beside_other_things_is_never_replaced(
    distill, empty_place, no_models, names
):
    drafts_in(empty_place / "mine", *names)
    if "1" in names:
        (empty_place / "mine" / "2" / "distillation.json").unlink()
    before = contents(".")
    code, _, err = distill("-o", "mine", "--force")
    assert code == 2
    assert "--force does not remove it" in err
    assert contents(".") == before


def test_a_draft_is_replaced_by_force_alone(distill, empty_place, no_models):
    drafts_in(empty_place, "made")
    before = contents(".")
    code, _, err = distill("-o", "made")
    assert code == 2
    assert "made exists" in err
    assert "--force" in err
    assert contents(".") == before


def test_an_old_draft_stays_until_the_new_one_is_finished(distill, empty_place, monkeypatch):
    drafts_in(empty_place, "made")
    before = contents("made")

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write", interrupted)
    assert distill("-o", "made", "--force")[0] == 130
    assert contents("made") == before


@pytest.mark.parametrize("names", [[], ["made"], ["made/1", "made/2"]])
def test_nothing_is_removed_that_was_not_there_as_a_draft_from_the_start(empty_place, names):
    drafts_in(empty_place, *names)
    folder = OutputFolder(Path("made"), force=True)
    folder.begin()
    (folder.work / "draft-1").mkdir()
    (empty_place / "made").mkdir(exist_ok=True)
    (empty_place / "made" / "thesis.tex").write_text("mine")
    before = contents(".")
    with pytest.raises(SequoiaError, match=r"made/thesis\.tex was put there while") as caught:
        folder.publish({"": folder.work / "draft-1"})
    assert "made.partial" in caught.value.hint
    assert contents(".") == before
    (empty_place / "made" / "thesis.tex").unlink()
    folder.publish({"": folder.work / "draft-1"})
    folder.release()
    assert [path.name for path in empty_place.iterdir()] == ["made"]
    assert contents("made") == {}


# --- targets, tokenizers and drafts, before texts are written


@pytest.mark.parametrize(
    ("target", "arguments", "line"),
    [
        ("linear", [], "models of the family 'mamba' cannot verify a token tree"),
        ("mute", [], "neither a chat template nor a start token"),
        ("raising", [], "the chat template of this tokenizer refuses a chat: no chats today"),
        ("good", ["--draft-vocab", "1"], "--draft-vocab is '1'; expected 2 to 300"),
        ("good", ["--draft-vocab", "301"], "--draft-vocab is '301'; expected 2 to 300"),
        ("good", ["--draft-vocab", "some"], "--draft-vocab is 'some'; expected 2 to 300"),
        ("good", ["--kind", "independent"], "a draft of 3 layers is no smaller than its target, which has 2"),
        ("good", ["--kind", "independent", "--config", "wide"], "the target has 300 ids and width 32"),
        ("good", ["--start", "./mine"], "has no config.json"),
        ("good", ["--corpus", "mine"], "mine exists and is no corpus"),
    ],
)
def test_what_cannot_be_made_is_refused_before_any_text_is_written(
    distill, empty_place, no_texts, target, arguments, line
):
    tiny_model("llama", 300, hidden_size=48).config.save_pretrained(empty_place / "wide")
    (empty_place / "mine").mkdir()
    (empty_place / "mine" / "thesis.tex").write_text("mine")
    code, out, err = distill("-o", "made", *arguments, target=target)
    assert (code, out) == (2, "")
    assert line in err
    # Nothing is left that the next command, with other options, could stumble over.
    assert {path.name for path in empty_place.iterdir()} <= {"mine", "wide", "made.partial"}
    assert contents(empty_place / "made.partial") == {}


@pytest.mark.parametrize("target", ["mute", "raising"])
def test_a_target_that_cannot_begin_is_refused_with_a_way_out(distill, target, no_texts):
    assert "give prompts with --dataset" in distill("-o", "made", target=target)[2]


@pytest.mark.parametrize(
    ("lines", "length", "line", "hint"),
    [
        (["Hello", "the", "late"], 64, "3 different prompts are too few", "more prompts"),
        (["Hello", "the", "late", "the", "Hello"], 64, "3 different prompts are too few", "more prompts"),
        (["Hello " * 9] * 5, 16, "leaves room for an answer in a text of 16 tokens", "longer --length"),
        (["Hello " * 20, "the", "a", "we"], 32, "3 different prompts are too few", "more prompts"),
    ],
)
def test_prompts_that_cannot_be_learned_from_are_refused_before_any_text_is_written(
    distill, empty_place, no_texts, lines, length, line, hint
):
    (empty_place / "prompts.txt").write_text("\n".join(lines))
    code, out, err = distill("-o", "made", "--dataset", "prompts.txt", "--length", str(length))
    assert (code, out) == (2, "")
    assert line in err
    assert hint in err
    assert [path.name for path in empty_place.iterdir()] == ["prompts.txt"]


@pytest.fixture
def stopped(monkeypatch):
    """Interrupts a command where it would write texts."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write", interrupted)


def test_prompts_without_room_for_an_answer_are_counted_and_left_out(distill, empty_place, stopped):
    (empty_place / "prompts.txt").write_text("\n".join(["Hello", "the", "late", "we", "Hello " * 20]))
    code, _, err = distill("-o", "made", "--dataset", "prompts.txt", "--length", "32")
    assert code == 130
    assert "1 of 5 prompts leave no room for an answer in 32 tokens and are left out" in err
    assert "--length" in err


def test_texts_that_another_command_writes_are_left_to_it(distill, no_texts):
    with write_lock(Path("texts")):
        code, out, err = distill("-o", "made", "--corpus", "texts")
    assert (code, out) == (2, "")
    assert "texts is being written to by another command" in err
    assert "another folder with --corpus" in err
    assert not Path("texts").exists()


def test_prompts_longer_than_the_context_are_refused_or_left_out_by_name(distill, empty_place, stopped):
    (empty_place / "prompts.txt").write_text("\n".join(["Hello", "the", "late", "we", "Hello " * 2000]))
    options = ("-o", "made", "--dataset", "prompts.txt", "--length", "32")
    code, _, err = distill(*options)
    assert code == 2
    assert "prompt 5: it has" in err
    assert "--skip-bad skips such prompts" in err
    code, _, err = distill(*options, "--skip-bad")
    assert code == 130
    assert "left out 1 bad prompts: prompt 5: it has" in err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--column", "text", "--limit", "3"],
            "there are no prompts; without effect: --column, --limit",
        ),
        (["--kind", "independent", "--layers", "1", "--passes", "2"], "own states; without effect: --passes"),
        (
            ["--start", "d", "--kind", "independent"],
            "kind of its draft; without effect: --kind",
        ),
        (
            ["--start", "d", "--epochs", "0", "--passes", "3"],
            "trains nothing; without effect: --batch-tokens, --passes",
        ),
    ],
)
def test_options_that_change_nothing_are_named(distill, stopped, arguments, line):
    assert line in distill("-o", "made", *arguments)[2]


def test_options_that_were_not_given_or_change_something_are_not_named(distill, stopped):
    assert "without effect" not in distill("-o", "made", "--passes", "2")[2]
    assert "without effect" not in distill("-o", "made", "--kind", "independent", "--layers", "1")[2]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried"),
        RuntimeError("can't allocate memory"),
    ],
)
def test_running_out_of_memory_names_what_needs_less_and_a_retry_with_that_resumes(
    distill, monkeypatch, error
):
    def full(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", full)
        code, out, err = distill("-o", "made", "--corpus", "texts")
    assert (code, out) == (1, "")
    assert "sequoia: out of memory" in err
    assert all(flag in err for flag in ("--rows", "--length", "--batch-tokens"))
    assert "max-new-tokens" not in err
    rows, right = [], writing.write

    def seen(target, scripts, count, *arguments):
        rows.append(count)
        right(target, scripts, count, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "write", seen)
    assert distill("-o", "made", "--corpus", "texts", "--rows", "2", "--length", "24")[0] == 130
    assert rows == [2]


def test_too_few_texts_are_refused_with_a_way_out(distill):
    code, out, err = distill("-o", "made", "--rows", "1", "--tokens", "16", "--length", "16")
    assert (code, out) == (2, "")
    assert "are too few to train on" in err
    assert "more --tokens" in err


def test_a_corpus_of_other_conditions_is_refused_by_what_differs(distill, empty_place, no_texts):
    (empty_place / "texts").mkdir()
    (empty_place / "texts" / "corpus.json").write_text(json.dumps({"seed": 3}))
    code, _, err = distill("-o", "made", "--corpus", "texts")
    assert code == 2
    assert "made under other conditions" in err
    assert "seed 3 there, 0 now" in err


def test_a_disk_that_is_full_at_the_end_keeps_the_training(distill, empty_place, monkeypatch):
    right = tensors.save_file

    def full(contents, place, **options):
        if place.name.startswith(".model"):  # the draft; the training before it still fitted
            raise OSError(28, "No space left on device")
        right(contents, place, **options)

    monkeypatch.setattr(tensors, "save_file", full)
    from sequoia_cli.distill import prediction

    monkeypatch.setattr(prediction, "_ROUNDS", 1)
    monkeypatch.setattr(prediction, "PROMPTS", 1)
    code, out, err = distill("-o", "made", "--length", "32")
    assert (code, out) == (1, "")
    assert "model.safetensors could not be written: No space left on device" in err
    assert "unfinished work is kept in made.partial" in err
    assert (empty_place / "made.partial" / "training-1.safetensors").exists()


def test_a_folder_that_another_command_is_to_write_is_refused(distill, empty_place, no_texts):
    from sequoia_cli.distill.output_folder import OutputFolder

    first = OutputFolder(empty_place / "made", force=False)
    code, out, err = distill("-o", "made", "--force")
    assert (code, out) == (2, "")
    assert "made is being written by another command" in err
    first.release()
