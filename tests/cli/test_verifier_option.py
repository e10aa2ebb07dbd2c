"""`--verifier`: what each command does with it, and what files and warnings say of it."""

import json
from pathlib import Path

import pytest
import yaml

from exhaustive import exhaustive, few

SHORT = ("-p", "Hello", "-n", "12")
SAMPLED = (*SHORT, "--temperature", "0.8", "--seed", "3")
NAMES = ("sequoia", "specinfer", "spectr", "naive", "traversal")
MEASURED = ("--dataset", "prompts.txt", "--max-new-tokens", "8", "--ranks", "2", "--depths", "1")


@pytest.fixture
def rates(run, pair, empty_place):
    """Rates measured on two prompts, as a file: its conditions, or what was said where it was refused."""
    (empty_place / "prompts.txt").write_text("Hello\nGood day\n")

    def command(*arguments, output="rates.yaml"):
        code, _, err = run("acceptance", *pair, *MEASURED, *arguments, "-o", output, "--force")
        return (code, yaml.safe_load(Path(output).read_text())["conditions"] if code == 0 else err)

    return command


def warned(document, conditions, *arguments):
    """The warnings of a text with a tree that was compiled from rates of these conditions."""
    plan = {
        "schema": "sequoia-tree/1",
        "parents": [-1, 0],
        "inputs": {"acceptance": {"conditions": conditions}},
    }
    Path("tree.json").write_text(json.dumps(plan))
    return " ".join(document(*arguments, "--tree", "tree.json")["warnings"])


@pytest.mark.parametrize("name", NAMES)
def test_generate_says_which_verifier_it_used_and_writes_as_many_tokens(document, name):
    found = document(*SAMPLED, "--verifier", name)
    assert found["speculation"]["verifier"] == name
    assert len(found["token_ids"]) == 12


def test_sequoia_is_the_default_and_another_rule_gives_another_sample(document):
    long = (*SAMPLED, "-n", "40")
    texts = [document(*long, "--verifier", name)["token_ids"] for name in ("sequoia", "specinfer")]
    assert document(*long)["token_ids"] == texts[0] != texts[1]


@pytest.mark.parametrize("name", NAMES[1:])
def test_at_temperature_0_all_verifiers_do_the_same(document, name):
    found, other = document(*SHORT, "--verifier", name), document(*SHORT)
    assert found["token_ids"] == other["token_ids"]
    assert found["speculation"]["accepted_by_depth"] == other["speculation"]["accepted_by_depth"]


@pytest.mark.parametrize("command", ["generate", "acceptance", "bench"])
def test_an_unknown_verifier_is_refused_with_the_known_ones(run, pair, command):
    code, out, err = run(command, *pair, "--verifier", "best", stdin="Hello")
    assert (code, out) == (2, "")
    assert "--verifier is 'best'; expected one of sequoia, specinfer, spectr, naive, traversal" in " ".join(
        err.split()
    )


@pytest.mark.parametrize("name", ["spectr", "naive", "traversal"])
def test_several_drafts_are_refused_where_the_rule_takes_one(run, pair, models, name):
    for command in (("generate", "-p", "a"), ("bench",)):
        code, _, err = run(*command, *pair, "--draft", models["wide"], "--verifier", name)
        assert code == 2
        assert f"--verifier {name} takes one draft, and 2 are given" in err
        assert "sequoia and specinfer verify what several have proposed" in err


def test_specinfer_takes_several_drafts(document, models):
    drafts = ("--draft", models["draft"], "--draft", models["wide"])
    found = document(*SAMPLED, *drafts, "--verifier", "specinfer")
    assert found["speculation"]["drafts"] == 2 and len(found["token_ids"]) == 12


@pytest.mark.parametrize("estimator", few(["teacher-forced", "on-policy"], "teacher-forced"))
@pytest.mark.parametrize("name", few(NAMES, "sequoia", "naive"))
def test_rates_note_the_verifier_that_they_are_of(rates, name, estimator):
    code, conditions = rates("-T", "0.8", "--verifier", name, "--estimator", estimator)
    assert (code, conditions["verifier"]) == (0, name)


def test_rates_of_traversal_by_depth_are_refused_unless_the_target_is_greedy(rates):
    code, err = rates("-T", "0.8", "--verifier", "traversal", "--depths", "2")
    assert code == 2
    assert "--verifier traversal has no rates by depth" in err
    assert "--depths 1" in err and "--estimator on-policy" in err
    assert rates("--verifier", "traversal", "--depths", "2")[0] == 0


def test_a_tree_for_another_verifiers_rates_is_warned_of(document, rates):
    _, conditions = rates("-T", "0.8", "--verifier", "specinfer")
    other = "verifier specinfer, here sequoia"
    assert other in warned(document, conditions, *SAMPLED)
    assert "verifier" not in warned(document, conditions, *SAMPLED, "--verifier", "specinfer")
    # Where the target is greedy they are all the same.
    assert "verifier" not in warned(document, conditions, *SHORT)


def test_rates_that_do_not_say_are_sequoias(document, rates, run):
    _, conditions = rates("-T", "0.8")
    del conditions["verifier"]
    assert "verifier" not in warned(document, conditions, *SAMPLED)
    told = warned(document, conditions, *SAMPLED, "--verifier", "naive")
    assert "verifier sequoia, here naive" in told
    old = yaml.safe_load(Path("rates.yaml").read_text())
    del old["conditions"]["verifier"]
    Path("old.yaml").write_text(yaml.safe_dump(old))
    Path("prompts.txt").write_text("Another\nday\n")
    for name, expected in (("sequoia", 0), ("specinfer", 2)):
        rates("-T", "0.8", "--verifier", name, output="new.yaml")
        code, _, err = run(
            "acceptance", "--merge", "old.yaml", "--merge", "new.yaml", "-o", "both.yaml", "--force"
        )
        assert code == expected, err
    assert "'verifier' is 'sequoia' and 'specinfer'" in err


@exhaustive
def test_bench_gives_the_verifier_to_this_engine(run, pair, trees):
    small = ("--engines", "plain,tree", "--baseline", "plain", "--limit", "1", "--rounds", "1", "-n", "4")
    options = ("--tree", trees["tree"], "-T", "0.8", "--verifier", "traversal", "--json")
    code, out, err = run("bench", *pair, *small, *options)
    assert code == 0, err
    found = json.loads(out)
    assert found["work"]["verifier"] == "traversal"
    assert all(engine["samples"] for engine in found["engines"])
