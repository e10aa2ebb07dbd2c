"""`sequoia compile` as a user meets it: streams, files, exit codes, and one clear line for each mistake."""

import functools
import json
import re

import pytest
import yaml

from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import latest, remember_latest, shipped
from sequoia_cli.core.plan import TreePlan

FLAT = {"target_seconds": [[1, 1.0], [64, 1.0]], "draft_seconds": [[1, 0.02], [64, 0.02]]}
STEEP = {"target_seconds": [[1, 1.0], [64, 64.0]], "draft_seconds": [[1, 0.3], [64, 0.3]]}
RISING = {"target_seconds": [[1, 1.0], [64, 10.5]], "draft_seconds": [[1, 0.01], [64, 0.01]]}


@pytest.fixture
def sequoia(run):
    """Run `sequoia compile` with these arguments: exit code, stdout, stderr."""
    return functools.partial(run, "compile")


@pytest.fixture
def files(empty_place):
    """Minimal files written by hand: profiles of two lists of pairs, rates as a plain list."""
    for name, profile in (("flat", FLAT), ("steep", STEEP), ("rising", RISING)):
        (empty_place / f"{name}.yaml").write_text(yaml.safe_dump(profile))
    (empty_place / "flat.json").write_text(json.dumps(FLAT))
    (empty_place / "p.json").write_text("[0.6, 0.15, 0.08, 0.04]")
    (empty_place / "p.yaml").write_text("- 0.6\n- 0.15\n- 0.08\n- 0.04\n")
    return empty_place


def plan_of(path):
    return TreePlan.from_document(read_document(path))


# --- what it writes


def test_bare_compile_reproduces_the_shipped_tree_byte_for_byte(sequoia, empty_place):
    code, out, err = sequoia("--budget", "128")
    assert (code, out) == (0, "")
    written = empty_place / "trees" / "a100_128.json"
    assert written.read_bytes() == shipped("trees", "a100_128.json").read_bytes()
    assert "wrote trees/a100_128.json" in err


def test_the_shipped_cpu_tree_is_compiled_from_the_shipped_profile_and_rates(sequoia, empty_place):
    code, _, _ = sequoia(
        *("--budget", "32", "-o", "tree.json"),
        *("--profile", str(shipped("profiles", "smollm2_cpu.yaml"))),
        *("--acceptance", str(shipped("profiles", "smollm2_cpu_rates.yaml"))),
    )
    assert code == 0
    assert (empty_place / "tree.json").read_bytes() == shipped("trees", "smollm2_cpu.json").read_bytes()


def test_the_shipped_tree_is_of_its_size_class_and_says_what_it_was_made_from():
    document = read_document(shipped("trees", "a100_128.json"))
    plan = TreePlan.from_document(document)
    assert 96 <= plan.tree.size <= 128
    assert plan.inputs["profile"]["origin"] == "modelled"
    for kind, name in (("profile", "a100.yaml"), ("acceptance", "published_demo_rates.yaml")):
        assert plan.inputs[kind]["digest"] == read_document(shipped("profiles", name)).digest
    assert document.data["command"] == "sequoia compile --budget 128"


def test_the_plan_has_the_promised_keys(sequoia, files):
    sequoia("--profile", "flat.yaml", "--acceptance", "p.json", "-o", "tree.json")
    data = json.loads((files / "tree.json").read_text())
    assert {"schema", "command", "version", "parents", "size", "depth", "predicted", "inputs"} <= set(data)
    assert set(data["predicted"]) == {"tokens_per_step", "seconds_per_step", "speedup"}
    assert data["inputs"]["limits"] == {"budget": 64, "max_depth": 32, "max_branch": 32}


def test_a_second_run_says_unchanged_and_needs_no_force(sequoia, files):
    arguments = ("--profile", "flat.yaml", "--acceptance", "p.json")
    sequoia(*arguments)
    code, _, err = sequoia(*arguments)
    assert code == 0
    assert "trees/flat_64.json is unchanged" in err


def test_another_tree_at_the_same_path_is_kept_unless_forced(sequoia, files):
    (files / "tree.json").write_text("mine")
    arguments = ("--profile", "flat.yaml", "--acceptance", "p.json", "-o", "tree.json")
    code, _, err = sequoia(*arguments)
    assert code == 2
    assert "tree.json exists" in err
    assert "--force" in err
    assert (files / "tree.json").read_text() == "mine"
    assert sequoia(*arguments, "--force")[0] == 0
    assert plan_of("tree.json").tree.size > 1


def test_rates_that_fall_with_depth_give_a_shallower_tree_than_those_of_the_root_alone(sequoia, files):
    rows = [[0.6, 0.15, 0.08, 0.04], [0.4, 0.1, 0.05, 0.03], [0.2, 0.1, 0.04, 0.02]]
    counts = {"prompt": 0, "trials": [1000] * 3, "accepted": [[1000 * p for p in row] for row in rows]}
    plans = []
    for name, p in (("falling", rows), ("root", rows[:1])):
        data = {"schema": "sequoia-rates/1", "p": p, "samples": [counts]}
        (files / f"{name}.yaml").write_text(yaml.safe_dump(data))
        code, _, err = sequoia("--profile", "flat.yaml", "--acceptance", f"{name}.yaml", "-o", f"{name}.json")
        assert code == 0, err
        plans.append(plan_of(f"{name}.json"))
    falling, root = plans
    assert falling.tree.depth < root.tree.depth
    expected = expected_tokens(falling.tree, rows)
    assert falling.predicted.tokens_per_step == pytest.approx(expected, rel=0.01)  # shrunk a little
    assert expected < root.predicted.tokens_per_step


def test_json_and_yaml_rates_give_the_same_tree(sequoia, files):
    trees = set()
    for rates in ("p.json", "p.yaml"):
        for profile in ("flat.yaml", "flat.json"):
            _, out, _ = sequoia("--profile", profile, "--acceptance", rates, "-o", "-")
            trees.add(tuple(json.loads(out)["parents"]))
    assert len(trees) == 1


@pytest.mark.parametrize("flag", [("-o", "-"), ("--json",), ("--json", "-o", "-")])
def test_stdout_holds_one_document_and_nothing_else(sequoia, files, flag):
    code, out, _ = sequoia("--profile", "flat.yaml", "--acceptance", "p.json", "--explain", *flag)
    assert code == 0
    assert json.loads(out)["schema"] == "sequoia-tree/1"


def test_either_input_can_come_from_stdin(sequoia, files):
    _, expected, _ = sequoia("--profile", "flat.yaml", "--acceptance", "p.json", "-o", "-")
    _, by_rates, _ = sequoia(
        "--profile", "flat.yaml", "--acceptance", "-", "-o", "-", stdin="[0.6, 0.15, 0.08, 0.04]"
    )
    _, by_profile, _ = sequoia(
        "--profile", "-", "--acceptance", "p.json", "-o", "-", stdin=yaml.safe_dump(FLAT)
    )
    parents = [json.loads(out)["parents"] for out in (expected, by_rates, by_profile)]
    assert parents[0] == parents[1] == parents[2]


def test_the_recorded_command_has_long_options_without_defaults_inputs_or_outputs(sequoia, files):
    _, out, _ = sequoia(
        *("-n", "16", "--max-depth", "32", "--max-branch", "3", "--explain", "--force", "-o", "-"),
        *("--profile", "flat.yaml", "--acceptance", str(files / "p.json")),
    )
    assert json.loads(out)["command"] == "sequoia compile --budget 16 --max-branch 3"
    assert str(files) not in out


def test_equal_inputs_give_equal_bytes_wherever_they_lie(sequoia, files):
    (files / "elsewhere").mkdir()
    (files / "elsewhere" / "other.yaml").write_bytes((files / "flat.yaml").read_bytes())
    rest = ("--acceptance", "p.json", "-n", "16", "-o", "-")
    outputs = [sequoia("--profile", path, *rest)[1] for path in ("flat.yaml", "elsewhere/other.yaml")]
    assert outputs[0] == outputs[1]


def test_a_tree_for_another_machine_does_not_become_this_machines_latest(sequoia):
    assert sequoia("-n", "16")[0] == 0
    assert latest("tree") is None


def test_a_profile_without_sampling_is_not_taken_for_sampled_rates_in_silence(sequoia, files):
    flat = {**FLAT, "conditions": {"temperature": 0.0}}
    (files / "greedy.yaml").write_text(yaml.safe_dump(flat))
    for temperature, warns in ((0.6, True), (0.0, False)):
        rates = {"p": [0.6, 0.2], "conditions": {"temperature": temperature}}
        (files / "rates.yaml").write_text(yaml.safe_dump(rates))
        _, _, err = sequoia("--profile", "greedy.yaml", "--acceptance", "rates.yaml", "-o", "-")
        assert (
            "the profile is of temperature 0.0, the acceptance rates are of temperature 0.6" in err
        ) == warns


# --- what it chooses


def test_no_speculation_is_said_plainly_and_is_a_success(sequoia, files):
    code, _, err = sequoia("--profile", "steep.yaml", "--acceptance", "p.json", "-o", "tree.json")
    assert code == 0
    assert "do not speculate: plain decoding is faster" in err
    plan = plan_of("tree.json")
    assert (plan.tree.size, plan.verdict, plan.predicted.speedup) == (1, "no speculation", 1.0)


def test_a_chain_is_chosen_and_named_where_it_wins(sequoia, files):
    code, out, err = sequoia("--profile", "rising.yaml", "--acceptance", "p.json", "-o", "-")
    assert code == 0
    assert json.loads(out)["verdict"] == "chain"
    assert "chain of" in err


def test_a_draft_slower_than_its_target_gives_no_speculation(sequoia, files):
    (files / "slow.yaml").write_text("target_seconds: [[1, 0.010]]\ndraft_seconds: [[1, 0.050]]\n")
    code, out, _ = sequoia("--profile", "slow.yaml", "--acceptance", "p.json", "-o", "-")
    assert code == 0
    assert json.loads(out)["predicted"]["speedup"] == 1.0


def test_a_forced_size_is_kept_and_warned_of_where_it_is_slower(sequoia, files):
    code, out, err = sequoia("--profile", "steep.yaml", "--acceptance", "p.json", "--size", "9", "-o", "-")
    assert code == 0
    data = json.loads(out)
    assert (data["size"], data["inputs"]["limits"]["size"]) == (9, 9)
    assert data["predicted"]["speedup"] < 1
    assert "slower than plain decoding" in err
    assert "slower than plain decoding" in data["warnings"][0]


def test_sizes_beyond_the_profile_are_named_as_not_considered(sequoia, files):
    _, out, err = sequoia(
        "--profile", "flat.yaml", "--acceptance", "p.json", "-n", "128", "--explain", "-o", "-"
    )
    assert json.loads(out)["size"] == 64
    assert "not considered: sizes above 64" in err
    assert "sizes above 64" in json.loads(out)["notes"][0]


# --- what it says


def test_explain_shows_layers_parts_and_the_other_shapes_on_stderr(sequoia, files):
    code, out, err = sequoia("--profile", "flat.yaml", "--acceptance", "p.json", "--explain")
    assert (code, out) == (0, "")
    for expected in ("by layer", "expected tokens", "target", "draft", "verify", "speedup", "plain decoding"):
        assert expected in err
    for shape in ("(chosen)", "chain", "chains", "binary tree", "no speculation"):
        assert shape in err


def test_quiet_leaves_stderr_empty(sequoia, files):
    assert sequoia("--budget", "16", "--quiet", "--explain") == (0, "", "")


def test_shipped_defaults_are_named_as_another_machines(sequoia):
    _, _, err = sequoia("--budget", "16")
    assert "profile: the shipped a100.yaml, modelled times of another machine" in err
    assert "acceptance: the shipped published_demo_rates.yaml" in err


def test_what_this_machine_measured_last_is_the_default(sequoia, files):
    remember_latest("profile", files / "flat.yaml")
    remember_latest("acceptance", files / "p.json")
    _, _, err = sequoia("--budget", "16")
    assert "flat.yaml, this machine's latest" in err
    assert (files / "trees" / "flat_16.json").is_file()
    assert latest("tree") == files / "trees" / "flat_16.json"


@pytest.mark.parametrize(
    ("kind", "name", "other"), [("profile", "flat.yaml", "acceptance"), ("acceptance", "p.json", "profile")]
)
def test_one_measured_and_one_shipped_input_are_warned_of(sequoia, files, kind, name, other):
    remember_latest(kind, files / name)
    _, _, err = sequoia("--budget", "16")
    assert f"warning: the {other} is the shipped one" in err
    assert f"run `sequoia {other}`" in err


def test_inputs_of_different_models_are_warned_of(sequoia, files):
    (files / "timed.yaml").write_text(yaml.safe_dump(FLAT | {"conditions": {"target": "A", "draft": "D"}}))
    (files / "rates.yaml").write_text("p: [0.6, 0.1]\nconditions: {target: B, draft: D}\n")
    _, out, err = sequoia("--profile", "timed.yaml", "--acceptance", "rates.yaml", "-o", "-")
    message = "the profile is of target A, the acceptance rates are of target B"
    assert f"warning: {message}" in err
    assert json.loads(out)["warnings"] == [message]


def test_dates_and_numbered_keys_in_conditions_are_written_as_text(sequoia, files):
    (files / "dated.yaml").write_text(yaml.safe_dump(FLAT) + "conditions: {date: 2026-01-01, 7: seven}\n")
    code, out, _ = sequoia("--profile", "dated.yaml", "--acceptance", "p.json", "-o", "-")
    assert code == 0
    assert json.loads(out)["inputs"]["profile"]["conditions"] == {"date": "2026-01-01", "7": "seven"}


def test_times_with_an_exponent_and_no_point_are_read_as_numbers(sequoia, files):
    (files / "hw.yaml").write_text("target_seconds: [[1, 1e-2], [8, 2e-2]]\ndraft_seconds: [[1, 1e-3]]\n")
    (files / "rates.yaml").write_text("p:\n- 5e-1\n- 1E-1\n")
    code, out, _ = sequoia("--profile", "hw.yaml", "--acceptance", "rates.yaml", "-o", "-")
    assert code == 0
    assert json.loads(out)["size"] > 1


COUNTS = {
    "samples": [
        {"prompt": number, "trials": [60], "accepted": [[first, 9, 5, 3]]}
        for number, first in enumerate((30, 36, 40, 34, 43, 28, 38, 30))
    ]
}


def counted(files):
    """A rates file with counts of eight prompts."""
    p = [sum(sample["accepted"][0][rank] for sample in COUNTS["samples"]) / 480 for rank in range(4)]
    (files / "counted.yaml").write_text(yaml.safe_dump({"schema": "sequoia-rates/1", "p": p} | COUNTS))
    return "--profile", "flat.yaml", "--acceptance", "counted.yaml", "-o", "-"


def test_a_prediction_from_counts_has_an_interval_in_the_file_the_table_and_the_last_line(sequoia, files):
    code, out, err = sequoia(*counted(files), "--explain")
    assert code == 0
    predicted = json.loads(out)["predicted"]
    for key in ("tokens_per_step", "speedup"):
        low, high = predicted[f"{key}_interval"]
        assert low < predicted[key] < high
    assert 0 <= predicted["optimism"] < 0.1
    low, high = predicted["speedup_interval"]
    assert f"(predicted; {low:.2f} to {high:.2f} at 95%)" in err
    assert f"chosen ({low:.2f} to {high:.2f} times at 95%), and the runners-up" in err
    assert "the intervals are of the acceptance counts alone (8 prompts)" in err
    assert re.search(r"lead over the best chain: \d+\.\d% \(-?\d+\.\d% to \d+\.\d% at 95%\)", err)
    assert re.search(r"lead over the best k chains \(\d+ chains\): ", err)


def test_a_prediction_without_counts_says_that_it_has_no_interval(sequoia, files):
    _, out, err = sequoia("--profile", "flat.yaml", "--acceptance", "p.json", "--explain", "-o", "-")
    assert "speedup_interval" not in json.loads(out)["predicted"]
    assert "no intervals: the acceptance rates have no counts" in err
    assert re.search(r"lead over the best chain: \d+\.\d%$", err, re.MULTILINE)


def test_thin_counts_are_shrunk_and_warned_of(sequoia, files):
    (files / "thin.yaml").write_text("p: [1.0, 0.0]\ntrials: 5\naccepted: [5, 0]\n")
    _, out, err = sequoia("--profile", "flat.yaml", "--acceptance", "thin.yaml", "-o", "-")
    message = "the acceptance rates are of 5 trials, fewer than 400: they are shrunk towards 0.5 / rank²"
    assert f"warning: {message}" in err
    assert message in json.loads(out)["warnings"][0]
    assert json.loads(out)["predicted"]["tokens_per_step"] < 4


def test_a_cost_curve_that_falls_is_warned_of_and_does_not_make_trees_free(sequoia, files):
    (files / "falls.yaml").write_text(
        "target_seconds: [[1, 1.0], [64, 0.1]]\ndraft_seconds: [[1, 0.1], [8, 0.1]]\n"
    )
    _, out, err = sequoia("--profile", "falls.yaml", "--acceptance", "p.json", "-o", "-")
    assert "warning: the profile's 'target_seconds' falls from 1 s for 1 to 0.1 s for 64" in err
    predicted = json.loads(out)["predicted"]
    assert predicted["speedup"] < predicted["tokens_per_step"]


def test_tables_of_gigabytes_are_announced_and_refused_where_they_do_not_fit(sequoia, files, monkeypatch):
    from sequoia_cli.compiler import tables

    monkeypatch.setattr(tables, "free_memory", lambda: 1e9)
    (files / "wide.yaml").write_text(
        "target_seconds: [[1, 1.0], [4096, 2.0]]\ndraft_seconds: [[1, 0.1], [8, 1.0]]\n"
    )
    (files / "rows.json").write_text(
        json.dumps([[0.001 + depth * 1e-6, *[0.002] * 200] for depth in range(64)])
    )
    code, _, err = sequoia(
        *("--budget", "2000", "--max-depth", "128", "--max-branch", "200", "-o", "-"),
        *("--profile", "wide.yaml", "--acceptance", "rows.json"),
    )
    assert code == 2
    assert re.search(r"takes up to \d+\.\d GB of memory, since rates rise with the rank", err)
    assert re.search(r"take \d+\.\d GB, and 1\.0 GB are free", err)


# --- what it refuses, before any work


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--budget", "0"], "--budget 0 is out of range; 1 to 4096 is allowed"),
        (["--budget", "1000000"], "--budget 1000000 is out of range"),
        (["--max-depth", "0"], "--max-depth 0 is out of range; 1 to 128 is allowed"),
        (["--max-branch", "-1"], "--max-branch -1 is out of range"),
        (["--size", "0"], "--size 0 is out of range"),
        (["--size", "65", "--budget", "64"], "--size 65 is above --budget 64"),
        (["--size", "65"], "--size 65 is beyond the profile, whose times end at 64 tokens"),
        (["--size", "6", "--max-depth", "2"], "--size 6 is out of reach: 2 layers hold at most 5 nodes"),
        (["--budget", "many"], "Invalid value for '--budget'"),
        (["-o", "."], "is a directory"),
        (["-o", "p.json/tree.json"], "cannot be written"),
    ],
)
def test_a_bad_option_is_refused_in_one_line_by_flag_value_and_range(sequoia, files, arguments, line):
    code, out, err = sequoia("--profile", "flat.yaml", "--acceptance", "p.json", *arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert not (files / "trees").exists()


def test_two_inputs_from_stdin_are_refused(sequoia):
    code, _, err = sequoia("--profile", "-", "--acceptance", "-")
    assert code == 2
    assert "cannot both read stdin" in err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[0.9, 0.3, 0.1]", "sums to 1.3"),
        (
            "{p: [0.95], trials: 1000, accepted: [10]}",
            "'p' row 1, rank 1, is 0.95; accepted / trials is 10 / 1000",
        ),
        ("[0.5, .nan]", "entry 2 is nan; expected a finite number"),
        ("[0.5, -0.1]", "rank 2, is -0.1"),
        ('[0.5, "0.1"]', "rank 2, is '0.1'"),
        ("[]", "'p' is []"),
        ("[0, 0.6, 0.2, 0.1, 0.1]", "leading pad and the all-rejected rate at the end"),
        ("[0, 0.6, 0.2, 0.1]", "leading pad"),
        ("{q: [0.5]}", "unknown key 'q'"),
        ("{pp: [0.5], p: [0.5]}", "unknown key 'pp' in a rates file; did you mean 'p'?"),
        ("{conditions: {}}", "key 'p' is missing"),
        ("", "is empty"),
    ],
)
def test_rates_that_are_no_rates_are_refused_by_entry(sequoia, files, text, line):
    (files / "rates.yaml").write_text(text)
    code, _, err = sequoia("--profile", "flat.yaml", "--acceptance", "rates.yaml")
    assert code == 2
    assert line in err
    assert "rates.yaml" in err


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"target_seconds": [[1, 0]]}, "'target_seconds' entry 1 has seconds 0"),
        ({"target_seconds": [[1, 1e308], [8, 1e308]]}, "'target_seconds' has 1e+308 seconds for 1; 1e-12 to"),
        ({"target_seconds": [[1, "fast"]]}, "'target_seconds' entry 1 has seconds 'fast'"),
        ({"target_seconds": [[4, 1.0], [2, 1.0]]}, "tokens must rise"),
        ({"target_seconds": [1.0, 1.0]}, "expected a pair [tokens, seconds]"),
        ({"target_seconds": [[2, 1.0], [4, 1.0]]}, "'target_seconds' begin at 2; a time for 1 is needed"),
        ({"draft_second": [[1, 1.0]]}, "did you mean 'draft_seconds'?"),
        ({"schema": "sequoia-profile/99"}, "schema sequoia-profile/99 is not known to this version"),
        ({"schema": "sequoia-tree/1"}, "'schema' is 'sequoia-tree/1'; expected 'sequoia-profile/2'"),
    ],
)
def test_profiles_that_are_no_profiles_are_refused_by_key(sequoia, files, change, line):
    (files / "bad.yaml").write_text(yaml.safe_dump(FLAT | change))
    code, _, err = sequoia("--profile", "bad.yaml", "--acceptance", "p.json")
    assert code == 2
    assert line in err
    assert not (files / "trees").exists()


def test_a_missing_key_and_a_missing_file_are_named(sequoia, files):
    (files / "half.yaml").write_text("target_seconds: [[1, 1.0]]\n")
    assert "key 'draft_seconds' is missing" in sequoia("--profile", "half.yaml", "--acceptance", "p.json")[2]
    assert "nowhere.yaml does not exist" in sequoia("--profile", "nowhere.yaml")[2]


def test_a_trailing_comma_is_forgiven_as_yaml_forgives_it(sequoia, files):
    (files / "p.json").write_text("[0.6, 0.15,]")
    assert sequoia("--profile", "flat.yaml", "--acceptance", "p.json", "-o", "-")[0] == 0


def test_zero_rates_give_no_speculation_and_a_certain_child_a_chain(sequoia, files):
    _, zeros, _ = sequoia("--profile", "flat.yaml", "--acceptance", "-", "-o", "-", stdin="[0.0, 0.0]")
    _, certain, _ = sequoia("--profile", "flat.yaml", "--acceptance", "-", "-o", "-", stdin="[1.0]")
    assert json.loads(zeros)["verdict"] == "no speculation"
    assert json.loads(certain)["verdict"] == "chain"


def test_no_mistake_touches_an_older_tree(sequoia, files):
    (files / "tree.json").write_text("older")
    sequoia(
        "--profile", "flat.yaml", "--acceptance", "p.json", "--max-depth", "0", "-o", "tree.json", "--force"
    )
    assert (files / "tree.json").read_text() == "older"
