"""`sequoia distill` as a user meets it: a folder that every other command takes, and steps that are kept."""

import json
from pathlib import Path

import pytest

from folders import edit_json
from models import tiny_model
from sequoia_cli.cli import distill_outlook
from sequoia_cli.distill import training as training_module
from sequoia_cli.distill import writing
from tiny_tokenizers import CHAT_WITHOUT_BOS, byte_level

SMALL = (
    *("--dtype", "float32", "--rows", "8", "--length", "48", "--tokens", "1500", "--epochs", "1"),
    *("--batch-tokens", "400", "--max-new-tokens", "16", "--layers", "1"),
)
TIMES = ("--tokens", "1,2,4", "--repeats", "1", "--context", "16")
DRAFT_FILES = {"config.json", "model.safetensors", "distillation.json"}


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """A Qwen2 chat model and a GPT-2 base model, with a byte-level tokenizer."""
    place, tokenizer = tmp_path_factory.mktemp("targets"), byte_level()
    made = {"chat": ("qwen2", CHAT_WITHOUT_BOS), "base": ("gpt2", None)}
    for name, (family, template) in made.items():
        tiny_model(family, len(tokenizer), initializer_range=0.1).save_pretrained(place / name)
        edit_json(place / name / "generation_config.json", eos_token_id=None)
        tokenizer.chat_template = template
        tokenizer.save_pretrained(place / name)
    return {name: str(place / name) for name in made}


@pytest.fixture
def distill(run, targets, monkeypatch):
    """Run `sequoia distill` on the chat model, with a short look at what comes of it."""
    monkeypatch.setattr(distill_outlook, "_ROUNDS", 1)
    monkeypatch.setattr(distill_outlook, "PROMPTS", 2)
    monkeypatch.setattr(distill_outlook, "NEW_TOKENS", 8)
    monkeypatch.setattr(distill_outlook, "_CONTEXT", 16)

    def command(*arguments, small=SMALL, target="chat"):
        return run("distill", "--target", targets[target], *small, *arguments)

    return command


@pytest.fixture
def done(distill):
    """The same, and it has to succeed: what it said."""

    def command(*arguments, **options):
        code, out, err = distill(*arguments, **options)
        assert code == 0, err
        assert out == "" or "--json" in arguments
        return err

    return command


def files(folder):
    return {path.name for path in Path(folder).iterdir()}


def ids_of(run, target, *arguments):
    """New ids of a greedy text of the target."""
    code, out, err = run(
        *("generate", "--target", target, "--dtype", "float32", "--prompt", "Hello", "-n", "24", "--json"),
        *arguments,
    )
    assert code == 0, err
    return json.loads(out)["token_ids"]


def without_weights(option):
    """SMALL without an option and its value."""
    at = SMALL.index(option)
    return (*SMALL[:at], *SMALL[at + 2 :])


# --- what it makes


@pytest.mark.parametrize("kind", ["feature", "independent"])
@pytest.mark.parametrize("target", ["chat", "base"])
def test_the_folder_is_a_draft_for_every_other_command(done, run, targets, trees, empty_place, target, kind):
    err = done("-o", "made", "--kind", kind, target=target)
    assert "wrote made" in err
    assert "held-out texts, the target's choice by rank" in err
    assert files("made") >= DRAFT_FILES
    assert files(".") == {"made"}
    draft = ("--draft", "made")
    plain = ids_of(run, targets[target], "--plain")
    assert ids_of(run, targets[target], *draft, "--tree", trees["tree"]) == plain
    pair = ("--target", targets[target], *draft, "--dtype", "float32")
    (empty_place / "prompts.txt").write_text("Hello\nlate we are\n")
    small = ("--max-new-tokens", "8", "--ranks", "2", "--depths", "2", "-o", "rates.yaml")
    code, _, err = run("acceptance", *pair, "--dataset", "prompts.txt", *small)
    assert code == 0, err
    code, _, err = run("profile", *pair, "-o", "profile.yaml", *TIMES)
    assert code in (0, 3), err  # 3: unsteady timings
    assert (empty_place / "profile.yaml").exists()


def test_its_record_says_how_it_came_to_be_and_what_it_is_worth(done, targets):
    done("-o", "made", "--seed", str((1 << 64) - 1))
    data = json.loads(Path("made/distillation.json").read_text())
    assert data["schema"] == "sequoia-distillation/1"
    assert {"command", "version", "created", "packages"} <= set(data)
    assert data["conditions"]["target"] == targets["chat"]
    assert f"--seed {(1 << 64) - 1}" in data["command"]
    assert data["corpus"]["tokens"] >= 1500
    assert data["corpus"]["digest"].startswith("sha256:")
    assert data["steps"] == data["held_out"][-1]["step"] > 0
    assert data["trained_weights"] > 0
    assert {"p", "draft_seconds", "target_seconds", "tree", "tokens_per_step"} <= set(data["outlook"])
    assert [entry["draft_vocabulary"] for entry in data["vocabularies"]] == [300]


def test_json_prints_one_document_which_is_the_record(done, distill):
    code, out, _ = distill("-o", "made", "--json", "--quiet")
    assert code == 0
    assert json.loads(out) == json.loads(Path("made/distillation.json").read_text())


def test_quiet_says_nothing(distill):
    assert distill("-o", "made", "--quiet") == (0, "", "")


def test_the_default_place_is_named_after_the_target(done, empty_place):
    done()
    assert files(empty_place / "drafts") == {"chat-draft"}


def test_prompts_of_a_dataset_are_answered(done, empty_place):
    (empty_place / "prompts.txt").write_text("Hello\nlate we are\nit's a fine day\nthe\n")
    done("-o", "made", "--dataset", "prompts.txt", "--corpus", "texts")
    assert json.loads((empty_place / "texts" / "corpus.json").read_text())["prompts"].startswith("sha256:")


def test_several_drafts_are_made_side_by_side_and_work_together(distill, done, run, targets, trees):
    code, out, err = distill("-o", "made", "--count", "2", "--json")
    assert code == 0, err
    assert files("made") == {"1", "2"}
    first, second = (json.loads(Path(f"made/{n}/distillation.json").read_text()) for n in (1, 2))
    assert json.loads(out) == {"drafts": [first, second]}
    assert first["corpus"] == second["corpus"]
    assert Path("made/1/model.safetensors").read_bytes() != Path("made/2/model.safetensors").read_bytes()
    both = ("--draft", "made/1", "--draft", "made/2", "--tree", trees["tree"])
    assert ids_of(run, targets["chat"], *both) == ids_of(run, targets["chat"], "--plain")
    # They are replaced together.
    done("-o", "made", "--count", "2", "--force")
    assert files("made") == {"1", "2"}


@pytest.mark.parametrize("kind", ["feature", "independent"])
def test_a_smaller_vocabulary_is_kept_and_a_finished_draft_can_be_cut(done, run, targets, trees, kind):
    done("-o", "small", "--kind", kind, "--draft-vocab", "64", "--corpus", "texts")
    kept = json.loads(Path("small/draft_vocabulary.json").read_text())
    assert len(kept["ids"]) == 64
    assert 0.2 < kept["coverage"] <= 1
    plain = ids_of(run, targets["chat"], "--plain")
    tree = ("--tree", trees["tree"])
    assert ids_of(run, targets["chat"], "--draft", "small", *tree) == plain

    err = done("-o", "whole", "--kind", kind, "--corpus", "texts")
    assert "texts has 1,536 tokens already" in err
    assert "draft_vocabulary.json" not in files("whole")
    options = ("--start", "whole", "--draft-vocab", "48", "--corpus", "texts")
    no_layers = without_weights("--layers")
    done("-o", "cut", *options, "--epochs", "0", small=no_layers)
    assert Path("cut/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert len(json.loads(Path("cut/draft_vocabulary.json").read_text())["ids"]) == 48
    assert ids_of(run, targets["chat"], "--draft", "cut", *tree) == plain
    done("-o", "further", *options, small=no_layers)
    assert Path("further/model.safetensors").read_bytes() != Path("whole/model.safetensors").read_bytes()


def test_an_independent_draft_may_have_a_config_of_its_own(done, run, targets, trees, empty_place):
    config = tiny_model("llama", 300, num_hidden_layers=1).config
    config.save_pretrained(empty_place / "shape")
    done("-o", "made", "--kind", "independent", "--config", "shape", small=without_weights("--layers"))
    assert json.loads(Path("made/config.json").read_text())["model_type"] == "llama"
    draft = ("--draft", "made", "--tree", trees["tree"])
    assert ids_of(run, targets["chat"], *draft) == ids_of(run, targets["chat"], "--plain")


# --- interrupts


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


def test_interrupted_while_writing_it_goes_on_with_what_was_written(distill, done, monkeypatch):
    right, calls = writing.write, []

    def interrupting(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return right(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", interrupting)
        code, out, err = distill("-o", "made")
    assert (code, out) == (130, "")
    assert "what was done is kept in made.partial; the same command goes on from there" in err
    assert not Path("made").exists()
    err = done("-o", "made")
    assert "going on from 768 tokens in made.partial/corpus" in err
    assert files(".") == {"made"}
    assert json.loads(Path("made/distillation.json").read_text())["corpus"]["tokens"] == 1536


def test_interrupted_while_training_it_goes_on_to_the_same_draft(distill, done, monkeypatch):
    done("-o", "whole", "--epochs", "2")
    right, calls = training_module.divergence, []

    def interrupting(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return right(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training_module, "divergence", interrupting)
        code, out, err = distill("-o", "made", "--epochs", "2")
    assert (code, out) == (130, "")
    assert "what was done is kept in made.partial" in err
    err = done("-o", "made", "--epochs", "2")
    assert "made.partial/corpus has 1,536 tokens already" in err
    assert "going on from step 3 of" in err
    assert weights("made") == weights("whole")
    assert files(".") == {"whole", "made"}
