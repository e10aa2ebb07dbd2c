"""`sequoia profile` as a user meets it: a profile that compile takes, whole or resumable; no time matters."""

import json
import re

import pytest

from sequoia_cli.compiler.roofline import MODELLED_DEVICES
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.paths import latest, shipped
from sequoia_cli.measure import latency

SMALL = ("--tokens", "1,2,4", "--repeats", "1", "--context", "16")


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """Whatever this machine takes: timings that never count as unsteady."""
    monkeypatch.setattr(latency, "spread", lambda seconds: 0.0)


@pytest.fixture
def profile(run, pair):
    """Run `sequoia profile` on the tiny pair, as short as can be; options given replace these."""

    def command(*arguments, **options):
        return run("profile", *pair, *SMALL, *arguments, **options)

    return command


# --- what it writes


def test_the_file_is_a_profile_with_its_raw_samples_and_what_it_is_true_of(profile, models):
    code, out, err = profile("-o", "mine.yaml")
    assert (code, out) == (0, ""), err
    document = read_document("mine.yaml")
    read = HardwareProfile.from_document(document)
    assert read.origin == "measured"
    assert [tokens for tokens, _ in read.target_seconds] == [1, 2, 4]
    assert [width for width, _ in read.draft_seconds] == [1]
    assert [size for size, _ in read.verify_seconds] == [1, 2, 4]
    assert {part: [size for size, _ in samples] for part, samples in read.samples.items()} == {
        "target": [1, 2, 4],
        "draft": [1],
        "verify": [1, 2, 4],
        "overhead": [1, 2, 4],
    }
    assert read.overhead_seconds > 0
    plain, *others = read.samples["target"]
    assert len(plain[1]) == len(others) * latency.STEPS  # beside every other size
    assert all(len(seconds) == latency.STEPS for _, seconds in others)
    stated = document.data["conditions"]
    assert (stated["target"], stated["draft"]) == (models["target"], models["draft"])
    assert (stated["context"], stated["dtype"], stated["temperature"]) == (16, "float32", 0.0)
    assert {"command", "version", "created", "packages"} <= set(document.data)
    assert "wrote mine.yaml" in err
    assert "tokens" in err


def test_compile_takes_the_profile(profile, run, empty_place):
    assert profile()[0] == 0
    assert latest("profile") == empty_place / "profiles" / "target.yaml"
    code, out, err = run("compile", "--profile", "profiles/target.yaml", "--budget", "4", "-o", "-")
    assert code == 0, err
    assert json.loads(out)["inputs"]["profile"]["origin"] == "measured"


def test_plain_decoding_is_timed_whether_asked_for_or_not(profile):
    _, out, _ = profile("--tokens", "4, 2", "-o", "-", "--json")
    assert [tokens for tokens, _ in json.loads(out)["target_seconds"]] == [1, 2, 4]


def test_several_contexts_are_timed_into_one_file_which_compile_chooses_a_point_of(profile, run):
    code, _, err = profile("--context", "32,16,16", "-o", "mine.yaml")
    assert code == 0, err
    read = HardwareProfile.from_document(read_document("mine.yaml"))
    assert (read.context, [context for context, _ in read.contexts]) == (16, [32])
    ((_, longer),) = read.contexts
    for times in (read, longer):
        assert [tokens for tokens, _ in times.target_seconds] == [1, 2, 4]
        assert all(len(seconds) == latency.STEPS for _, seconds in times.samples["target"][1:])
    assert "context 16, milliseconds" in err
    assert "context 32, milliseconds" in err

    def plan(*arguments):
        code, out, err = run("compile", "--profile", "mine.yaml", "--size", "4", "-o", "-", *arguments)
        assert code == 0, err
        return json.loads(out)

    for context in (16, 20, 32):
        found = plan("--context", str(context))
        assert found["inputs"]["profile"]["conditions"]["context"] == context
        assert found["command"].endswith(f"--context {context}")
    assert plan()["inputs"]["profile"]["conditions"]["context"] == 16
    code, _, err = run("compile", "--profile", "mine.yaml", "--context", "33")
    assert code == 2
    assert "--context is 33; the profile's times are of a context of 16 to 32 tokens" in err
    assert "sequoia profile --context 16,33" in err


def test_an_interrupted_run_of_several_contexts_goes_on_where_it_stopped(profile, monkeypatch):
    right, timed = latency.time_round, []

    def interrupting(target, draft, sizes, prompt, number, *arguments):
        timed.append((number, len(prompt)))
        if len(timed) == 2:
            raise KeyboardInterrupt
        return right(target, draft, sizes, prompt, number, *arguments)

    monkeypatch.setattr(latency, "time_round", interrupting)
    options = ("--repeats", "2", "--context", "16,32", "-o", "mine.yaml")
    assert profile(*options)[0] == 130
    code, _, err = profile(*options)
    assert code == 0
    assert "1 of 4 rounds are done" in err
    assert timed == [(0, 16), (0, 32), (0, 32), (1, 16), (1, 32)]


def test_a_sampled_profile_says_its_temperature(profile):
    _, out, _ = profile("-T", "0.6", "-o", "-", "--json")
    assert json.loads(out)["conditions"]["temperature"] == 0.6


def test_json_prints_what_the_file_says(profile):
    code, out, err = profile("-o", "mine.yaml", "--json", "--quiet")
    assert (code, err) == (0, "")
    assert json.loads(out) == read_document("mine.yaml").data


def test_an_existing_profile_is_replaced_by_force_alone(profile, empty_place):
    (empty_place / "mine.yaml").write_text("mine")
    code, _, err = profile("-o", "mine.yaml")
    assert code == 2
    assert "mine.yaml exists" in err
    assert profile("-o", "mine.yaml", "--force")[0] == 0
    assert HardwareProfile.from_document(read_document("mine.yaml"))


def test_the_largest_context_allowed_can_be_timed(profile, models):
    options = ("--target", models["short"], "--draft", models["short"], "--tokens", "1,4,9")
    code, _, err = profile(*options, "--context", "999")
    assert code == 2
    most = re.search(r"--context is 999; these models leave room for (\d+) tokens", err)[1]
    assert profile(*options, "--context", most)[0] == 0
    assert profile(*options, "--context", str(int(most) + 1), "-o", "more.yaml")[0] == 2


# --- interrupts and unsteady timings


def test_an_interrupted_run_goes_on_where_it_stopped(profile, monkeypatch, empty_place):
    right, rounds = latency.time_round, []

    def interrupting(target, draft, sizes, prompt, number, *arguments):
        rounds.append(number)
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return right(target, draft, sizes, prompt, number, *arguments)

    monkeypatch.setattr(latency, "time_round", interrupting)
    code, out, err = profile("--repeats", "3", "-o", "mine.yaml")
    assert (code, out) == (130, "")
    assert "what was measured is kept in mine.yaml.partial; the same command continues" in err
    assert not (empty_place / "mine.yaml").exists()
    code, _, err = profile("--repeats", "3", "-o", "mine.yaml")
    assert code == 0
    assert "continuing an interrupted run: 1 of 3 rounds are done" in err
    assert rounds == [0, 1, 1, 2]
    samples = HardwareProfile.from_document(read_document("mine.yaml")).samples
    assert all(len(seconds) == 3 * latency.STEPS for _, seconds in samples["target"][1:])
    assert not (empty_place / "mine.yaml.partial").exists()


@pytest.mark.parametrize(("spread", "expected"), [(0.3, 0), (1.5, 3)])
def test_unsteady_timings_are_warned_of_and_unusable_ones_fail_with_the_file_written(
    profile, monkeypatch, spread, expected
):
    monkeypatch.setattr(latency, "spread", lambda seconds: spread)
    code, _, err = profile("-o", "mine.yaml")
    assert code == expected
    assert "warning: 4 of 4 timings are unsteady" in err
    assert "--repeats 20" in err
    assert ("too unsteady to trust" in err) == (expected == 3)
    document = read_document("mine.yaml")
    assert HardwareProfile.from_document(document).target_seconds
    assert "timings are unsteady" in document.data["warnings"][0]


# --- what it refuses


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--tokens", "0"], "--tokens has 0; trees of 1 to 4096 nodes can be timed"),
        (["--tokens", "1,5000"], "--tokens has 5000"),
        (["--tokens", "a"], "--tokens is 'a'; expected whole numbers with commas"),
        (["--tokens", ""], "--tokens is ''"),
        (["--tokens", "1,,2"], "--tokens is '1,,2'"),
        (["--context", "0"], "--context is 0; at least 1 is needed"),
        (["--context", "16,0"], "--context is 0; at least 1 is needed"),
        (["--context", "long"], "--context is 'long'; expected whole numbers with commas"),
        (["--context", "16,252"], "--context is 252; these models leave room for"),
        (["--context", "252"], "--context is 252; these models leave room for"),
        (["--context", "1000000000000"], "--context is 1000000000000; these models leave room for"),
        (["--repeats", "0"], "--repeats is 0; at least 1 is needed"),
        (["--repeats", "x"], "Invalid value for '--repeats'"),
        (["-T", "nan"], "temperature is nan"),
        (["--dtype", "nonsense"], "dtype 'nonsense' is not known"),
        (["--device", "v100"], "device 'v100' is not known"),
        (["--device", "a100"], "--modelled computes a profile from its figures"),
        (["-o", "."], ". is a directory"),
    ],
)
def test_a_bad_option_is_refused_by_flag_and_value(profile, empty_place, arguments, line):
    code, out, err = profile(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert not (empty_place / "profiles" / "target.yaml").exists()


# --- modelled


@pytest.mark.parametrize("device", MODELLED_DEVICES)
def test_a_modelled_profile_is_marked_as_one_and_is_not_this_machines(run, device):
    code, out, _ = run("profile", "--modelled", "--device", device, "--json")
    assert code == 0
    read = HardwareProfile.from_document(read_document(f"profiles/{device}.yaml"))
    assert read.origin == json.loads(out)["origin"] == "modelled"
    assert latest("profile") is None


def test_the_modelled_a100_is_the_shipped_profile(run, empty_place):
    run("profile", "--modelled", "--device", "a100")
    written = empty_place / "profiles" / "a100.yaml"
    assert written.read_bytes() == shipped("profiles", "a100.yaml").read_bytes()


@pytest.mark.parametrize("device", ["auto", "v100"])
def test_a_device_without_a_model_is_answered_with_those_that_have_one(run, device):
    code, out, err = run("profile", "--modelled", "--device", device)
    assert (code, out) == (2, "")
    assert f"device {device} has no model; there is one for {', '.join(MODELLED_DEVICES)}" in err


# --- the whole pipeline


def test_the_commands_chain_through_what_each_noted_last(run, pair, profile, empty_place):
    (empty_place / "prompts.txt").write_text("Hello\nit's a fine day\n")
    assert profile()[0] == 0
    measured = ("--dataset", "prompts.txt", "--max-new-tokens", "10", "--ranks", "3", "--depths", "2")
    assert run("acceptance", *pair, *measured)[0] == 0
    code, _, err = run("compile", "--size", "4")
    assert code == 0, err
    for name in ("target.yaml", "target_rates.yaml"):
        assert f"{empty_place / 'profiles' / name}, this machine's latest" in err
    code, out, err = run("generate", *pair, "-p", "Hello", "-n", "10", "--compare", "--json")
    assert code == 0, err
    assert f"tree: {empty_place / 'trees' / 'target_4.json'}, the one compiled last on this machine" in err
    found = json.loads(out)
    assert len(found["token_ids"]) == 10
    assert found["predicted"]["tokens_per_step"] > 1
    assert found["first_differences"] == {}
    assert "the tree was compiled for another setting" not in err


# --- options that would do nothing


def test_a_modelled_profile_refuses_options_that_it_has_no_use_for(run, empty_place):
    code, _, err = run("profile", "--device", "a100", "--modelled", "--target", "mine", "--dtype", "float32")
    assert code == 2
    assert "--modelled computes the times of Llama-2-7B" in err
    assert "without effect: --target, --dtype\n" in err
    assert not (empty_place / "profiles").exists()


def test_plain_decoding_alone_is_no_profile(profile, empty_place):
    code, _, err = profile("--tokens", "1")
    assert code == 2
    assert "--tokens is 1 alone" in err
    assert latest("profile") is None


def test_an_unfinished_profile_of_other_sizes_is_named_and_kept(profile, monkeypatch, empty_place):
    right, rounds = latency.time_round, []

    def interrupting(*arguments):
        rounds.append(arguments[4])
        if len(rounds) == 2:
            raise KeyboardInterrupt
        return right(*arguments)

    monkeypatch.setattr(latency, "time_round", interrupting)
    profile("--repeats", "3", "-o", "mine.yaml")
    kept = (empty_place / "mine.yaml.partial").read_bytes()
    code, _, err = profile("--tokens", "1,2", "-o", "mine.yaml")
    assert code == 2
    assert "mine.yaml.partial holds 1 finished pieces of a run of other options: sizes" in err
    assert (empty_place / "mine.yaml.partial").read_bytes() == kept
