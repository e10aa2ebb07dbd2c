"""`sequoia compile --shape`: the papers' baselines as ordinary tree files with their prediction."""

import functools
import json

import pytest
import yaml

from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import latest, remember_latest
from sequoia_cli.core.plan import TreePlan

TIMES = {"target_seconds": [[1, 1.0], [64, 1.0]], "draft_seconds": [[1, 0.02], [64, 0.02]]}
STEEP = {"target_seconds": [[1, 1.0], [64, 64.0]], "draft_seconds": [[1, 0.3], [64, 0.3]]}
RATES = [0.6, 0.15, 0.08, 0.04]


@pytest.fixture
def shaped(run, empty_place):
    """Run `sequoia compile --shape` with these arguments on hand-written files: exit code, stdout, stderr."""
    (empty_place / "flat.yaml").write_text(yaml.safe_dump(TIMES))
    (empty_place / "steep.yaml").write_text(yaml.safe_dump(STEEP))
    (empty_place / "p.json").write_text(json.dumps(RATES))
    return functools.partial(run, "compile", "--acceptance", "p.json", "--profile", "flat.yaml", "--shape")


def test_a_chain_is_written_as_a_tree_file_with_its_prediction(shaped, empty_place):
    code, out, err = shaped("chain:2")
    assert (code, out) == (0, "")
    plan = TreePlan.from_document(read_document("trees/flat_chain_2.json"))
    assert plan.tree.parents == (-1, 0, 1)
    assert plan.verdict == "chain"
    assert plan.predicted.tokens_per_step == pytest.approx(1 + 0.6 + 0.36)
    assert plan.predicted.seconds_per_step == pytest.approx(1 + 2 * 0.02)
    assert plan.predicted.speedup == pytest.approx(1.96 / 1.04, rel=1e-5)
    assert plan.inputs["limits"] == {"shape": "chain:2"}
    assert plan.record["command"] == "sequoia compile --shape chain:2"
    assert "chain:2 of 3 nodes in 3 layers: 1.96 tokens per step of 1040 ms, 1.88 times plain decoding" in err


@pytest.mark.parametrize(
    ("shape", "size", "depth", "name"),
    [
        ("kchains:5x8", 41, 9, "kchains_5x8"),
        ("kary:2x4", 31, 5, "kary_2x4"),
        ("expansion:1,1,3,1,1,1,1,1", 21, 9, "expansion_1_1_3_1_1_1_1_1"),
    ],
)
def test_the_shapes_of_the_papers_have_their_size_depth_and_file_name(
    shaped, empty_place, shape, size, depth, name
):
    assert shaped(shape)[0] == 0
    data = json.loads((empty_place / "trees" / f"flat_{name}.json").read_text())
    assert (data["size"], data["depth"]) == (size, depth)


def test_sequoia_is_the_search_and_the_default(shaped, run):
    _, named, _ = shaped("sequoia", "-o", "-")
    _, bare, _ = run("compile", "--acceptance", "p.json", "--profile", "flat.yaml", "-o", "-")
    assert named == bare


def test_explain_shows_the_shape_beside_plain_decoding_and_no_curve(shaped):
    code, out, err = shaped("kary:2x3", "--explain", "-o", "-")
    assert json.loads(out)["size"] == 15
    assert code == 0
    for expected in ("by layer", "expected tokens", "kary:2x3", "(chosen)", "no speculation"):
        assert expected in err
    assert "the best tree by size" not in err


def test_a_shape_that_is_slower_than_plain_decoding_is_made_and_warned_of(shaped):
    code, out, err = shaped("chain:8", "--profile", "steep.yaml", "-o", "-")
    assert code == 0
    assert json.loads(out)["predicted"]["speedup"] < 1
    assert "slower than plain decoding" in json.loads(out)["warnings"][0]
    assert "warning: the tree of 9 nodes asked for is slower than plain decoding" in err


def test_later_ranks_than_the_rates_have_are_warned_of(shaped):
    code, _, err = shaped("kchains:5x2", "-o", "-")
    assert code == 0
    assert "children of later ranks count as never accepted" in err


def test_a_baseline_does_not_become_this_machines_latest_tree(shaped, empty_place):
    for kind, name in (("profile", "flat.yaml"), ("acceptance", "p.json")):
        remember_latest(kind, empty_place / name)
    assert shaped("chain:4")[0] == 0
    assert latest("tree") is None


def test_limits_that_a_shape_keeps_change_nothing(shaped):
    limits = ("--budget", "9", "--max-depth", "9", "--max-branch", "1", "--size", "9")
    parents = [json.loads(shaped("chain:8", *given, "-o", "-")[1])["parents"] for given in ((), limits)]
    assert parents[0] == parents[1] == list(range(-1, 8))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["chain:0"], "--shape chain:0 has '0' for its numbers; expected whole numbers from 1 up"),
        (
            ["kary:2"],
            "--shape kary:2 has '2' for its numbers; expected whole numbers from 1 up, as in kary:2x6",
        ),
        (["kchains:axb"], "has 'axb' for its numbers"),
        (["star:8"], "--shape star:8 is no shape; expected one such as sequoia, chain:8"),
        (["kary:2x12"], "--shape kary:2x12 has more than 4096 nodes"),
        (["kary:2x6"], "kary:2x6 has 127 nodes, beyond the profile, whose times end at 64 tokens"),
        (["chain:8", "-n", "8"], "--shape chain:8 has 9 nodes, which --budget 8 does not allow"),
        (["chain:8", "--size", "10"], "--shape chain:8 has 9 nodes, which --size 10 does not allow"),
        (["chain:8", "--max-depth", "8"], "has 9 layers, which --max-depth 8 does not allow"),
        (["kary:3x1", "--max-branch", "2"], "has 3 children of a node, which --max-branch 2 does not allow"),
        (["chain:8", "--budget", "0"], "--budget 0 is out of range"),
    ],
)
def test_a_bad_shape_is_refused_in_one_line_before_anything_is_written(shaped, empty_place, arguments, line):
    code, out, err = shaped(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert not (empty_place / "trees").exists() or not any((empty_place / "trees").iterdir())


def test_a_shape_deeper_than_the_searchs_default_is_allowed(shaped):
    assert json.loads(shaped("chain:40", "-o", "-")[1])["depth"] == 41
