"""`sequoia check` as a user meets it: what it says, what it prints for programs, how it ends."""

import json
import math

import pytest

from sequoia_cli.check import run as check_run
from sequoia_cli.check.reference import TransformersReference
from sequoia_cli.engine.verification.residual import ResidualRule

FEW = ("-p", "Hello", "-n", "8", "--samples", "100")


@pytest.fixture
def check(run, models, trees):
    """Run `sequoia check` on a target and a draft that is often wrong; options given replace these."""

    def command(*arguments, draft="wide", tree="tree", **options):
        pair = ("--target", models["target"], "--draft", models[draft], "--dtype", "float32")
        return run("check", *pair, "--tree", trees[tree], *arguments, **options)

    return command


def test_one_document_with_conditions_texts_tests_and_controls_and_tables_beside_it(check):
    code, out, err = check(*FEW, "--json")
    found = json.loads(out)
    # A hundred samples are not enough for the default limit.
    assert (code, found["powerful"]) == (3, False)
    assert 0.25 < found["smallest_deviation"]["first_token"] < 0.7
    assert found["smallest_deviation"]["limit"] == 0.25
    assert (found["schema"], found["passed"]) == ("sequoia-check/1", True)
    assert (found["differences"], found["failures"], found["samples_done"]) == ([], [], 100)
    assert found["false_alarm_rate"] == 1e-4  # once in 10,000 runs, as the help and docs/check.md say
    assert found["conditions"]["sampling"] == {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    assert {text["way"] for text in found["texts"]} == {"greedy, tree", "greedy, plain", "sampled, tree"}
    for text in found["texts"]:
        assert len(text["token_ids"]) == len(text["errors"]) == len(text["roundings"]) == 8
    for test in found["tests"]:
        assert {"name", "count", "p_value", "adjusted_p_value", "groups", "sees_total_variation"} <= set(test)
        counts = [cell for group in test["groups"] for cell in group["cells"]]
        assert sum(seen for _, seen, _ in counts) == pytest.approx(sum(p for *_, p in counts))
    assert "all 1 greedy texts equal plain decoding's, id for id" in err
    assert "sampled tokens compared with the distribution of transformers" in err
    assert "control, a verifier that forgets the residual: " in err
    assert "control, random numbers used again in the next step: " in err


def test_what_overflows_is_a_finding_that_the_document_has_as_null(check, monkeypatch):
    def overflowing(self, ids, count):
        return TransformersReference.plain(self, ids, count) * math.inf

    monkeypatch.setattr(TransformersReference, "exact", overflowing)
    code, out, _ = check(*FEW, "-T", "0", "--json", draft="draft")
    assert code == 3
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["texts"][0]["errors"] == [None] * 8
    assert found["passed"] is False


def test_a_wrong_verifier_ends_with_exit_code_3_and_the_tests_that_found_it(check, monkeypatch):
    monkeypatch.setattr(ResidualRule, "_update", lambda trial: setattr(trial, "_stale", False))
    code, out, err = check(*FEW, "--json")
    assert code == 3
    assert "sequoia: the text is not the target's own: " in err
    assert "draft's favourites: p = " in err
    assert json.loads(out)["passed"] is False


def test_a_check_that_could_not_have_failed_is_exit_code_3_too(check):
    code, _, err = check(*FEW)
    assert code == 3
    assert "not enough power: no difference found, but the test is too weak to find one of this size" in err
    assert "more --samples" in err
    assert check(*FEW, "--smallest-deviation", "0.7")[0] == 0


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_rounded_target_is_compared_with_the_one_that_was_loaded(check, weights):
    code, out, err = check(
        "-p", "Hello", "-n", "8", "-T", "0", "--json", "--quantize", weights, draft="draft"
    )
    found = json.loads(out)
    assert (code, found["passed"], found["conditions"]["quantize"]) == (0, True, weights)
    rounding = found["rounding"]
    assert 0 < rounding["divergence"] < 1
    assert rounding["tokens"] == 8
    assert "nats" in err


def test_at_temperature_0_only_greedy_texts_are_checked(check):
    code, out, err = check("-p", "Hello", "-p", "fine day", "-n", "8", "-T", "0", "--json", draft="draft")
    found = json.loads(out)
    assert code == 0
    assert (found["tests"], found["controls"], found["conditions"]["sampling"]) == ([], [], None)
    assert "all 2 greedy texts" in err


def test_without_prompts_the_first_built_in_ones_are_used(check):
    code, out, _ = check("--limit", "2", "-n", "3", "-T", "0", "--json", draft="draft")
    assert code == 0
    assert json.loads(out)["conditions"]["prompts"] == 2


def test_a_prompt_that_is_too_long_is_refused_or_left_out_by_name(check, models, empty_place):
    (empty_place / "rows.jsonl").write_text('"Hello"\n"%s"\n' % ("it's " * 40))
    short = ("--target", models["short"], "--prompts", "rows.jsonl", "-n", "3", "-T", "0")
    code, out, err = check(*short, draft="short")
    assert (code, out) == (2, "")
    assert "prompt 2: it has" in err
    assert "--skip-bad skips such prompts" in err
    code, out, err = check(*short, "--skip-bad", "--json", draft="short")
    assert code == 0
    assert json.loads(out)["conditions"]["prompts"] == 1
    assert "left out 1 bad prompts: prompt 2: it has" in err


def test_an_interrupt_keeps_what_is_finished(check, monkeypatch):
    class Interrupted(check_run.Check):
        def check_texts(self):
            yield next(super().check_texts())
            raise KeyboardInterrupt

    monkeypatch.setattr(check_run, "Check", Interrupted)
    code, out, err = check("-p", "Hello", "-p", "fine day", "-n", "8", "--json")
    assert code == 130
    found = json.loads(out)
    assert {text["prompt"] for text in found["texts"]} == {"1"}
    assert found["warnings"] == ["interrupted: 1 of 2 prompts are checked, 0 of 800 texts are sampled"]
    assert err.endswith("sequoia: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--samples", "99"), "--samples is 99; at least 100 is needed"),
        (("-n", "1"), "--max-new-tokens is 1; at least 2 is needed"),
        (("-T", "nan"), "temperature is nan"),
        (("--smallest-deviation", "0"), "--smallest-deviation is 0.0; expected a number above 0"),
        (("-p", "a", "--builtin"), "--prompt and --builtin both give prompts"),
    ],
)
def test_impossible_options_are_refused(check, arguments, line):
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert line in err


def test_a_tree_that_does_not_speculate_leaves_nothing_to_check(check):
    code, _, err = check(*FEW, tree="root")
    assert code == 2
    assert "the tree is the root alone, which is plain decoding: nothing to check" in err
