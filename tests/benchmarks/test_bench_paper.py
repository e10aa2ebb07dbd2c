"""`make bench-paper`: what the Sequoia paper and its project page print (`paper/figures.py`), replayed.

Every part is replayed once, for all tests here.
"""

import heapq
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from published import published
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.shapes import chains, k_ary
from sequoia_cli.compiler.value import expected_tokens

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def paper():
    """The modules of the benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        from paper import choices, figures, known, machines, parts, rates, scalability

        yield SimpleNamespace(
            choices=choices,
            figures=figures,
            known=known,
            machines=machines,
            rates=rates,
            scalability=scalability,
            parts=parts,
        )


@pytest.fixture(scope="module")
def rows(paper):
    return paper.choices.compare_rows()


@pytest.fixture(scope="module")
def replayed(paper, rows):
    """What each part of the benchmark finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper.choices, "compare_rows", lambda: rows)
        return {name: replay() for name, replay in paper.parts.PARTS.items()}


@pytest.fixture(scope="module")
def plot(replayed):
    return replayed["scalability"]


# --- scalability: the project page's plot


@pytest.mark.parametrize(
    ("name", "digits"), [("sequoia", 0.003), ("independent chains", 0.005), ("one chain", 0.0035)]
)
def test_the_recovered_vector_meets_every_plotted_point(plot, name, digits):
    """Two parameters are fitted to Sequoia's eleven points.

    The other curves are no independent check: the number of ranks and the drawing conventions were chosen so
    that they meet.
    """
    assert plot["as_drawn"][name] == pytest.approx(plot["plotted"][name], abs=digits)


def test_the_binary_tree_is_met_up_to_eight_nodes_and_is_drawn_lower_above(plot):
    drawn, plotted = plot["as_drawn"]["binary tree"], plot["plotted"]["binary tree"]
    assert drawn[:3] == pytest.approx(plotted[:3], abs=0.001)
    assert all(0 < ours - page < 0.12 for ours, page in zip(drawn[3:], plotted[3:], strict=True))


def test_the_plotted_limits_are_met(paper, plot):
    rates, limits = plot["rates"], paper.figures.PLOTTED_LIMITS
    assert 1 / (1 - rates[0]) == pytest.approx(limits["one chain"], abs=0.003)
    assert 1 + sum(rates) / (1 - rates[0]) == pytest.approx(limits["independent chains"], abs=0.002)
    assert 1 / (1 - rates[0] - rates[1]) == pytest.approx(limits["binary tree"], abs=0.02)


def test_the_point_at_260_000_nodes_far_beyond_the_fit_is_met_with_32_children_and_not_with_all(paper, plot):
    def best(rates):
        """The 260,000 highest scores, best first."""
        heap, total = [(-1.0, 0.0, len(rates))], 0.0
        for _ in range(260_000):
            score, parent, rank = heapq.heappop(heap)
            total -= score
            heapq.heappush(heap, (score * rates[0], -score, 0))
            if rank + 1 < len(rates):
                heapq.heappush(heap, (-parent * rates[rank + 1], parent, rank + 1))
        return total

    limit = paper.figures.PLOTTED_LIMITS["sequoia"]
    assert best(plot["rates"][: paper.rates.BRANCH]) == pytest.approx(limit, abs=0.01)
    assert best(plot["rates"]) > limit + 0.2


def test_a_doubling_adds_0_41_tokens_and_sequoia_leads_by_40_percent_at_512_nodes(paper, plot):
    assert round(plot["growth_per_doubling"], 2) == paper.figures.PLOTTED_DOUBLING
    assert plot["gain_at_512"] == pytest.approx(paper.figures.PLOTTED_GAIN_AT_512, abs=0.005)


def test_no_published_vector_is_the_plotted_one(paper):
    vectors = published("published_rates.json")["vectors"]
    for entry in vectors.values():
        for value, plotted in zip(
            paper.rates.values_by_size(sorted(entry["p"], reverse=True), paper.figures.PLOTTED_SIZES),
            paper.figures.PLOTTED["sequoia"],
            strict=True,
        ):
            assert abs(value - plotted) > 0.02


def test_the_pages_chains_pay_for_a_token_that_they_do_not_have(plot):
    """Negative control of the convention: trees of exactly these sizes are worth more than is plotted."""
    four = plot["sizes"].index(4)
    assert plot["curves"]["independent chains"][four] > plot["plotted"]["independent chains"][1] + 0.25


def test_independent_chains_in_closed_form_equal_the_best_of_all_trees_of_chains(paper):
    rates = paper.rates.power_law(2.0, 0.4, 12)
    for size in range(1, 40):
        slow = max(expected_tokens(chains(count, size), [rates]) for count in range(1, 13))
        assert paper.scalability.independent_chains(rates, size) == pytest.approx(slow, abs=1e-12)


# --- single values


def test_the_released_demonstration_is_chosen_again(paper):
    size, depth, seconds, speedup = paper.known.demonstration()
    assert (size, depth, round(seconds, 3), round(speedup, 3)) == paper.figures.DEMO_BEST


def test_appendix_e_values_bounds_and_rejections_are_met_in_all_printed_digits(paper, replayed):
    known = published("published_rates.json")["vectors"]["llama3_70b_from_8b_cnn"]["known"]
    found = replayed["appendix_e"]
    assert [[size, round(value, 4)] for size, value in found["values"]] == known["best_value_by_size"]
    assert round(found["768_within_18_layers"], 3) == known["size_768_within_18_layers"]
    bounds = {name: round(value, 3) for name, value in found["bounds"].items()}
    assert bounds == paper.figures.APPENDIX_E_BOUNDS
    rejected = {count: round(value, 4) for count, value in found["all_rejected"]}
    assert rejected == paper.figures.APPENDIX_E_ALL_REJECTED


# --- the main tables


def test_a_vector_is_recovered_from_the_best_tree_and_its_tokens(paper):
    rates = paper.rates.power_law(4.0, 0.6)
    best = BestTrees([rates], 128, 8, paper.rates.BRANCH)
    fitted = paper.rates.power_law(*paper.rates.fitted_to_tree(best.tree(128, 8), best.value(128, 8)))
    assert fitted[:4] == pytest.approx(rates[:4], abs=0.03)


def test_every_published_tree_is_near_the_best_under_the_rates_that_explain_its_tokens(rows):
    """Two parameters explain shape and tokens of each: at most 0.15 percent is lost to our best tree."""
    assert len(rows) == 30
    for found in rows:
        assert -1e-9 < found.same / found.row.tokens - 1 < 0.0015, found.row.name


def test_a_tree_that_no_search_gives_is_not_explained(paper):
    """Negative control of the fit: a complete binary tree loses more than 2 percent under every vector."""
    tree = k_ary(2, 63)
    fitted = paper.rates.power_law(*paper.rates.fitted_to_tree(tree, 3.5))
    assert BestTrees([fitted], tree.size, tree.depth, 32).value(tree.size, tree.depth) > 3.5 * 1.02


def test_our_layers_at_the_published_sizes_are_the_published_ones_or_near(rows):
    off = [abs(found.layers - found.row.depth) for found in rows]
    assert off.count(0) >= 20
    assert max(off) <= 2


def test_among_the_listed_sizes_of_the_papers_search_ours_is_128_on_the_a100(rows):
    """As published for the 7B target; for the others, where the roofline is as flat, 64 is published."""
    assert {found.listed[0] for found in rows if found.row.machine == "A100"} == {128}


def test_our_free_choice_is_never_slower_than_the_published_tree_and_little_faster(rows):
    gains = [found.speedup / found.published_speedup for found in rows]
    assert min(gains) >= 1
    assert max(gains) < 1.10


@pytest.mark.parametrize(
    ("machine", "target", "least", "most"),
    [
        ("A100", "7b", 0.96, 1.02),
        ("A100", "13b", 0.99, 1.03),
        ("L40", "7b", 0.94, 1.00),
        # Here the published steps cost more than weights, compute and drafting explain.
        ("A100", "33b", 0.80, 0.84),
        ("L40", "13b", 0.78, 0.84),
    ],
)
def test_modelled_steps_over_measured_ones(rows, machine, target, least, most):
    ratios = [
        found.cost / found.row.cost
        for found in rows
        if (found.row.machine, found.row.target) == (machine, target)
    ]
    assert least < min(ratios) and max(ratios) < most


def test_the_fitted_rates_predict_the_other_tree_of_each_row(rows):
    """SpecInfer's 5x8 was not used for the fit.

    Greedily both verifiers do the same; sampling, Sequoia's, which is predicted for, accepts more.
    """
    for found in rows:
        ratio = found.specinfer / found.row.specinfer
        low, high = (1.02, 1.12) if found.row.temperature else (0.93, 1.10)
        assert low < ratio < high, found.row.name


def test_offloading_takes_hundreds_of_nodes_and_its_two_models_enclose_the_published_steps(paper):
    vector = paper.figures.published_rates("llama3_70b_from_8b_cnn")
    apart, beside = (paper.choices.choose_offloaded(vector, overlapped=way) for way in (False, True))
    assert 512 <= apart.size <= 768
    assert beside.size == paper.choices.OFFLOADED_LIMITS.budget
    for row in paper.figures.OFFLOADED_ROWS:
        assert beside.published_cost < row.cost < apart.published_cost
    plain = paper.machines.offloaded().costs.target.seconds(1)
    assert plain == pytest.approx(paper.figures.OFFLOADED_PLAIN_SECONDS, rel=0.05)


# --- the command


def test_the_command_prints_tables_and_one_document_and_writes_results_and_plots(
    replayed, tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    command = importlib.import_module("bench_paper")
    monkeypatch.setattr(
        command, "PARTS", {name: lambda found=found: found for name, found in replayed.items()}
    )
    monkeypatch.setattr(sys, "argv", ["bench_paper.py", "--write", str(tmp_path)])
    command.main()
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["schema"] == "sequoia-bench-paper/1"
    assert set(document["results"]) == {*("scalability", "demonstration", "appendix_e", "rows", "offloading")}
    assert "Trees of Tables 1, 3 and 4 beside ours" in printed.err
    assert {place.name for place in tmp_path.iterdir()} == {"results.md", "scalability.png", "trees.png"}
