"""What the comparison of verifiers expects of a step, against every way that the verifiers' judges can go."""

import pytest
import torch
from verifiers import expected, report

from enumeration import DRAWS, Pair, mean_tokens, outcomes, steps
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.verification.verifiers import VERIFIERS

TREES = [TokenTree((-1, 0, 0)), TokenTree((-1, 0, 0, 1)), TokenTree((-1, 0, 0, 1, 2))]


@pytest.mark.parametrize("name", VERIFIERS)
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_the_tokens_expected_of_drawn_trees_are_those_of_the_judge_on_average(name, tree, monkeypatch):
    for seed in range(3):
        pair = Pair(3, seed == 1, seed)

        def drawn(choices, pair=pair):
            tokens, rows = [0] * tree.size, {}
            for node in range(tree.size):
                if children := tree.children[node]:
                    row = pair("draft", text(tokens, node))
                    rows[node] = torch.tensor(row, dtype=torch.float64)
                    picked = choices.pick(DRAWS[name](row, len(children)))
                    tokens[children.start : children.stop] = picked
            target_rows = lambda node: torch.tensor(pair("target", text(tokens, node)), dtype=torch.float64)  # noqa: E731
            return expected.tokens_of_step(name, tree, tokens, target_rows, rows)

        def text(tokens, node):
            return tuple(tokens[i] for i in tree.path(node)[1:])

        mean = sum(value * chance for value, chance in outcomes(drawn))
        assert mean == pytest.approx(mean_tokens(steps(VERIFIERS[name], tree, pair, monkeypatch)), abs=1e-9)


@pytest.mark.parametrize("name", VERIFIERS)
def test_the_acceptance_of_one_node_is_that_of_its_judge(name, monkeypatch):
    tree, pair = TokenTree((-1, 0, 0)), Pair(4, True, 5)
    target, proposed = (torch.tensor(pair(kind, ()), dtype=torch.float64) for kind in ("target", "draft"))
    uniforms = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    exact = mean_tokens(steps(VERIFIERS[name], tree, pair, monkeypatch)) - 1
    # Without replacement a mean over 2,000 draws of chances that lie within a few hundredths.
    assert expected.acceptance(name, target, proposed, uniforms) == pytest.approx(exact, abs=5e-3)


def test_intervals_are_over_prompts_and_differences_are_of_the_same_places():
    def entry(sequoia, naive):
        means = {"sequoia": sequoia, "naive": naive}
        keys = {"temperature": 1.0, "top_p": 1.0, "draft": "as target", "places": 10}
        return {**keys, "accepted": means, "tokens": means}

    found = report.intervals([entry(5.0, 4.0), entry(9.0, 8.0)])
    by_name = {row["verifier"]: row for row in found if row["measure"] == "accepted"}
    assert by_name["sequoia"]["mean"] == 0.7 and by_name["naive"]["to_sequoia"] == -0.1
    assert by_name["naive"]["half_width"] > 0.3 and by_name["naive"]["to_sequoia_half_width"] == 0
