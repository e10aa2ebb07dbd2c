"""`sequoia generate` as a user meets it: prompts and trees in, text and statistics out."""

import json
import os
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

from folders import own_greedy
from sequoia_cli.core.paths import remember_latest

SHORT = ("-p", "Hello", "-n", "12")
TEXT = "Hello there, it's a fine day!"


# --- streams


def test_stdout_has_the_text_alone_and_stderr_the_statistics(generate, document):
    code, out, err = generate(*SHORT)
    assert code == 0
    assert out == document(*SHORT)["text"] + "\n"
    assert "12 tokens in" in err
    assert "tree of 9 nodes in 4 layers" in err
    assert "tokens per step" in err
    assert "time by stage: draft" in err


def test_json_is_one_document_with_every_promised_key(generate):
    code, out, _ = generate(*SHORT, "--json")
    assert code == 0
    found = json.loads(out)
    assert {"schema", "prompt_tokens", "token_ids", "text", "finish_reason", "seconds"} <= set(found)
    assert {"tokens_per_second", "speculation", "seed", "environment", "warnings"} <= set(found)
    said = found["speculation"]
    assert {"steps", "mean_acceptance_length", "acceptance_rate"} <= set(said)
    assert {"accepted_by_depth", "seconds_by_stage"} <= set(said)
    assert set(said["seconds_by_stage"]) == {"draft", "target", "verify", "other"}
    assert {"device", "dtype", "threads", "torch", "transformers", "sequoia"} <= set(found["environment"])
    assert (found["schema"], found["seed"], found["warnings"]) == ("sequoia-generation/1", 0, [])


def test_the_statistics_count_what_was_printed(document):
    found = document("-p", TEXT, "-n", "40")
    said = found["speculation"]
    assert len(found["token_ids"]) == 40
    assert said["mean_acceptance_length"] == round(40 / said["steps"], 4)
    assert sum(said["accepted_by_depth"]) > 0
    # A step's last token is the target's own, unless the budget cut it off.
    assert 40 - said["steps"] <= sum(said["accepted_by_depth"]) <= 41 - said["steps"]


def test_quiet_leaves_stderr_empty(generate):
    code, out, err = generate(*SHORT, "--quiet")
    assert (code, err) == (0, "")
    assert out


@pytest.mark.parametrize("flags", [(), ("--json",), ("--compare",)])
def test_there_are_no_escape_codes_where_there_is_no_terminal(generate, flags):
    _, out, err = generate(*SHORT, *flags)
    assert "\x1b" not in out + err


# --- prompts


@pytest.mark.parametrize("flags", [(), ("--prompts", "-")])
def test_the_prompt_can_come_from_stdin(document, flags):
    from_stdin = document("-n", "12", *flags, stdin="Hello\n")
    assert from_stdin["token_ids"] == document(*SHORT)["token_ids"]


def test_repeated_prompts_give_a_line_each_and_a_list_of_results(generate, document):
    both = ("-n", "12", "-p", "Hello", "-p", TEXT)
    found = document(*both)
    texts = [result["text"] for result in found["results"]]
    assert [result["id"] for result in found["results"]] == ["1", "2"]
    assert generate(*both)[1] == "".join(text + "\n" for text in texts)
    assert found["speculation"]["steps"] == sum(r["speculation"]["steps"] for r in found["results"])
    assert texts == [document("-n", "12", "-p", text)["text"] for text in ("Hello", TEXT)]


def test_prompts_of_a_file_keep_their_ids_and_can_be_limited(document, empty_place):
    (empty_place / "prompts.jsonl").write_text('{"id": "a", "q": "Hello"}\n{"id": "b", "q": "day"}\n')
    options = ("--prompts", "prompts.jsonl", "--column", "q", "-n", "3")
    assert [result["id"] for result in document(*options)["results"]] == ["a", "b"]
    assert document(*options, "--limit", "1")["id"] == "a"
    assert document(*options, "--skip", "1", "--limit", "1")["id"] == "b"


def test_a_prompt_goes_through_the_chat_template_unless_raw(document, models):
    chat = ("--target", models["chat"])
    ids, expected = own_greedy(models["chat"], "Hello", 12)
    templated = document(*SHORT, *chat)
    assert (templated["prompt_tokens"], templated["token_ids"]) == (len(ids), expected)
    assert document(*SHORT, *chat, "--raw")["token_ids"] == document(*SHORT)["token_ids"]


def test_a_prompt_piped_from_windows_is_the_one_that_was_typed(document):
    piped = document("-n", "12", "--raw", stdin=b"\xef\xbb\xbfHello\r\nfine day\r\n\r\n")
    typed = document("-n", "12", "--raw", "-p", "Hello\nfine day")
    assert [piped[key] for key in ("prompt_tokens", "token_ids")] == [
        typed[key] for key in ("prompt_tokens", "token_ids")
    ]


@pytest.mark.parametrize(
    ("arguments", "stdin", "line"),
    [
        (["-p", "a"], "b", "text was piped in, and --prompt is given too; one is expected"),
        (["--builtin"], "b", "text was piped in, and --builtin is given too"),
        (["-p", "a", "--builtin"], None, "--prompt and --builtin both give prompts"),
        (["-p", "a", "--prompts", "x.txt"], None, "--prompt and --prompts both give prompts"),
        ([], "", "stdin is empty"),
        ([], " \n", "stdin is empty"),
        ([], None, "stdin is empty"),
        ([], b"\xff\xfe", "not UTF-8"),
        (["--tree", "-"], None, "--tree - reads stdin, so the prompt has to come from --prompt or a file"),
        (["--tree", "-", "--prompts", "-"], None, "--tree - reads stdin"),
        (["--prompts", "none.txt"], None, "none.txt does not exist"),
        (["-p", "a", "--limit", "0"], None, "--limit is 0; at least 1 is needed"),
        (["-p", "a", "--skip", "1"], None, "--skip leaves out rows of a file, and no --prompts is given"),
        (["--builtin", "--skip", "-1"], None, "--skip is -1; at least 0 is needed"),
        (["-p", "a", "--column", "q"], None, "--column names a key of a file, and no --prompts is given"),
    ],
)
def test_prompts_that_are_unclear_or_missing_are_refused(run, pair, trees, arguments, stdin, line):
    tree = [] if "--tree" in arguments else ["--tree", trees["tree"]]
    if stdin is None and "-" in arguments:
        stdin = '{"schema": "sequoia-tree/1", "parents": [-1]}'
    code, out, err = run("generate", *pair, *tree, *arguments, stdin=stdin)
    assert (code, out) == (2, "")
    assert line in err


def test_a_terminal_without_a_prompt_is_asked_for_one(generate, monkeypatch):
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs) as terminal:
        monkeypatch.setattr(os, "devnull", os.ttyname(terminal.fileno()))
        code, out, err = generate()
    assert (code, out) == (2, "")
    assert "no prompt" in err
    assert "--prompt" in err


def test_a_prompt_that_cannot_be_used_is_named_before_any_text_is_written(generate, models, trees):
    code, out, err = generate(
        "-p", "Hello", "-p", "it's " * 40, "--target", models["short"], "--tree", trees["root"]
    )
    assert (code, out) == (2, "")
    assert "prompt 2: it has" in err
    assert "the target's context ends at 32" in err
    assert "--skip-bad" not in err  # which is for prompts from a file


def test_a_token_beyond_the_targets_embedding_is_named(generate, models, tmp_path, trees):
    from models import tiny_model

    folder = tmp_path / "narrow"
    tiny_model("llama", 260).save_pretrained(folder)
    AutoTokenizer.from_pretrained(models["target"]).save_pretrained(folder)
    code, out, err = generate("-p", "naïve text", "--target", folder, "--tree", trees["root"])
    assert (code, out) == (2, "")
    assert "and the target has 260 ids: its tokenizer does not belong to it" in err


# --- trees


def test_a_compiled_tree_can_be_piped_in(run, pair, document):
    _, tree, _ = run("compile", "--budget", "16", "-o", "-", "-q")
    code, out, _ = run("generate", *pair, "--tree", "-", *SHORT, "--json", stdin=tree)
    assert code == 0
    assert json.loads(out)["token_ids"] == document(*SHORT)["token_ids"]
    assert json.loads(out)["predicted"]["speedup"] > 1


def test_the_tree_compiled_last_is_the_default_and_is_named(run, pair, trees):
    remember_latest("tree", Path(trees["tree"]))
    code, _, err = run("generate", *pair, *SHORT)
    assert code == 0
    assert f"tree: {trees['tree']}, the one compiled last on this machine" in err


def test_a_plan_not_to_speculate_decodes_plainly_with_a_note_and_loads_no_draft(generate, document, trees):
    code, out, err = generate(*SHORT, "--tree", trees["root"], "--draft", "no-such-draft")
    assert code == 0
    assert "this plan says not to speculate: plain decoding" in err
    assert out == document(*SHORT)["text"] + "\n"


def test_a_tree_compiled_for_another_setting_is_warned_of_by_name(generate, empty_place):
    conditions = {"target": "A", "draft": "D", "temperature": 0.7}
    plan = {
        "schema": "sequoia-tree/1",
        "parents": [-1, 0],
        "inputs": {"acceptance": {"conditions": conditions}},
    }
    (empty_place / "other.json").write_text(json.dumps(plan))
    code, out, err = generate(*SHORT, "--tree", "other.json", "--json")
    assert code == 0
    assert "warning: the tree was compiled for another setting" in err
    (warning,) = json.loads(out)["warnings"]
    for part in ("target A, here ", "draft D, here ", "temperature 0.7, here 0.0"):
        assert part in warning


def test_a_tree_compiled_for_another_machine_shape_of_samples_or_length_is_warned_of(generate, empty_place):
    rates = {"temperature": 1.0, "top_p": 0.5, "top_k": 7, "draft_temperature": 0.3, "verifier": "naive"}
    times = {"device": "A100", "conditions": {"context": 5000}}
    inputs = {"acceptance": {"conditions": rates}, "profile": times}
    plan = {"schema": "sequoia-tree/1", "parents": [-1, 0], "inputs": inputs}
    (empty_place / "other.json").write_text(json.dumps(plan))
    code, out, _ = generate(*SHORT, "-T", "1", "--tree", "other.json", "--json")
    assert code == 0
    (warning,) = json.loads(out)["warnings"]
    for part in (
        *("device A100, here ", "top_p 0.5, here 1.0", "top_k 7, here 0", "draft_temperature 0.3, here 1.0"),
        *("verifier naive, here sequoia", "context 5000, here "),
    ):
        assert part in warning


def test_a_tree_compiled_for_models_before_another_training_is_warned_of(run, pair, document, models):
    from sequoia_cli.measure.session import open_session

    weights = open_session(
        models["target"], [models["draft"]], device="cpu", dtype="float32", trust_remote_code=False
    ).weights
    Path("prompts.txt").write_text("Hello\n")
    measured = ("--dataset", "prompts.txt", "--max-new-tokens", "6", "--ranks", "2", "--depths", "1")
    assert run("acceptance", *pair, *measured, "-o", "rates.yaml")[0] == 0
    conditions = yaml.safe_load(Path("rates.yaml").read_text())["conditions"]
    assert conditions.items() >= weights.items()
    for key, there in ((None, None), ("draft_weights", "sha256:other"), ("target_weights", "sha256:other")):
        inputs = {"acceptance": {"conditions": {**conditions, **({key: there} if key else {})}}}
        plan = {"schema": "sequoia-tree/1", "parents": [-1, 0], "inputs": inputs}
        Path("tree.json").write_text(json.dumps(plan))
        warnings = document(*SHORT, "--tree", "tree.json")["warnings"]
        expected = [f"{key} sha256:other, here {weights[key]}"] if key else []
        assert len(warnings) == len(expected)
        assert all(line in warning for line, warning in zip(expected, warnings, strict=True))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "tree.json does not exist"),
        ('{"schema": "sequoia-tree/1", "parents": [-1, 0', "tree.json cannot be parsed at line 2"),
        ('{"schema": "sequoia-tree/1", "parents": [-1, 0, 3]}', "node 2 has parent 3"),
        ('{"schema": "sequoia-tree/1", "parents": []}', "the tree has no nodes"),
        ('{"schema": "sequoia-tree/1"}', "key 'parents' is missing"),
        ('{"schema": "sequoia-tree/1", "parents": [-1, 0], "size": 7}', "'size' is 7; expected 2"),
        ('{"schema": "sequoia-tree/99", "parents": [-1]}', "schema sequoia-tree/99 is not known"),
        ("", "tree.json is empty"),
    ],
)
def test_a_tree_file_that_cannot_be_used_is_refused_by_node_or_key(generate, empty_place, text, line):
    if text is not None:
        (empty_place / "tree.json").write_text(text)
    code, out, err = generate(*SHORT, "--tree", "tree.json")
    assert (code, out) == (2, "")
    assert line in err


def test_a_profile_given_as_a_tree_is_named_as_what_it_is(generate, empty_place):
    (empty_place / "a100.yaml").write_text(
        "schema: sequoia-profile/1\norigin: measured\ntarget_seconds: [[1, 1.0]]\n"
    )
    code, _, err = generate(*SHORT, "--tree", "a100.yaml")
    assert code == 2
    assert "a100.yaml: 'schema' is 'sequoia-profile/1'; expected 'sequoia-tree/1'" in err
