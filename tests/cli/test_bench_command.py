"""`sequoia bench` as a user meets it: engines that are there and those that are not, a table and a file."""

import json
import sys

import pytest
import yaml

from sequoia_cli.bench import runner
from sequoia_cli.bench.scaling import SIZES
from sequoia_cli.cli.bench_inputs import gguf_file
from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.options import DEFAULT_TARGET
from sequoia_cli.engine.loading import smollm2

SHORT = ("--limit", "2", "-n", "8", "--rounds", "1")


def test_real_engines_agree_id_for_id_and_the_file_has_every_sample(run, pair, trees, empty_place):
    chosen = ("--engines", "plain,tree,transformers,llama.cpp")
    code, out, err = run("bench", *pair, "--tree", trees["tree"], *SHORT, *chosen, "-o", "bench.yaml")
    assert (code, out) == (0, ""), err
    rows = [line.split() for line in err.splitlines()]
    for engine in ("plain", "tree", "transformers"):
        assert len([row for row in rows if row[:1] == [engine]]) == 2
    assert "llama.cpp: llama_cpp is not installed" in err
    found = yaml.safe_load((empty_place / "bench.yaml").read_text())
    assert (found["schema"], found["rounds"], found["baseline"]) == ("sequoia-bench/1", 1, "transformers")
    plain, tree, theirs, missing = found["engines"]
    assert missing["engine"] == "llama.cpp"
    assert "llama_cpp is not installed" in missing["unavailable"]
    for engine in (plain, tree, theirs):
        assert [sample["prompt"] for sample in engine["samples"]] == [0, 1]
        assert engine["tokens_per_second"] > 0
        assert engine["peak_bytes"] > 1e7
        assert engine["differing_prompts"] == []
        assert [len(sample["token_ids"]) for sample in engine["samples"]] == [8, 8]
    assert theirs["ratio"] == pytest.approx([1, 1, 1])
    assert plain["tokens_per_step"] == 1
    assert tree["tokens_per_step"] > 1


@pytest.fixture
def scripted(monkeypatch):
    """Replies of the engines' processes, by engine; a text of 3 tokens where nothing else is said."""
    replies = {}

    class Fake:
        def __init__(self, engine, work, python=None):
            self.engine = engine
            self.first = replies.get(engine, {"load_seconds": 1.0, "packages": {"torch": "2"}})
            replies.setdefault("pythons", {})[engine] = python
            replies.setdefault("work", []).append(work)

        def ask(self, message):
            reply = replies.get((self.engine, "text"))
            if isinstance(reply, BaseException):
                raise reply
            arrivals = [[0.5, 1], [1.0, 1], [1.5, 1]]
            return reply or {"token_ids": [1, 2, 3], "arrivals": arrivals, "peak_bytes": 5_000_000}

        def close(self):
            pass

    monkeypatch.setattr(runner, "Worker", Fake)
    return replies


def test_every_engine_gets_the_same_work(run, pair, trees, scripted):
    code, out, err = run("bench", *pair, "--tree", trees["tree"], *SHORT, "-T", "0.6", "--json")
    assert code == 0, err
    found = json.loads(out)
    works = scripted["work"]
    assert len(works) == len(found["engines"]) == 9
    assert all(work == works[0] for work in works)
    assert (works[0].max_new_tokens, works[0].sampling.temperature, len(works[0].prompts)) == (8, 0.6, 2)
    assert works[0].tree == (-1, 0, 0, 0, 1, 1, 2, 4, 5)


def test_an_engine_that_fails_ends_in_exit_code_3_with_the_others_results(run, pair, trees, scripted):
    scripted["vllm"] = {"failed": "no such kernel"}
    code, out, err = run("bench", *pair, "--tree", trees["tree"], *SHORT, "--json")
    assert code == 3
    assert "vllm: no such kernel" in err
    assert "not all engines ran to the end: vllm (no such kernel)" in err
    assert len([e for e in json.loads(out)["engines"] if e.get("samples")]) == 8


def test_an_interruption_prints_what_was_measured(run, pair, trees, scripted):
    scripted["lookup", "text"] = KeyboardInterrupt()
    code, _, err = run("bench", *pair, "--tree", trees["tree"], *SHORT)
    assert code == 130
    assert "medians over 2 prompts" in err


def test_the_best_chain_is_the_one_the_compiler_noted(run, pair, scripted, empty_place):
    plan = {"schema": "sequoia-tree/1", "parents": [-1, 0, 0]}
    plan["runners_up"] = [
        {"shape": "tree", "size": 4, "depth": 2, "tokens_per_step": 2.0},
        {"shape": "chain", "size": 5, "depth": 5, "tokens_per_step": 1.5},
    ]
    (empty_place / "t.json").write_text(json.dumps(plan))
    assert run("bench", *pair, "--tree", "t.json", *SHORT)[0] == 0
    assert scripted["work"][0].chain == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engines", "plain,ollama"), "--engines names 'ollama'; expected some of plain, chain, tree"),
        (("--engines", "plain,plain", "--baseline", "plain"), "--engines names an engine twice"),
        (("--engines", "plain"), "--baseline is transformers; expected one of plain"),
        (("--rounds", "0"), "--rounds is 0; at least 1 is needed"),
        (("-n", "1"), "--max-new-tokens is 1; at least 2 is needed"),
    ],
)
def test_bad_options_are_refused_before_anything_loads(run, pair, scripted, arguments, message):
    code, _, err = run("bench", *pair, *arguments)
    assert code == 2
    assert message in err
    assert "work" not in scripted


def test_an_engine_can_have_another_interpreter(run, pair, trees, scripted):
    chosen = ("--engines", "plain,vllm", "--baseline", "plain")
    code, _, err = run(
        "bench", *pair, "--tree", trees["tree"], *SHORT, *chosen, "--python", f"vllm={sys.executable}"
    )
    assert code == 0, err
    assert scripted["pythons"] == {"plain": None, "vllm": sys.executable}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "ollama=python3",
            "--python is 'ollama=python3'; expected ENGINE=PATH with an engine of plain, chain, tree",
        ),
        ("vllm", "--python is 'vllm'; expected ENGINE=PATH"),
        ("vllm=nowhere/python", "--python vllm: there is no program 'nowhere/python'"),
        ("vllm=.", "--python vllm: there is no program '.'"),
    ],
)
def test_an_interpreter_that_is_none_is_refused(run, pair, scripted, given, message):
    code, _, err = run("bench", *pair, "--python", given)
    assert code == 2
    assert message in err
    assert "work" not in scripted


def test_a_gguf_file_that_is_missing_is_refused(run, pair, trees, scripted):
    code, _, err = run("bench", *pair, "--tree", trees["tree"], "--gguf", "no.gguf")
    assert code == 2
    assert "--gguf is 'no.gguf', which is no file" in err


@pytest.mark.parametrize(
    ("target", "engines", "pythons", "found"),
    [
        (DEFAULT_TARGET, ["plain", "openvino"], {"openvino": "python"}, True),
        (DEFAULT_TARGET, ["plain", "openvino"], {}, False),  # it is not installed
        (DEFAULT_TARGET, ["plain", "vllm"], {"vllm": "python"}, False),
        ("other", ["plain", "openvino"], {"openvino": "python"}, False),
    ],
)
def test_the_default_targets_gguf_is_fetched_only_for_an_engine_that_reads_it(
    monkeypatch, tmp_path, target, engines, pythons, found
):
    monkeypatch.setattr("sequoia_cli.bench.engines.find_spec", lambda name: None)
    monkeypatch.setattr(smollm2, "gguf", lambda announce: tmp_path / "kept.gguf")
    file = gguf_file(None, target, engines, pythons, Commentary(quiet=True))
    assert file == (str(tmp_path / "kept.gguf") if found else None)


def test_scaling_shows_growth_as_far_as_the_context_goes(run, pair, trees, scripted):
    """The context of the tiny target ends at 256 tokens."""
    options = ("--tree", trees["tree"], "--scaling", "--rounds", "1")
    code, out, err = run("bench", *pair, *options, "--json")
    assert code == 0, err
    found = json.loads(out)["scaling"]
    assert [(point["engine"], point["prompt_tokens"], point["tree_nodes"]) for point in found] == [
        ("plain", 128, 1),
        ("tree", 128, 9),
        *(("tree" if size > 1 else "plain", 128, size) for size in SIZES),
    ]
    for point in found:
        assert (point["first_token_seconds"], point["seconds_per_step"], point["peak_bytes"]) == (
            0.5,
            0.5,
            5e6,
        )
    rows = [line.split() for line in err.splitlines()]
    assert ["tree", "128", "512", "500", "500.0", "5"] in rows
    assert "left out: prompts of 256, 512, 1024, 2048, 4000 tokens; with 32 new ones" in err
    assert "this target's context, 256" in err


def test_scaling_has_prompts_of_its_own(run, pair, scripted):
    code, _, err = run("bench", *pair, "--scaling", "--prompts", "p.jsonl")
    assert code == 2
    assert "--scaling has prompts of its own" in err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--scaling", "--limit", "3"), "of many lengths, and no baseline; without effect: --limit\n"),
        (("--engines", "plain", "--gguf", "x"), "reads GGUF (plain); without effect: --gguf\n"),
        (
            ("--engines", "plain", "--assistant", "x"),
            "takes an assistant (plain); without effect: --assistant\n",
        ),
        (("--engines", "plain", "--python", "vllm=sh"), "none of these (plain); without effect: --python\n"),
    ],
)
def test_options_without_effect_are_refused(run, pair, scripted, arguments, line):
    code, _, err = run(
        "bench", *pair, *arguments, *([] if "--scaling" in arguments else ["--baseline", "plain"])
    )
    assert code == 2
    assert line in err
    assert "work" not in scripted


def test_a_prompt_that_cannot_be_encoded_is_named(run, pair, scripted, empty_place):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    prompts = [{"id": "first", "prompt": "Hello"}, {"id": "second", "messages": turns}]
    (empty_place / "p.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    code, _, err = run("bench", *pair, "--prompts", "p.jsonl")
    assert code == 2
    assert "prompt second: the prompt is a chat, but this tokenizer has no chat template" in err
    assert "work" not in scripted
