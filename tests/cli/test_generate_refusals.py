"""What `sequoia generate` refuses: one clear line, nothing on stdout, before weights load where it can."""

import huggingface_hub.constants
import pytest
from transformers import PreTrainedModel

from folders import save
from models import tiny_tokenizer

PROMPT = ("-p", "Hello", "-n", "3")


@pytest.fixture
def no_weights(monkeypatch):
    """Fails a test that gets as far as loading weights."""

    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded before the checks were done")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", loaded)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-n", "-1"], "--max-new-tokens is -1; expected 0 or more"),
        (["-n", "many"], "Invalid value for '--max-new-tokens'"),
        (["-T", "-1"], "temperature is -1.0; expected a number from 0 (greedy) up"),
        (["-T", "nan"], "temperature is nan"),
        (["-T", "inf"], "temperature is inf"),
        (["-T", "abc"], "Invalid value for '--temperature'"),
        (["--top-p", "0"], "top-p is 0.0; expected a number above 0 and up to 1"),
        (["--top-p", "1.5"], "top-p is 1.5"),
        (["--top-p", "nan"], "top-p is nan"),
        (["--top-k", "-1"], "top-k is -1"),
        (["-T", "1", "--draft-temperature", "0"], "--draft-temperature is 0.0; expected a number above 0"),
        (["--draft-temperature", "nan"], "--draft-temperature is nan"),
        (["--draft-temperature", "-1"], "--draft-temperature is -1.0"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--seed", str(2**64)], "Invalid value for '--seed'"),
        (["--stop", ""], "--stop is empty"),
        (["--compare", "--plain"], "--compare runs plain decoding next to speculation"),
        (["--device", "cuda:0"], "device 'cuda:0' was asked for"),
        (["--device", "gpu"], "device 'gpu' is not known; expected auto, cpu, cuda or cuda:N"),
        (["--dtype", "nonsense"], "dtype 'nonsense' is not known; expected auto, float32"),
        (["--budget", "5"], "No such option: --budget"),
        (["--target", "./none"], "target './none' is a path that does not exist"),
        (["--draft", "a/b", "--draft", "c/d", "--draft", "a/b"], "--draft names a/b twice"),
        (["--draft", "/nowhere/draft"], "draft '/nowhere/draft' is a path that does not exist"),
    ],
)
def test_a_bad_option_is_refused_by_name_before_weights_are_loaded(
    generate, no_weights, monkeypatch, arguments, line
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = generate(*PROMPT, *arguments)
    assert (code, out) == (2, "")
    assert line in err


def test_tokenizers_that_differ_are_refused_before_weights_are_loaded(generate, no_weights, tmp_path):
    words = save(tmp_path / "words", vocab=300, tokenizer=tiny_tokenizer(300))
    code, out, err = generate(*PROMPT, "--draft", words)
    assert (code, out) == (2, "")
    assert f"and draft '{words}' have different tokenizers: id 0 is '<s>' in the target and 'w0'" in err


@pytest.mark.parametrize("family", ["mpt", "mamba"])
@pytest.mark.parametrize("role", ["--target", "--draft"])
def test_a_family_that_takes_no_tree_is_refused_by_name(generate, models, tmp_path, family, role):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models["target"])
    folder = save(tmp_path / "other", family, len(tokenizer), tokenizer)
    code, out, err = generate(*PROMPT, role, folder)
    assert (code, out) == (2, "")
    assert family in err
    assert f"'{folder}'" in err


@pytest.mark.parametrize("role", ["--target", "--draft"])
def test_a_hub_model_out_of_reach_is_one_line(generate, monkeypatch, role):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    code, out, err = generate(*PROMPT, role, "nobody/nothing")
    assert (code, out) == (1, "")
    assert f"{role[2:]} 'nobody/nothing' is no local folder and not in the Hugging Face cache" in err
    assert "HF_HUB_OFFLINE is set" in err


def test_a_tree_wider_than_the_vocabulary_is_refused(generate, empty_place):
    parents = str([-1, *[0] * 301])
    (empty_place / "wide.json").write_text(f'{{"schema": "sequoia-tree/1", "parents": {parents}}}')
    code, out, err = generate(*PROMPT, "--tree", "wide.json")
    assert (code, out) == (2, "")
    assert "the tree has 301 children at a node; the target has 300 ids" in err


def test_options_about_a_file_of_prompts_are_refused_without_one(generate):
    code, _, err = generate("--limit", "3", stdin="Hello")
    assert code == 2
    assert "stdin is one prompt; without effect: --limit" in err
    code, _, err = generate(*PROMPT, "--skip-bad")
    assert code == 2
    assert "--skip-bad is about rows of a file, and no --prompts is given" in err


def test_rows_that_cannot_be_used_are_refused_or_left_out_by_name(generate, empty_place):
    (empty_place / "rows.jsonl").write_text('{"prompt": "Hello"}\n{"prompt": 5}\n')
    options = ("--prompts", "rows.jsonl", "-n", "3")
    code, _, err = generate(*options)
    assert code == 2
    assert "rows.jsonl, line 2: 'prompt' is 5" in err
    code, out, err = generate(*options, "--skip-bad")
    assert code == 0
    assert out.count("\n") == 1
    assert "left out 1 bad rows: rows.jsonl, line 2" in err


def test_a_row_without_a_prompt_names_the_flag_for_its_key(generate, empty_place):
    (empty_place / "rows.jsonl").write_text('{"q": "Hello"}\n')
    code, _, err = generate("--prompts", "rows.jsonl")
    assert code == 2
    assert "found the keys q" in err
    assert "name the key with --column" in err


def test_a_prompt_that_is_too_long_is_refused_or_left_out_by_name(generate, models, trees, empty_place):
    (empty_place / "rows.jsonl").write_text('"Hello"\n"%s"\n' % ("it's " * 40))
    options = ("--prompts", "rows.jsonl", "-n", "3", "--target", models["short"], "--tree", trees["root"])
    code, out, err = generate(*options)
    assert (code, out) == (2, "")
    assert "prompt 2: it has" in err
    assert "--skip-bad skips such prompts" in err
    code, out, err = generate(*options, "--skip-bad")
    assert code == 0
    assert out.count("\n") == 1
    assert "left out 1 bad prompts: prompt 2: it has" in err
