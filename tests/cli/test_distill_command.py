"""`sequoia distill` as a user meets it: a folder that every other command takes."""

import json
from pathlib import Path

import pytest

from distilling import SMALL
from exhaustive import exhaustive, few
from folders import save
from models import tiny_model
from tiny_tokenizers import byte_level

TIMES = ("--tokens", "1,2,4", "--repeats", "1", "--context", "16")
DRAFT_FILES = {"config.json", "model.safetensors", "distillation.json"}


def files(folder):
    return {path.name for path in Path(folder).iterdir()}


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


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
@pytest.mark.parametrize("target", few(["chat", "base"], "chat"))
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


def test_its_figures_say_what_they_are_true_of_and_how_much_was_counted(done):
    err = done("-o", "made")
    assert (
        "at temperature 0, on 2 held-out prompts with up to 8 new tokens; times after 16 tokens, fast " in err
    )
    assert "trees of up to 32 nodes:" in err
    data = json.loads(Path("made/distillation.json").read_text())
    outlook, last = data["outlook"], data["held_out"][-1]
    assert outlook["conditions"] == {
        "estimator": "teacher-forced",
        "forward": "fast",  # a model this small is not worth compiling
        "temperature": 0.0,
        "prompts": 2,
        "max_new_tokens": 8,
        "context": 16,
        "budget": 32,
    }
    assert len(outlook["trials"]) == len(outlook["p"])
    assert 8 <= outlook["trials"][0] <= 2 * 8
    assert len(last["trials"]) == len(last["p"]) == 3
    # A level further down begins one token later in every text.
    assert last["trials"] == sorted(last["trials"], reverse=True)
    assert "choice by rank: level 1 0." in err
    assert f" of {last['trials'][0]:,}; level 2 " in err


@pytest.fixture
def ran(monkeypatch):
    """The models that wrote texts, and those that the outlook timed and measured, in order."""
    from sequoia_cli.distill import prediction, writing

    seen = []
    write, look = writing.write_corpus, prediction.predict

    def writes(target, *arguments, **options):
        seen.append(("texts", target.model))
        return write(target, *arguments, **options)

    def looks(target, drafts, *arguments):
        seen.append(("outlook", target.model))
        for draft in drafts.values():
            seen.append(("outlook", draft.model if hasattr(draft, "embedding") else draft.model.model))
        return look(target, drafts, *arguments)

    monkeypatch.setattr(writing, "write_corpus", writes)
    monkeypatch.setattr(prediction, "predict", looks)
    return seen


@pytest.mark.parametrize("kind", ["feature", "independent"])
def test_texts_are_written_and_the_draft_is_measured_with_the_forward_that_generate_uses(done, ran, kind):
    """Unless told otherwise; and the plain forward, its slow twin, measures the same rates."""
    from sequoia_cli.engine.fast.block import FastBlock

    rates = {}
    for forward in ((), ("--forward", "plain")):
        ran.clear()
        texts = ("--corpus", "texts")  # written by the first command alone
        err = done("-o", f"made{len(rates)}", "--kind", kind, *texts, *forward)
        fast = [any(isinstance(part, FastBlock) for part in model.modules()) for _, model in ran]
        assert [stage for stage, _ in ran] == ["outlook"] * 2 if forward else ["texts", "outlook", "outlook"]
        assert fast == [not forward] * len(ran), err
        outlook = json.loads(Path(f"made{len(rates)}/distillation.json").read_text())["outlook"]
        rates[outlook["conditions"]["forward"]] = outlook["p"]
    assert set(rates) == {"fast", "plain"}
    assert rates["fast"] == [pytest.approx(row, abs=1e-3) for row in rates["plain"]]


def test_json_prints_one_document_which_is_the_record(done, distill):
    code, out, _ = distill("-o", "made", "--json", "--quiet")
    assert code == 0
    assert json.loads(out) == json.loads(Path("made/distillation.json").read_text())


@exhaustive
def test_quiet_says_nothing(distill):
    assert distill("-o", "made", "--quiet") == (0, "", "")


@exhaustive
def test_the_default_place_is_named_after_the_target(done, empty_place):
    done()
    assert files(empty_place / "drafts") == {"chat-draft"}


def test_prompts_of_a_dataset_are_answered(done, empty_place):
    (empty_place / "prompts.txt").write_text("Hello\nlate we are\nit's a fine day\nthe\n")
    done("-o", "made", "--dataset", "prompts.txt", "--corpus", "texts")
    assert json.loads((empty_place / "texts" / "corpus.json").read_text())["prompts"].startswith("sha256:")


@exhaustive
def test_several_drafts_are_made_side_by_side_and_work_together(distill, done, run, targets, trees):
    well = ("--epochs", "8", "--learning-rate", "0.02")  # so that the first one gets some right
    code, out, err = distill("-o", "made", "--count", "2", *well, "--json")
    assert code == 0, err
    assert files("made") == {"1", "2"}
    first, second = (json.loads(Path(f"made/{n}/distillation.json").read_text()) for n in (1, 2))
    assert json.loads(out) == {"drafts": [first, second]}
    assert first["corpus"] == second["corpus"]
    assert Path("made/1/model.safetensors").read_bytes() != Path("made/2/model.safetensors").read_bytes()
    # Of the second one it is said that only what the first got wrong counts.
    assert "held-out texts, the target's choice by rank" in err
    assert "held-out texts where the drafts before are wrong, the target's choice by rank" in err
    (whole,) = {entry["trials"][0] for entry in first["held_out"]}
    (left,) = {entry["trials"][0] for entry in second["held_out_missed_before"]}
    assert left in {round(whole * (1 - entry["p"][0][0])) for entry in first["held_out"]}
    assert left < whole
    assert "held_out_missed_before" not in first
    assert "held_out" not in second
    both = ("--draft", "made/1", "--draft", "made/2", "--tree", trees["tree"])
    assert ids_of(run, targets["chat"], *both) == ids_of(run, targets["chat"], "--plain")
    # They are replaced together.
    done("-o", "made", "--count", "2", "--force")
    assert files("made") == {"1", "2"}


@pytest.mark.parametrize("kind", few(["feature", "independent"], "feature"))
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


@exhaustive
@pytest.mark.parametrize("kind", few(["feature", "independent"], "independent"))
def test_a_draft_that_was_cut_is_trained_further_and_cut_again(done, run, targets, trees, kind):
    done("-o", "small", "--kind", kind, "--draft-vocab", "64", "--corpus", "texts")
    plain = ids_of(run, targets["chat"], "--plain")
    no_layers = without_weights("--layers")
    for name, vocabulary, ids in (("fewer", "48", 48), ("more", "200", 200), ("all", "all", None)):
        done(
            "-o", name, "--start", "small", "--draft-vocab", vocabulary, "--corpus", "texts", small=no_layers
        )
        assert weights(name) != weights("small")
        noted = Path(name) / "draft_vocabulary.json"
        assert (len(json.loads(noted.read_text())["ids"]) if noted.exists() else None) == ids
        draft = ("--draft", name, "--tree", trees["tree"])
        assert ids_of(run, targets["chat"], *draft) == plain


@pytest.mark.parametrize("rows", few([280, 320], 320))
def test_a_draft_whose_vocabulary_is_padded_otherwise_is_gone_on_with(
    done, run, targets, trees, empty_place, rows
):
    save(empty_place / "other", "llama", rows, byte_level(), num_hidden_layers=1)
    plain = ids_of(run, targets["chat"], "--plain")
    common, no_layers = min(rows, 300), without_weights("--layers")
    for name, vocabulary, ids in (("whole", "all", common), ("cut", "64", 64)):
        done(
            "-o", name, "--start", "other", "--draft-vocab", vocabulary, "--corpus", "texts", small=no_layers
        )
        record = json.loads((empty_place / name / "distillation.json").read_text())
        assert [entry["draft_vocabulary"] for entry in record["vocabularies"]] == [ids]
        assert json.loads((empty_place / name / "config.json").read_text())["vocab_size"] == rows
        assert ((empty_place / name / "draft_vocabulary.json").exists()) == (name == "cut")
        draft = ("--draft", name, "--tree", trees["tree"])
        assert ids_of(run, targets["chat"], *draft) == plain


@exhaustive
@pytest.mark.parametrize("kind", ["feature", "independent"])
def test_a_target_in_float16_gets_a_draft_too(done, run, targets, trees, kind):
    small = ("--dtype", "float16", *without_weights("--dtype"))
    done("-o", "made", "--kind", kind, "--draft-vocab", "64", small=small)
    record = json.loads(Path("made/distillation.json").read_text())
    assert record["conditions"]["dtype"] == "float16"
    draft = ("--draft", "made", "--tree", trees["tree"])
    assert ids_of(run, targets["chat"], *draft) == ids_of(run, targets["chat"], "--plain")


@exhaustive
def test_an_independent_draft_may_have_a_config_of_its_own(done, run, targets, trees, empty_place):
    config = tiny_model("llama", 300, num_hidden_layers=1).config
    config.save_pretrained(empty_place / "shape")
    done("-o", "made", "--kind", "independent", "--config", "shape", small=without_weights("--layers"))
    assert json.loads(Path("made/config.json").read_text())["model_type"] == "llama"
    draft = ("--draft", "made", "--tree", trees["tree"])
    assert ids_of(run, targets["chat"], *draft) == ids_of(run, targets["chat"], "--plain")
