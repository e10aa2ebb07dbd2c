"""`sequoia bench` as a user meets it: engines that are there and those that are not, a table and a file."""

import json
import os
import re
import shutil
import sys

import pytest
import yaml

from exhaustive import exhaustive
from sequoia_cli.bench import runner
from sequoia_cli.bench.engines import ENGINES
from sequoia_cli.bench.runner import Outcome
from sequoia_cli.bench.scaling import SIZES
from sequoia_cli.bench.workload import Sample
from sequoia_cli.cli import prompts
from sequoia_cli.cli.bench.inputs import gguf_file, interpreters
from sequoia_cli.cli.bench.report import footnotes
from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.options import DEFAULT_TARGET
from sequoia_cli.engine.loading import smollm2
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING, load_prompts

SHORT = ("--limit", "2", "-n", "8", "--rounds", "1")


@pytest.fixture(autouse=True)
def no_peers(monkeypatch):
    """No other package's engine is installed here, whatever this environment has."""
    monkeypatch.setattr("sequoia_cli.bench.engines.find_spec", lambda name: None)


@pytest.fixture
def without_peers(tmp_path, monkeypatch):
    """The same for the processes of engines: their interpreter finds a llama_cpp that cannot be imported."""
    # -S would lose torch too, so what is looked for is hidden by a finder that comes first.
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'llama_cpp' else find(name, *rest)\n"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "hidden"), os.environ.get("PYTHONPATH", "")])
    )


def test_real_engines_agree_id_for_id_and_the_file_has_every_sample(
    run, pair, trees, empty_place, without_peers
):
    chosen = ("--engines", "plain,tree,transformers,llama.cpp")
    code, out, err = run("bench", *pair, "--tree", trees["tree"], *SHORT, *chosen, "-o", "bench.yaml")
    assert (code, out) == (0, ""), err
    rows = [line.split() for line in err.splitlines()]
    for engine in ("plain", "tree", "transformers"):
        assert len([row for row in rows if row[:1] == [engine]]) == 2
    assert "llama.cpp: skipped: llama_cpp is not installed" in err
    found = yaml.safe_load((empty_place / "bench.yaml").read_text())
    assert (found["schema"], found["rounds"], found["baseline"]) == ("sequoia-bench/2", 1, "transformers")
    plain, tree, theirs, missing = found["engines"]
    assert missing["engine"] == "llama.cpp"
    assert "llama_cpp is not installed" in missing["unavailable"]
    for engine in (plain, tree, theirs):
        assert [sample["prompt"] for sample in engine["samples"]] == [0, 1]
        assert engine["tokens_per_second"] > 0
        assert engine["peak_bytes"] > 1e7
        assert engine["differing_prompts"] == []
        assert [len(sample["token_ids"]) for sample in engine["samples"]] == [8, 8]
    assert theirs["ratio"] == 1
    assert theirs["ratio_interval"] is None  # two prompts are too few
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
    assert len(works) == len(found["engines"]) == len(ENGINES) == 14
    assert all(work == works[0] for work in works)
    assert (works[0].max_new_tokens, works[0].sampling.temperature, len(works[0].prompts)) == (8, 0.6, 2)
    assert works[0].tree == (-1, 0, 0, 0, 1, 1, 2, 4, 5)


def test_an_engine_that_fails_ends_in_exit_code_3_with_the_others_results(run, pair, trees, scripted):
    scripted["vllm"] = {"failed": "no such kernel"}
    code, out, err = run("bench", *pair, "--tree", trees["tree"], *SHORT, "--json")
    assert code == 3
    assert "vllm: no such kernel" in err
    assert "not all engines ran to the end: vllm (no such kernel)" in err
    assert len([e for e in json.loads(out)["engines"] if e.get("samples")]) == 13


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
        (("--skip", "-1"), "--skip is -1; at least 0 is needed"),
        (("--skip", "80"), "built-in holds no prompt after the first 80"),
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


def test_one_interpreter_serves_all_engines_of_its_package_that_have_none_of_their_own():
    here = shutil.which(sys.executable)
    found = interpreters([f"vllm-ngram={here}"], list(ENGINES))
    assert found == dict.fromkeys(("vllm", "vllm-ngram", "vllm-suffix"), here)
    other = shutil.which("sh")
    found = interpreters([f"vllm={here}", f"vllm-suffix={other}"], list(ENGINES))
    assert (found["vllm"], found["vllm-suffix"]) == (here, other)


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
    assert "--gguf is 'no.gguf', which is not a file" in err


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
    assert "left out: prompts of 256, 512, 1024, 2048, 4000 tokens; with 32 new tokens" in err
    assert "this target's context, 256" in err


def test_scaling_has_prompts_of_its_own(run, pair, scripted):
    for flag, value in (("--prompts", "p.jsonl"), ("--skip", "3")):
        code, _, err = run("bench", *pair, "--scaling", flag, value)
        assert code == 2
        assert (
            f"--scaling uses its own prompts, of many lengths, and no baseline; without effect: {flag}" in err
        )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--scaling", "--limit", "3"), "of many lengths, and no baseline; without effect: --limit\n"),
        (("--engines", "plain", "--gguf", "x"), "reads GGUF (plain); without effect: --gguf\n"),
        (
            ("--engines", "plain", "--assistant", "x"),
            "takes an assistant (plain); without effect: --assistant\n",
        ),
        (("--engines", "plain", "--python", "vllm=sh"), "--python runs (plain); without effect: --python\n"),
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


# --- which prompts


def test_the_prompts_are_not_those_that_trees_are_compiled_on(run, pair, trees, scripted, monkeypatch):
    """By default `acceptance` uses the built-in prompts up to some, and this those after them."""
    options = ("--engines", "plain", "--baseline", "plain", "--json")
    code, out, err = run("bench", *pair, "--tree", trees["tree"], *options)
    assert code == 0, err
    used = json.loads(out)["prompts"]

    def loading(source, **options):
        compiled_on.extend(prompt.id for prompt in load_prompts(source, **options).prompts)
        raise BadInput("that is all")

    compiled_on = []
    monkeypatch.setattr(prompts, "load_prompts", loading)
    assert run("acceptance", *pair)[0] == 2
    everything = [prompt.id for prompt in load_prompts().prompts]
    assert compiled_on == everything[:BUILTIN_FOR_COMPILING]
    assert sorted(used["ids"] + used["left_out"]) == sorted(everything[len(compiled_on) :][:8])


@pytest.fixture
def long_prompts(empty_place):
    """Three prompts, the second beyond any tiny model's context."""
    texts = {"one": "Hello there", "two": "again and again " * 200, "three": "Why is the sky blue? " * 3}
    rows = [{"id": name, "prompt": text} for name, text in texts.items()]
    (empty_place / "long.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "long.jsonl"


def test_a_prompt_beyond_the_context_is_left_out_by_name_for_all_engines(
    run, pair, trees, scripted, long_prompts
):
    code, out, err = run(
        "bench", *pair, "--tree", trees["tree"], "--prompts", long_prompts, "-n", "6", "--json"
    )
    assert code == 0, err
    assert "left out for all engines: prompt two (" in err
    assert "with 6 new tokens they exceed the smallest context, 256 tokens" in err
    found = json.loads(out)["prompts"]
    assert (found["ids"], found["left_out"]) == (["one", "three"], ["two"])
    assert [len(work.prompts) for work in scripted["work"]] == [2] * len(ENGINES)


def test_the_budget_of_new_tokens_counts_and_where_no_prompt_fits_nothing_loads(
    run, pair, trees, scripted, long_prompts
):
    code, _, err = run("bench", *pair, "--tree", trees["tree"], "--prompts", long_prompts, "-n", "255")
    assert code == 2
    assert "no prompt of long.jsonl fits: prompt one (" in err
    assert "work" not in scripted


def test_the_context_of_an_assistant_counts_where_it_assists(
    run, pair, trees, models, scripted, long_prompts
):
    """Of the tiny models `short` has 32 positions; its tokenizer is the target's."""
    options = (
        "--tree",
        trees["tree"],
        "--prompts",
        long_prompts,
        "-n",
        "8",
        "--json",
    )
    left = {}
    for names in ("plain,transformers", "plain,transformers,assisted"):
        assistant = ("--assistant", models["short"]) if "assisted" in names else ()
        code, out, err = run("bench", *pair, *options, *assistant, "--engines", names)
        assert code == 0, err
        left[names] = json.loads(out)["prompts"]["left_out"]
    assert left == {"plain,transformers": ["two"], "plain,transformers,assisted": ["two", "three"]}


@exhaustive
def test_a_pair_that_transformers_cannot_run_is_left_out_and_the_others_are_compared(
    run, pair, models, trees
):
    """Its assisted generation takes a model with other padding for one with another tokenizer."""
    options = (
        "--draft",
        models["wide"],
        "--tree",
        trees["tree"],
        "--engines",
        "plain,assisted",
        "--baseline",
        "plain",
    )
    target, dtype = pair[:2], pair[4:]
    code, _, err = run("bench", *target, *dtype, *options, "--limit", "1", "-n", "4", "--rounds", "1")
    assert code == 0, err
    assert re.search(r"assisted: skipped: transformers cannot pair \d+ with \d+ rows", err)


# --- what the GGUF is


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (),
            "llama.cpp: the same weights as the other engines; smollm2 was published as this 4-bit GGUF",
        ),
        (
            ("--gguf", "mine.gguf"),
            "llama.cpp: ran mine.gguf; it was not checked that its weights are the target's",
        ),
    ],
)
def test_the_table_says_what_the_readers_of_gguf_ran(options, message):
    text = Sample("llama.cpp", 0, 0, (1,), ((1.0, 1), (2.0, 1)))
    gguf = options[1] if options else None
    (line,) = footnotes(
        [Outcome("plain"), Outcome("llama.cpp", [text]), Outcome("openvino")], "smollm2", gguf
    )
    assert message in line
    assert footnotes([Outcome("plain", [text])], "smollm2", gguf) == []
