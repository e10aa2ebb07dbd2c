"""Every verifier keeps the target's distribution exactly, for one node and for whole steps."""

import random
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from enumeration import (
    Pair,
    distribution_error,
    mean_tokens,
    random_row,
    steps,
    the_most_probable,
    with_replacement,
)
from reference import ordered_draws
from scripted import ScriptedDraft, ScriptedTarget, counting_up
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draw import draw_children, draw_independently, top_children
from sequoia_cli.engine.merge import unmerged
from sequoia_cli.engine.verification import k_sequential, traversal
from sequoia_cli.engine.verification.k_sequential import KSequential, division_factor
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import (
    NAIVE,
    SEQUOIA,
    SPECINFER,
    SPECTR,
    TRAVERSAL,
    VERIFIERS,
    verifier_named,
)
from sequoia_cli.engine.verification.walk import verify_matching
from sequoia_cli.errors import BadInput

ALL = pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS.keys())
ZEROS = pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])


def star(count):
    return TokenTree((-1, *[0] * count))


#: Two levels and three: a chain, a tree that branches above, below, and at both.
TREES = [
    chain(3),
    chain(4),
    TokenTree((-1, 0, 0, 1)),
    TokenTree((-1, 0, 1, 1)),
    TokenTree((-1, 0, 0, 1, 1, 2)),
]
DEEP = TokenTree((-1, 0, 0, 1, 2, 3))


@ALL
@ZEROS
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_the_distribution_of_the_token_behind_one_node_is_exactly_the_targets(
    verifier, size, zeros, monkeypatch
):
    for count in range(1, min(size, 3) + 1):
        for seed in range(3):
            assert distribution_error(verifier, star(count), Pair(size, zeros, seed), monkeypatch) < 1e-12


@ALL
@ZEROS
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_a_step_and_what_follows_it_have_exactly_the_targets_joint_distribution(
    verifier, tree, zeros, monkeypatch
):
    for size, seeds in ((2, 3), (3, 1 if tree.size > 5 else 2)):
        for seed in range(seeds):
            assert distribution_error(verifier, tree, Pair(size, zeros, seed), monkeypatch) < 1e-12


@ALL
def test_so_does_a_step_of_three_levels_that_branch(verifier, monkeypatch):
    for zeros in (False, True):
        assert distribution_error(verifier, DEEP, Pair(2, zeros, 7), monkeypatch) < 1e-12


# --- the same check with something wrong


def median_error(verifier, monkeypatch):
    tree = TokenTree((-1, 0, 0, 1))
    errors = sorted(
        distribution_error(verifier, tree, Pair(3, False, seed), monkeypatch) for seed in range(9)
    )
    return errors[4]


def forgetful(trial):
    trial._stale = False


@pytest.mark.parametrize("verifier", [SEQUOIA, SPECINFER], ids=lambda each: each.name)
def test_the_check_sees_a_residual_that_is_not_brought_up_to_date(verifier, monkeypatch):
    monkeypatch.setattr(ResidualRule, "_update", forgetful)
    assert median_error(verifier, monkeypatch) > 0.005


def test_the_check_sees_k_sequential_selection_without_its_division_factor(monkeypatch):
    monkeypatch.setattr(k_sequential, "division_factor", lambda target, draft, count: 1.0)
    assert median_error(SPECTR, monkeypatch) > 0.005


def test_the_check_sees_a_token_drawn_anew_where_no_child_has_the_targets(monkeypatch):
    def drawn_anew(tokens, target, drawn, uniforms):
        verdict = verify_matching(tokens, target, drawn, uniforms)
        again = verify_matching(tokens, lambda _: target(verdict.path[-1]), lambda _: [], uniforms)
        return replace(verdict, next_token=again.next_token)

    assert median_error(replace(NAIVE, judge=drawn_anew), monkeypatch) > 0.005


class Undiminished(ResidualRule):
    """A node that is accepted with the chance it began with, whatever its children have had."""

    def weight(self):
        return self.before

    def __init__(self, target, *, weight):
        super().__init__(target, weight=weight)
        self.before = weight


class Unweighted(ResidualRule):
    """A residual of the children that forgets how likely their node is."""

    def _update(self):
        kept, self._weight = self._weight, 1.0
        super()._update()
        self._weight = kept


@pytest.mark.parametrize("wrong", [Undiminished, Unweighted])
def test_the_check_sees_a_traversal_that_does_not_settle_the_weight(wrong, monkeypatch):
    monkeypatch.setattr(traversal, "ResidualRule", wrong)
    assert median_error(TRAVERSAL, monkeypatch) > 0.005


def test_the_check_sees_children_drawn_in_another_way_than_the_rule_needs(monkeypatch):
    # SpecInfer's rule for children without replacement, and the other way round.
    assert median_error(replace(SPECINFER, name="sequoia"), monkeypatch) > 0.005
    assert median_error(replace(SEQUOIA, name="specinfer"), monkeypatch) > 0.005


# --- how much each accepts


def accepted(verifier, target, draft, count, monkeypatch):
    """The chance that one of the children of one node is accepted."""

    def pair(kind, text):
        return target if kind == "target" else draft

    return mean_tokens(steps(verifier, star(count), pair, monkeypatch)) - 1


@pytest.mark.parametrize(
    ("verifier", "chance"),
    [(SEQUOIA, 1.0), (SPECINFER, 0.75), (SPECTR, 0.75), (NAIVE, 1.0), (TRAVERSAL, 1.0)],
    ids=lambda each: getattr(each, "name", ""),
)
def test_two_children_cover_a_draft_of_two_tokens_unless_they_are_drawn_with_replacement(
    verifier, chance, monkeypatch
):
    # arXiv 2402.12374, Theorem 3.7 and its counter-examples.
    assert accepted(verifier, [1.0, 0.0], [0.5, 0.5], 2, monkeypatch) == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS.keys())
def test_one_child_of_a_draft_equal_to_the_target_is_accepted_unless_it_is_only_matched(
    verifier, monkeypatch
):
    chance = 0.6 if verifier is NAIVE else 1.0
    assert accepted(verifier, [0.6, 0.4], [0.6, 0.4], 1, monkeypatch) == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize("verifier", [SEQUOIA, SPECINFER, SPECTR, TRAVERSAL], ids=lambda each: each.name)
def test_one_child_is_accepted_by_as_much_as_the_distributions_overlap(verifier, monkeypatch):
    rng = random.Random(0)
    for zeros in (False, True):
        target, draft = random_row(rng, 5, zeros), random_row(rng, 5, zeros)
        overlap = sum(map(min, target, draft))
        assert accepted(verifier, target, draft, 1, monkeypatch) == pytest.approx(overlap, abs=1e-12)


@pytest.mark.parametrize("tree", [*TREES, DEEP], ids=lambda tree: str(tree.parents))
def test_traversal_accepts_at_least_as_much_as_sequoia_on_the_same_trees(tree, monkeypatch):
    gains = []
    for seed in range(4):
        pair = Pair(3, seed % 2 == 1, seed)
        ours, others = (mean_tokens(steps(each, tree, pair, monkeypatch)) for each in (TRAVERSAL, SEQUOIA))
        gains.append(ours - others)
    assert min(gains) > -1e-12 and max(gains) > 1e-3


def test_at_one_level_traversal_is_sequoias_rule_on_the_same_numbers():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        target, draft = (torch.rand(2, 6, generator=generator, dtype=torch.float64) ** 3).unbind()
        target, draft = target / target.sum(), draft / draft.sum()
        noise = torch.rand(1, 3, generator=generator, dtype=torch.float64)
        tokens = [0, *draw_children(draft[None], [3], noise)[0].tolist()]
        drawn = partial(unmerged(star(3), tokens).drawn, rows=[{0: draft}])
        uniforms = torch.rand(5, generator=generator, dtype=torch.float64).tolist()
        distributions = [target, *[torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=torch.float64)] * 3]
        paths = [
            each.judge(tokens, distributions.__getitem__, drawn, [0.0, *numbers])
            for each, numbers in ((SEQUOIA, uniforms[1:]), (TRAVERSAL, uniforms[1:]))
        ]
        assert paths[0] == paths[1]


# --- SpecTr's division factor


@ZEROS
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_the_division_factor_is_the_smallest_that_is_lossless(count, zeros):
    rng = random.Random(count)
    for _ in range(50):
        target, draft = (torch.tensor(random_row(rng, 5, zeros), dtype=torch.float64) for _ in range(2))
        factor = division_factor(target, draft, count)
        assert 1 <= factor <= count

        def spare(by, target=target, draft=draft):
            each = float(torch.minimum(draft, target / by).sum())
            return by * each - (1 - (1 - each) ** count)

        assert spare(factor) > -1e-15
        assert factor == 1 or spare(factor) < 1e-9


def test_the_residual_of_k_sequential_selection_cuts_nothing_off():
    rng = random.Random(3)
    for count in (2, 3, 6):
        target, draft = (torch.tensor(random_row(rng, 5, True), dtype=torch.float64) for _ in range(2))
        rule = KSequential(target, count)
        rule.turn_to(draft)
        assert float((target - rule.accepted).min()) > -1e-12


def test_a_residual_emptied_by_rounding_falls_back_to_the_target_and_is_counted():
    # P equals Q, so rejecting has probability 0; a forced rejection must still give a token of the target.
    row = torch.tensor([0.5, 0.5, 0.0])
    drawn = partial(unmerged(star(2), [9, 0, 0]).drawn, rows=[{0: row}])
    verdict = SPECTR.judge([9, 0, 0], lambda _: row, drawn, [0.0, 1.0, 1.0, 0.3])
    assert (verdict.path, verdict.next_token, verdict.fallbacks) == ((0,), 0, 1)


# --- drawing


@pytest.mark.parametrize("draft", [[0.5, 0.25, 0.25, 0.0], [0.125, 0.125, 0.5, 0.25]])
def test_independent_draws_have_exactly_their_distribution_over_a_grid_of_numbers(draft):
    grid = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    noise = torch.cartesian_prod(grid, grid)
    rows = torch.tensor(draft).expand(len(noise), -1)
    drawn = [tuple(row.tolist()) for row in draw_independently(rows, [2] * len(noise), noise)]
    distribution = dict(with_replacement(draft, 2))
    assert set(drawn) == set(distribution)
    assert all(drawn.count(pair) == pytest.approx(64 * chance) for pair, chance in distribution.items())


def test_independent_draws_by_a_generator_are_of_the_whole_distribution_each_time():
    """20,000 pairs: each of 9 shares is within 5 standard deviations for all but one in 200,000 seeds."""
    row, count = [0.6, 0.3, 0.1], 20_000
    drawn = draw_independently(
        torch.tensor(row).expand(count, -1), [2] * count, torch.Generator().manual_seed(0)
    )
    pairs = [tuple(each.tolist()) for each in drawn]
    for pair, chance in with_replacement(row, 2):
        assert abs(pairs.count(pair) / count - chance) < 5 * (chance * (1 - chance) / count) ** 0.5
    # The control: draws without replacement never have a token twice.
    assert not set(dict(ordered_draws(row, 2))) & {(0, 0), (1, 1)}


def test_each_verifier_draws_as_its_proof_needs_it():
    draws = {name: verifier.draw for name, verifier in VERIFIERS.items()}
    assert draws == {
        "sequoia": draw_children,
        "specinfer": draw_independently,
        "spectr": draw_independently,
        "naive": top_children,
        "traversal": draw_children,
    }
    assert the_most_probable([0.1, 0.5, 0.4], 2) == [((1, 2), 1.0)]


def test_what_a_verifier_takes_is_what_its_rule_is_proved_for():
    for verifier in VERIFIERS.values():
        verifier.check_drafts(1)
        if verifier.several:
            verifier.check_drafts(2)
        else:
            with pytest.raises(
                BadInput, match=f"--verifier {verifier.name} takes one draft, and 2 are given"
            ):
                verifier.check_drafts(2)
    assert [name for name, each in VERIFIERS.items() if each.several] == ["sequoia", "specinfer"]
    assert [name for name, each in VERIFIERS.items() if each.on_device is None] == ["traversal"]
    assert [name for name, each in VERIFIERS.items() if not each.positional] == ["traversal"]


def test_an_unknown_verifier_is_refused_by_name():
    assert verifier_named("spectr") is SPECTR
    with pytest.raises(BadInput, match="--verifier is 'best'; expected one of sequoia, specinfer, spectr"):
        verifier_named("best")


@pytest.mark.parametrize("name", VERIFIERS)
def test_a_tree_may_be_deeper_than_pythons_stack(name):
    tree = chain(2 * sys.getrecursionlimit())
    target, draft = ScriptedTarget(counting_up(4), 10_000), ScriptedDraft(counting_up(4), 10_000)
    decoder = Decoder(target, [draft], tree, Sampling(temperature=1.0), verifier=VERIFIERS[name])
    (step,) = decoder.decode([0], tree.depth, generator=torch.Generator().manual_seed(0))
    assert len(step.tokens) == tree.depth


@pytest.mark.parametrize(
    "rule", [ResidualRule, lambda target: KSequential(target, 2)], ids=["trial", "k-sequential"]
)
def test_a_child_that_its_draft_could_not_draw_is_accepted_where_the_target_has_it(rule):
    """Only rounding proposes one."""
    trial = rule(torch.tensor([0.5, 0.5, 0.0]))
    trial.turn_to(torch.tensor([1.0, 0.0, 0.0]))
    assert [trial.chance(token) for token in (1, 2)] == [1.0, 0.0]


def test_a_residual_is_a_distribution_by_every_rule():
    target, draft = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    for trial in (ResidualRule(target), ResidualRule(target, replacement=True), KSequential(target, 2)):
        trial.turn_to(draft)
        trial.reject(2)
        assert float(trial.residual().sum()) == pytest.approx(1)


def test_a_weight_is_what_was_given_until_a_child_is_rejected_and_then_what_is_left_of_it():
    target, draft = torch.tensor([0.6, 0.4]), torch.tensor([0.1, 0.9])
    trial = ResidualRule(target, draft, weight=0.5)
    assert trial.weight() == 0.5
    trial.reject(1)
    # max(0.5 R - D, 0) is (0.2, 0): 0.2 of the 0.5 is left, and 0.7 of the whole.
    assert trial.weight() == pytest.approx(0.2 / 0.7)
    assert trial.residual().tolist() == [1.0, 0.0]
    nothing = ResidualRule(target, target, weight=0.5)
    nothing.reject(0)
    assert (nothing.weight(), nothing.fallbacks) == (0.0, 0)
