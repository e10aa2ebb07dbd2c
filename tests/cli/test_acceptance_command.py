"""`sequoia acceptance` as a user meets it: a rates file that says what it is true of, whole or resumable."""

import json
from pathlib import Path

import pytest
import yaml

from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import latest
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.measure import acceptance as estimators

SMALL = ("--max-new-tokens", "10", "--ranks", "3", "--depths", "2")
PROMPTS = ["Hello", "it's a fine day", "late we are", "there!"]


@pytest.fixture
def acceptance(run, pair, empty_place):
    """Run `sequoia acceptance` on the tiny pair and four prompts; options given replace these."""
    (empty_place / "prompts.txt").write_text("\n".join(PROMPTS))

    def command(*arguments, **options):
        return run("acceptance", *pair, *SMALL, "--dataset", "prompts.txt", *arguments, **options)

    return command


@pytest.fixture
def measured(acceptance):
    """The file of a run that has to succeed, as a mapping."""

    def command(*arguments, name="rates.yaml", **options):
        code, _, err = acceptance("-o", name, *arguments, **options)
        assert code == 0, err
        return read_document(name).data

    return command


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C after two prompts, once."""
    right, calls = estimators.teacher_forced, []

    def interrupting(*arguments, **options):
        calls.append(options["index"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return right(*arguments, **options)

    monkeypatch.setattr(estimators, "teacher_forced", interrupting)
    return calls


def without_time(data):
    return {key: value for key, value in data.items() if key not in ("created", "command")}


# --- what it writes


def test_the_file_says_what_was_counted_and_what_it_is_true_of(measured, models):
    data = measured("-T", "0.6", "--top-p", "0.9", "--seed", "7")
    assert data["schema"] == "sequoia-rates/1"
    assert {"command", "version", "created", "packages"} <= set(data)
    assert {"python", "torch", "transformers", "sequoia"} <= set(data["packages"])
    stated = data["conditions"]
    assert (stated["target"], stated["draft"]) == (models["target"], models["draft"])
    assert (stated["temperature"], stated["top_p"], stated["top_k"]) == (0.6, 0.9, 0)
    assert (stated["estimator"], stated["seed"], stated["dtype"]) == ("teacher-forced", 7, "float32")
    assert stated["dataset"]["name"] == "prompts.txt"
    assert stated["dataset"]["prompts"] == 4
    assert stated["dataset"]["digest"].startswith("sha256:")
    assert len(data["trials"]) == len(data["accepted"]) == 2
    assert [len(row) for row in data["accepted"]] == [3, 3]
    assert len(data["standard_error"]) == 3
    assert [sample["prompt"] for sample in data["samples"]] == [0, 1, 2, 3]
    assert data["p"][0][0] == pytest.approx(data["accepted"][0][0] / data["trials"][0], abs=1e-3)


def test_the_recorded_command_makes_the_file_again(measured, run, models):
    data = measured("-T", "0.6")
    assert data["command"].startswith("sequoia acceptance --draft draft --dataset prompts.txt")
    assert "--temperature 0.6 --target target" in data["command"]
    assert "-o" not in data["command"]
    assert models["target"] not in data["command"]


def test_on_policy_counts_are_whole_numbers_of_one_level(measured):
    data = measured("--estimator", "on-policy", "--depths", "1", "-T", "1")
    assert data["conditions"]["estimator"] == "on-policy"
    assert len(data["trials"]) == 1
    counts = [*data["trials"], *data["accepted"][0]]
    assert all(isinstance(count, int) for count in counts)
    assert 0 < sum(data["accepted"][0]) <= data["trials"][0]


@pytest.mark.parametrize("estimator", ["on-policy", "teacher-forced"])
def test_a_prompt_that_comes_several_times_is_measured_on_several_texts(acceptance, estimator):
    Path("same.txt").write_text("Hello\n" * 3)
    options = (
        "--estimator",
        estimator,
        "-T",
        "1",
        "--depths",
        "1",
        "--dataset",
        "same.txt",
        "-o",
        "same.yaml",
    )
    assert acceptance(*options)[0] == 0
    counts = [sample["accepted"] for sample in read_document("same.yaml").data["samples"]]
    assert len(set(map(str, counts))) > 1


def test_a_context_of_the_draft_that_is_too_short_is_named(acceptance, models, tmp_path):
    Path("long.txt").write_text("it's a fine day, isn't it? " * 4 + "\n")
    Path("both.txt").write_text("it's a fine day, isn't it? " * 4 + "\nHello\n")
    short = ("--draft", models["short"], "-o", "rates.yaml")
    code, _, err = acceptance(*short, "--dataset", "long.txt")
    assert code == 2
    assert "has a context of 32 tokens and target" in err
    assert "every prompt has 32 tokens or more, where the context of target or draft ends" in err
    code, _, err = acceptance(*short, "--dataset", "both.txt")
    assert code == 0
    assert "1 of 2 prompts are not counted: they have 32 tokens or more" in err
    assert "has a context of" not in acceptance("--dataset", "both.txt", "-o", "other.yaml")[2]


def test_a_draft_that_is_the_target_is_always_accepted(measured, models):
    data = measured("--draft", models["target"])
    assert [row[0] for row in data["p"]] == [1.0] * len(data["p"])


def test_the_default_place_is_named_after_the_target_and_noted_as_the_latest(acceptance, empty_place):
    code, out, err = acceptance()
    assert (code, out) == (0, "")
    assert "wrote profiles/target_rates.yaml" in err
    assert "p_1" in err
    assert latest("acceptance") == empty_place / "profiles" / "target_rates.yaml"


def test_stdout_gets_yaml_or_json_and_nothing_is_kept(acceptance, empty_place):
    code, out, _ = acceptance("-o", "-")
    assert code == 0
    assert yaml.safe_load(out)["schema"] == "sequoia-rates/1"
    code, out, _ = acceptance("-o", "-", "--json")
    assert json.loads(out)["schema"] == "sequoia-rates/1"
    assert [path.name for path in empty_place.iterdir()] == ["prompts.txt"]
    assert latest("acceptance") is None


def test_json_prints_what_the_file_says(acceptance):
    _, out, _ = acceptance("-o", "rates.yaml", "--json", "--quiet")
    assert json.loads(out) == read_document("rates.yaml").data


def test_a_limit_measures_the_first_prompts_alone(measured):
    whole = measured()
    part = measured("--limit", "2", name="part.yaml")
    assert part["samples"] == whole["samples"][:2]
    assert part["conditions"]["dataset"]["prompts"] == 2


def test_prompts_are_templated_as_generate_does(acceptance, measured, run, models, monkeypatch):
    seen = []
    right = estimators.teacher_forced

    def watching(target, draft, prompt, *arguments, **options):
        seen.append(len(prompt))
        return right(target, draft, prompt, *arguments, **options)

    monkeypatch.setattr(estimators, "teacher_forced", watching)
    chat = ("--target", models["chat"], "--draft", models["draft"], "--dtype", "float32")
    templated, raw = measured(*chat), measured(*chat, "--raw", name="raw.yaml")
    assert (templated["conditions"]["chat_template"], raw["conditions"]["chat_template"]) == (True, False)
    for flags, lengths in (((), seen[:4]), (("--raw",), seen[4:])):
        _, out, _ = run("generate", *chat, "--plain", "--prompts", "prompts.txt", "-n", "0", "--json", *flags)
        assert [result["prompt_tokens"] for result in json.loads(out)["results"]] == lengths


# --- interrupts


def test_an_interrupted_run_resumes_to_the_same_result_as_a_whole_one(
    acceptance, measured, empty_place, request
):
    whole = measured("-T", "1")
    calls = request.getfixturevalue("interrupted")
    code, out, err = acceptance("-o", "rates2.yaml", "-T", "1")
    assert (code, out) == (130, "")
    assert "measurements so far are kept in rates2.yaml.partial; the same command resumes" in err
    assert (empty_place / "rates2.yaml.partial").exists()
    assert not (empty_place / "rates2.yaml").exists()
    code, _, err = acceptance("-o", "rates2.yaml", "-T", "1")
    assert code == 0
    assert "resuming an interrupted run: 2 of 4 prompts are done" in err
    assert calls == [0, 1, 2, 2, 3]
    assert without_time(read_document("rates2.yaml").data) == without_time(whole)
    assert not (empty_place / "rates2.yaml.partial").exists()


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        (("-T", "0.9"), "temperature 1.0 there, 0.9 here"),
        (("-T", "1", "--depths", "1"), "depths 2 there, 1 here"),
    ],
)
def test_an_unfinished_run_of_other_options_is_named_and_kept(
    acceptance, interrupted, empty_place, options, difference
):
    acceptance("-o", "rates.yaml", "-T", "1")
    kept = (empty_place / "rates.yaml.partial").read_bytes()
    code, out, err = acceptance("-o", "rates.yaml", *options)
    assert (code, out) == (2, "")
    assert f"rates.yaml.partial holds 2 finished pieces of a run of other options: {difference}" in err
    assert "--force" in err
    assert (empty_place / "rates.yaml.partial").read_bytes() == kept
    assert acceptance("-o", "rates.yaml", *options, "--force")[0] == 0
    assert interrupted == [0, 1, 2, 0, 1, 2, 3]


def test_a_run_under_another_version_of_a_package_is_not_continued(acceptance, interrupted, monkeypatch):
    from sequoia_cli.measure import session

    packages = session.packages()
    acceptance("-o", "rates.yaml")
    monkeypatch.setattr(session, "packages", lambda: {**packages, "torch": "9.9"})
    code, _, err = acceptance("-o", "rates.yaml")
    assert code == 2
    assert f"run of other options: torch '{packages['torch']}' there, '9.9' here" in err


def test_finished_prompts_count_whichever_others_are_asked_for(acceptance, measured, interrupted):
    acceptance("-o", "rates.yaml", "-T", "1", "--limit", "3")
    code, _, err = acceptance("-o", "rates.yaml", "-T", "1")
    assert code == 0
    assert "resuming an interrupted run: 2 of 4 prompts are done" in err
    assert interrupted == [0, 1, 2, 2, 3]
    again = measured("-T", "1", name="again.yaml")
    assert read_document("rates.yaml").data["samples"] == again["samples"]


def test_finished_prompts_that_are_not_asked_for_are_named_and_kept(acceptance, interrupted, empty_place):
    acceptance("-o", "rates.yaml")
    code, _, err = acceptance("-o", "rates.yaml", "--limit", "1")
    assert code == 2
    assert "rates.yaml.partial holds 1 finished prompts that are not among those asked for" in err
    code, _, err = acceptance("-o", "rates.yaml", "--limit", "1", "--force")
    assert code == 0
    assert interrupted == [0, 1, 2]  # the prompt that is asked for was not measured again


# --- merging


def test_runs_over_different_prompts_add_up_to_the_run_over_both(measured, run, empty_place):
    for name, texts in (("a", PROMPTS[:2]), ("b", PROMPTS[2:])):
        (empty_place / f"{name}.txt").write_text("\n".join(texts))
        measured("--dataset", f"{name}.txt", name=f"{name}.yaml")
    code, out, err = run("acceptance", "--merge", "a.yaml", "--merge", "b.yaml", "-o", "both.yaml")
    assert (code, out) == (0, ""), err
    assert latest("acceptance") == empty_place / "both.yaml"
    both, whole = read_document("both.yaml").data, measured()
    for key in ("trials", "accepted", "p", "standard_error"):
        assert both[key] == whole[key]
    without_id = [[{**sample, "id": ""} for sample in data["samples"]] for data in (both, whole)]
    assert without_id[0] == without_id[1]
    assert [part["name"] for part in both["conditions"]["dataset"]] == ["a.txt", "b.txt"]
    assert {"command", "version", "created"} <= set(both)
    assert AcceptanceRates.from_document(read_document("both.yaml")).samples


@pytest.mark.parametrize(
    ("second", "line"),
    [
        (
            "warm.yaml",
            "warm.yaml cannot be merged: rates of different conditions do not add up: 'temperature' is",
        ),
        ("bare.json", "bare.json has rates but no counts; merging needs counts"),
        ("wide.yaml", "wide.yaml cannot be merged: rates of different depths or ranks"),
        ("rates.yaml", "rates.yaml is given twice; its prompts would be counted twice"),
        ("none.yaml", "none.yaml does not exist"),
    ],
)
def test_files_that_do_not_add_up_are_refused_by_name(measured, run, empty_place, second, line):
    measured()
    measured("-T", "1", name="warm.yaml")
    measured("--ranks", "4", name="wide.yaml")
    (empty_place / "bare.json").write_text("[0.6, 0.2]")
    code, out, err = run("acceptance", "--merge", "rates.yaml", "--merge", second)
    assert (code, out) == (2, "")
    assert line in err
    assert not (empty_place / "profiles" / "merged_rates.yaml").exists()


def test_what_was_counted_already_is_left_out_with_a_note(measured, run, empty_place):
    whole, part = measured(), measured("--limit", "2", name="part.yaml")
    text = (empty_place / "rates.yaml").read_text()
    (empty_place / "copy.yaml").write_text("# a comment\n" + text)
    old = json.loads(json.dumps(part))  # as older versions wrote it
    for sample in old["samples"]:
        del sample["id"], sample["digest"]
    (empty_place / "old.json").write_text(json.dumps(old))
    (empty_place / "old_copy.yaml").write_text(yaml.safe_dump(old))
    for first, second, known in (
        ("rates.yaml", "copy.yaml", "copy.yaml: 4 of 4 prompts are"),
        ("rates.yaml", "part.yaml", "part.yaml: 2 of 2 prompts are"),
        ("part.yaml", "rates.yaml", "rates.yaml: 2 of 4 prompts are"),
        ("part.yaml", "old.json", "old.json: 2 of 2 prompts are"),
        ("old.json", "old_copy.yaml", "old_copy.yaml: 2 of 2 prompts are"),
    ):
        code, out, err = run("acceptance", "--merge", first, "--merge", second, "-o", "-", "--json")
        assert code == 0, err
        assert known + " already counted and left out" in err
        expected = part if "old.json" in (first, second) else whole
        assert json.loads(out)["trials"] == expected["trials"]


def test_counts_of_unknown_prompts_are_warned_of(measured, run, empty_place):
    data = measured()
    for sample in data["samples"]:
        del sample["id"], sample["digest"]
    data["conditions"]["dataset"]["digest"] = "sha256:other"
    (empty_place / "old.json").write_text(json.dumps(data))
    code, out, err = run("acceptance", "--merge", "rates.yaml", "--merge", "old.json", "-o", "-", "--json")
    assert code == 0
    warning = "old.json does not identify its prompts: some may be counted twice"
    assert f"warning: {warning}" in err
    assert json.loads(out)["warnings"] == [warning]


def test_runs_on_two_machines_add_up_and_both_are_named(measured, run, empty_place):
    here, there = measured("--limit", "2"), measured(name="there.yaml")
    there["samples"] = there["samples"][2:]
    rows = [sample["accepted"] for sample in there["samples"]]
    sums = [[sum(column) for column in zip(*depth, strict=True)] for depth in zip(*rows, strict=True)]
    trials = [sample["trials"] for sample in there["samples"]]
    there["trials"] = [sum(column) for column in zip(*trials, strict=True)]
    there["accepted"] = sums
    there["p"] = [[count / there["trials"][0] for count in sums[0]]]
    there["conditions"] |= {"device": "another chip", "threads": 64}
    (empty_place / "there.yaml").write_text(yaml.safe_dump(there))
    code, out, err = run("acceptance", "--merge", "rates.yaml", "--merge", "there.yaml", "-o", "-", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["conditions"]["device"] == [here["conditions"]["device"], "another chip"]
    assert found["conditions"]["threads"] == [here["conditions"]["threads"], 64]
    assert len(found["samples"]) == 4


def test_other_counts_of_the_same_prompts_are_refused_by_name(measured, run, empty_place):
    measured("--limit", "3")
    text = (empty_place / "rates.yaml").read_text()
    data = yaml.safe_load(text)
    for sample in data["samples"][:2]:
        sample["trials"][0] += 1
    data["trials"][0] += 2
    data["p"] = [[count / data["trials"][0] for count in data["accepted"][0]]]
    (empty_place / "other.yaml").write_text(yaml.safe_dump(data))
    code, _, err = run("acceptance", "--merge", "rates.yaml", "--merge", "other.yaml", "-o", "-")
    assert code == 2
    assert "other.yaml cannot be merged: 2 prompts are counted in both, with different counts: 1, 2\n" in err


def test_merging_refuses_options_that_it_has_no_use_for(run):
    merge = ("acceptance", "--merge", "a.yaml", "--merge", "b.yaml")
    code, _, err = run(*merge, "-T", "0.6", "--limit", "3", "--force")
    assert code == 2
    assert "measures nothing; without effect: --limit, --temperature\n" in err


def test_one_file_alone_is_nothing_to_merge(run):
    code, _, err = run("acceptance", "--merge", "a.yaml")
    assert code == 2
    assert "--merge is given once" in err


# --- prompt files of which some rows are bad


def test_bad_rows_are_refused_or_left_out_by_name(acceptance, measured, empty_place):
    rows = ['{"prompt": "Hello"}', "{broken", '{"prompt": "there!"}', '{"q": 1}', '{"prompt": ""}', "5"]
    (empty_place / "rows.jsonl").write_text("\n".join(rows))
    code, _, err = acceptance("--dataset", "rows.jsonl")
    assert code == 2
    assert "rows.jsonl, line 2: not valid JSON" in err
    assert "--skip-bad skips such prompts" in err
    code, _, err = acceptance("--dataset", "rows.jsonl", "--skip-bad", "-o", "rates.yaml")
    assert code == 0
    assert "left out 4 bad rows: rows.jsonl, line 2: not valid JSON" in err
    assert err.count("rows.jsonl, line") == 3
    assert "; and 1 more" in err
    assert [sample["id"] for sample in read_document("rates.yaml").data["samples"]] == ["1", "3"]


# --- what it refuses, before models are loaded


@pytest.fixture
def no_models(monkeypatch):
    """Fails a test that gets as far as loading models."""
    from sequoia_cli.measure import session

    def opened(*arguments, **options):
        raise AssertionError("models were loaded before the checks were done")

    monkeypatch.setattr(session, "open_session", opened)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--limit", "0"], "--limit is 0; at least 1 is needed"),
        (["--ranks", "0"], "--ranks is 0; at least 1 is needed"),
        (["--depths", "-1"], "--depths is -1; at least 1 is needed"),
        (["--depths", "11"], "--depths is 11; a text of 10 tokens is at most 10 deep"),
        (["--max-new-tokens", "1"], "--max-new-tokens is 1; at least 2 is needed"),
        (["--ranks", "some"], "Invalid value for '--ranks'"),
        (["--estimator", "on-policy"], "measures the root's children alone; without effect: --depths"),
        (["--estimator", "guess"], "--estimator is 'guess'; expected teacher-forced or on-policy"),
        (["-T", "-1"], "temperature is -1.0"),
        (["--dataset", "none.jsonl"], "none.jsonl does not exist"),
        (["--dataset", "bad.jsonl"], "bad.jsonl, line 2: not valid JSON at column"),
        (["--dataset", "keys.jsonl"], "keys.jsonl, line 1: found the keys q; expected one of messages"),
        (["--dataset", "empty.txt"], "empty.txt holds no prompts"),
        (["--dataset", "-"], "stdin holds no prompts"),
        (["-o", "."], ". is a directory"),
        (["-o", "prompts.txt/rates.yaml"], "prompts.txt/rates.yaml cannot be written"),
        (["-o", "empty.txt"], "empty.txt exists"),
    ],
)
def test_a_bad_option_or_dataset_is_refused_by_name(acceptance, empty_place, no_models, arguments, line):
    (empty_place / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (empty_place / "keys.jsonl").write_text('{"q": "a"}\n')
    (empty_place / "empty.txt").write_text("")
    code, out, err = acceptance(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert not (empty_place / "profiles" / "target_rates.yaml").exists()


def test_more_ranks_than_the_target_has_ids_are_refused(acceptance):
    code, out, err = acceptance("--ranks", "301")
    assert (code, out) == (2, "")
    assert "--ranks is 301; the target has 300 ids" in err


def test_a_prompt_longer_than_the_context_is_named_before_anything_is_measured(
    acceptance, models, empty_place
):
    (empty_place / "long.jsonl").write_text(
        '{"id": "a", "prompt": "hi"}\n{"id": "b", "prompt": "%s"}\n' % ("x" * 50)
    )
    code, _, err = acceptance("--target", models["short"], "--dataset", "long.jsonl")
    assert code == 2
    assert "prompt b: it has 50 tokens, and the target's context ends at 32" in err
    assert "--skip-bad skips such prompts" in err


def test_a_prompt_longer_than_the_context_is_left_out_by_name_with_skip_bad(acceptance, models, empty_place):
    long = "x" * 50
    (empty_place / "long.jsonl").write_text(
        '{"id": "a", "prompt": "hi"}\n{"id": "b", "prompt": "' + long + '"}\n{"id": "c", "prompt": "ho"}\n'
    )
    short = ("--target", models["short"], "--draft", models["short"])
    for file in ("long.jsonl", "fitting.jsonl"):
        code, _, err = acceptance(*short, "--dataset", file, "--skip-bad", "-o", f"{file}.yaml")
        assert code == 0, err
        assert ("left out 1 bad prompts: prompt b: it has 50 tokens" in err) == (file == "long.jsonl")
        lines = (empty_place / "long.jsonl").read_text().splitlines()
        (empty_place / "fitting.jsonl").write_text("\n".join([lines[0], lines[2]]))
    found, fitting = (read_document(f"{name}.jsonl.yaml").data for name in ("long", "fitting"))
    assert [sample["id"] for sample in found["samples"]] == ["a", "c"]
    # What it was measured on is the prompts that were used.
    digest, expected = (data["conditions"]["dataset"]["digest"] for data in (found, fitting))
    assert digest == expected
    (empty_place / "none.jsonl").write_text(f'"{long}"')
    code, _, err = acceptance(*short, "--dataset", "none.jsonl", "--skip-bad", "-o", "none.yaml")
    assert code == 2
    assert "the target can take none of the 1 prompts; the first: prompt 1: it has 50 tokens" in err


@pytest.mark.parametrize("estimator", ["teacher-forced", "on-policy"])
def test_a_draft_with_a_shorter_context_is_tried_as_far_as_it_reaches(
    measured, models, empty_place, estimator
):
    (empty_place / "lengths.txt").write_text("\n".join("x" * count for count in (3, 31, 32, 33, 50)))
    options = ("--draft", models["short"], "--dataset", "lengths.txt", "--estimator", estimator)
    options += ("--depths", "1")
    trials = [sample["trials"][0] for sample in measured(*options)["samples"]]
    assert trials[0] > trials[1] > 0
    assert trials[3:] == [0, 0]


def test_an_existing_file_is_replaced_by_force_alone(measured, acceptance, empty_place):
    (empty_place / "rates.yaml").write_text("mine")
    assert acceptance("-o", "rates.yaml")[0] == 2
    assert (empty_place / "rates.yaml").read_text() == "mine"
    assert measured("--force")["schema"] == "sequoia-rates/1"
