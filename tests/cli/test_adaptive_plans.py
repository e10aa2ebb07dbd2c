"""From acceptance counts to a plan by which `generate` chooses the tree of each step."""

import json

import pytest
import yaml

from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.rates import AcceptanceRates

PROFILE = {
    "target_seconds": [[1, 1.0], [64, 1.5]],
    "draft_seconds": [[1, 0.01], [64, 0.02]],
}


@pytest.fixture
def adaptive(run, pair, empty_place):
    """A plan for the tiny pair, of rates measured at a temperature; the plan's path."""

    def command(temperature="0"):
        (empty_place / "profile.yaml").write_text(yaml.safe_dump(PROFILE))
        prompts = empty_place / "prompts.jsonl"
        prompts.write_text("".join(json.dumps(text) + "\n" for text in ("one", "two words", "three of them")))
        given = ["--dataset", prompts, "--max-new-tokens", 24, "--ranks", 4, "--depths", 2]
        code, _, err = run(
            "acceptance", *pair, *given, "--temperature", temperature, "--raw", "-o", "rates.yaml"
        )
        assert code == 0, err
        code, _, err = run(
            "compile",
            "--adaptive",
            "--profile",
            "profile.yaml",
            "--acceptance",
            "rates.yaml",
            "-o",
            "plan.json",
        )
        assert code == 0, err
        assert "of which each step has a part" in err
        return empty_place / "plan.json"

    return command


def text_of(run, pair, plan, *arguments):
    code, out, err = run(
        "generate", *pair, "--tree", plan, "--prompt", "hello", "--raw", "--json", *arguments
    )
    assert code == 0, err
    return json.loads(out), err


def test_a_plan_has_what_trees_are_chosen_by_and_is_read_back(adaptive):
    document = read_document(adaptive())
    plan = TreePlan.from_document(document)
    assert plan.adaptive is not None and plan.costs is not None
    assert plan.tree.size == 64 and plan.predicted is None
    assert document.data["runners_up"][0]["speedup"] > 1
    assert {**plan.to_dict()} == document.data


def test_the_greedy_text_is_that_of_plain_decoding(run, pair, adaptive):
    plan = adaptive()
    chosen, err = text_of(run, pair, plan, "--max-new-tokens", 40)
    plain, _ = text_of(run, pair, plan, "--max-new-tokens", 40, "--plain")
    assert chosen["token_ids"] == plain["token_ids"]
    assert chosen["speculation"]["mean_acceptance_length"] > 1
    assert "trees chosen in each step of up to 64 nodes" in err


def test_a_sampled_text_comes_again_with_its_seed(run, pair, adaptive):
    plan, options = adaptive("1.0"), ("--temperature", "1.0", "--max-new-tokens", 30)
    first, second, other = (
        text_of(run, pair, plan, *options, "--seed", seed)[0]["token_ids"] for seed in (1, 1, 2)
    )
    assert first == second != other


def test_what_is_not_lossless_or_has_no_effect_is_refused_in_one_line(run, pair, adaptive, models):
    plan = adaptive()
    for arguments, message in (
        (("--verifier", "spectr", "--temperature", "1"), "spectr needs the number of children"),
        (("--draft", models["wide"]), "takes one draft, and 2 are given"),
    ):
        code, _, err = run("generate", *pair, *arguments, "--tree", plan, "--prompt", "hello")
        assert code == 2 and message in err
    code, _, err = run("compile", "--adaptive", "--size", "8")
    assert code == 2 and "without effect: --size" in err


def test_rates_without_counts_by_probability_are_refused(run, empty_place):
    (empty_place / "profile.yaml").write_text(yaml.safe_dump(PROFILE))
    (empty_place / "p.json").write_text("[0.6, 0.15]")
    code, _, err = run("compile", "--adaptive", "--profile", "profile.yaml", "--acceptance", "p.json")
    assert code == 2 and "p.json has no counts by probability" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data["adaptive"].pop("calibration"), "'adaptive' is not what"),
        (lambda data: data["adaptive"].update(tokens_per_second=0), "'adaptive' is not what"),
        (lambda data: data["adaptive"]["calibration"]["acceptance"][0].pop(), "'adaptive' is not what"),
        (lambda data: data["adaptive"]["calibration"]["edges"].pop(), "'adaptive' is not what"),
        (lambda data: data.pop("costs"), "'adaptive' needs 'costs' beside it"),
    ],
)
def test_a_damaged_plan_is_refused_by_name(run, pair, adaptive, change, message):
    plan = adaptive()
    data = json.loads(plan.read_text())
    change(data)
    plan.write_text(json.dumps(data))
    code, _, err = run("generate", *pair, "--tree", plan, "--prompt", "hello")
    assert code == 2 and message in err


def test_counts_by_probability_add_up_and_come_back_from_their_file(run, adaptive, empty_place):
    adaptive()
    path = empty_place / "rates.yaml"
    rates = AcceptanceRates.from_document(read_document(path))
    data = read_document(path).data
    assert rates.to_dict() == data
    for sample in rates.samples:
        for depth, row in enumerate(sample.accepted):
            for rank, accepted in enumerate(row):
                cells = [of for key, of in sample.cells.items() if key[:2] == (depth, rank)]
                assert sum(hits for _, hits in cells) == pytest.approx(accepted, abs=0.01)
                assert sum(trials for trials, _ in cells) == pytest.approx(sample.trials[depth], abs=0.01)
    data["bin_edges"] = data["bin_edges"][:-1]
    path.write_text(yaml.safe_dump(data))
    code, _, err = run("compile", "--acceptance", path)
    assert code == 2 and "'bin_edges'" in err
