"""Commands run in this process, in an empty place, on tiny models saved once."""

import json
import os
import sys
from pathlib import Path

import pytest

from sequoia_cli.cli.app import main


@pytest.fixture(autouse=True)
def empty_place(tmp_path, monkeypatch):
    """An empty current directory, and a cache in which nothing was measured."""
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run `sequoia` with these arguments: exit code, stdout, stderr. Stdin is empty unless given."""

    def sequoia(*arguments, stdin=None):
        source = Path(os.devnull)
        if stdin is not None:
            source = tmp_path / "stdin"
            source.write_bytes(stdin if isinstance(stdin, bytes) else stdin.encode())
        monkeypatch.setattr(sys, "argv", ["sequoia", *map(str, arguments)])
        with source.open(encoding="utf-8") as text, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", text)
            with pytest.raises(SystemExit) as end:
                main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return end.value.code or 0, out, err

    return sequoia


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of tiny models with a byte-level tokenizer: a target, drafts that often agree, a chat model."""
    from folders import edit_json
    from models import near, tiny_model
    from tiny_tokenizers import CHAT_WITHOUT_BOS, byte_level

    place = tmp_path_factory.mktemp("models")
    tokenizer = byte_level()
    vocabulary = len(tokenizer)
    target = tiny_model("llama", vocabulary, initializer_range=0.1)
    made = {
        "target": target,
        "draft": near(target, 0.01),
        "chat": target,
        "short": tiny_model("gpt2", vocabulary, n_positions=32),
        "wide": tiny_model("llama", vocabulary + 12, seed=3),
    }
    for name, model in made.items():
        model.save_pretrained(place / name)
        edit_json(place / name / "generation_config.json", eos_token_id=None)
        tokenizer.chat_template = CHAT_WITHOUT_BOS if name == "chat" else None
        tokenizer.save_pretrained(place / name)
    return {name: str(place / name) for name in made}


@pytest.fixture
def pair(models):
    """The options that name the tiny pair, in the dtype in which texts have to agree id for id."""
    return ["--target", models["target"], "--draft", models["draft"], "--dtype", "float32"]


@pytest.fixture
def generate(run, pair, trees):
    """Run `sequoia generate` on the tiny pair and tree; options given replace these."""

    def command(*arguments, **options):
        # Several drafts may be given, so that a second --draft alone would not replace the first.
        target, draft, dtype = pair[:2], pair[2:4], pair[4:]
        named = [*target, *([] if "--draft" in arguments else draft), *dtype]
        return run("generate", *named, "--tree", trees["tree"], *arguments, **options)

    return command


@pytest.fixture
def document(generate):
    """The JSON document of a `sequoia generate --json` that has to succeed."""

    def command(*arguments, **options):
        code, out, err = generate("--json", *arguments, **options)
        assert code == 0, err
        return json.loads(out)

    return command


@pytest.fixture(scope="session")
def trees(tmp_path_factory):
    """Tree files: a tree of nine nodes in four layers, and the root alone."""
    place = tmp_path_factory.mktemp("trees")
    found = {}
    for name, parents in {"tree": [-1, 0, 0, 0, 1, 1, 2, 4, 5], "root": [-1]}.items():
        found[name] = str(place / f"{name}.json")
        Path(found[name]).write_text(json.dumps({"schema": "sequoia-tree/1", "parents": parents}))
    return found


@pytest.fixture(scope="session")
def targets(tmp_path_factory):
    """Targets to make drafts for: a Qwen2 chat model and a GPT-2 base model, with a byte-level tokenizer."""
    from folders import edit_json
    from models import tiny_model
    from tiny_tokenizers import CHAT_WITHOUT_BOS, byte_level

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
    from distilling import SMALL
    from sequoia_cli.distill import prediction

    monkeypatch.setattr(prediction, "_ROUNDS", 1)
    monkeypatch.setattr(prediction, "PROMPTS", 2)
    monkeypatch.setattr(prediction, "NEW_TOKENS", 8)
    monkeypatch.setattr(prediction, "_CONTEXT", 16)

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
