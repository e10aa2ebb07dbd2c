"""Verification of several drafts keeps the target's distribution: exactly, and against the slow twin."""

import itertools
import math
import random

import pytest
import torch

from oracles import trees_up_to
from reference import inverse, normalised, ordered_draws, walk_drafts, without
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.merge import merge
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.walk import verify


def random_row(rng, size, zeros):
    row = [0.0 if zeros and rng.random() < 0.4 else rng.random() ** 3 for _ in range(size)]
    row[rng.randrange(size)] += 0.05
    return normalised(row)


def exact_distribution(target, drafts, counts):
    """Of the token after a root, summed over every ordered draw of every draft's children."""
    distribution = torch.zeros(len(target), dtype=torch.float64)
    rows = [torch.tensor(draft, dtype=torch.float64) for draft in drafts]
    draws = (list(ordered_draws(draft, count)) for draft, count in zip(drafts, counts, strict=True))
    for drawn in itertools.product(*draws):
        left = math.prod(chance for _, chance in drawn)
        trial = ResidualRule(torch.tensor(target, dtype=torch.float64))
        for row, (tokens, _) in zip(rows, drawn, strict=True):
            trial.turn_to(row)
            for token in tokens:
                accept = trial.chance(token)
                distribution[token] += left * accept
                left *= 1 - accept
                trial.reject(token)
        if left > 0:
            distribution += left * trial.residual()
    return distribution


def error(target, drafts, counts):
    return float(
        (exact_distribution(target, drafts, counts) - torch.tensor(target, dtype=torch.float64)).abs().max()
    )


CASES = [
    (size, counts, zeros)
    for size in (2, 3, 4)
    for counts in ((1, 1), (2, 1), (1, 2), (2, 2), (size, 1), (1, size), (1, 1, 1))
    for zeros in (False, True)
]


@pytest.mark.parametrize(("size", "counts", "zeros"), CASES)
def test_the_distribution_of_the_next_token_is_exactly_the_targets(size, counts, zeros):
    rng = random.Random(f"{size} {counts} {zeros}")
    for _ in range(5):
        drafts = [random_row(rng, size, zeros) for _ in counts]
        assert error(random_row(rng, size, zeros), drafts, counts) < 1e-12


def the_first_drafts_distribution(self, draft):
    """A verifier that tests all proposals as if the first draft had drawn them."""
    if not hasattr(self, "first"):
        self.first = draft
        right(self, draft)


def without_what_others_lost(self, draft):
    """A verifier that takes the tokens rejected so far out of the next draft's distribution as well."""
    right(self, draft)
    self._rejected_of_draft = list(self._rejected)
    self._draft = self._without_rejected()


right = ResidualRule.turn_to


@pytest.mark.parametrize("wrong", [the_first_drafts_distribution, without_what_others_lost])
def test_the_exact_check_sees_a_verifier_that_tests_by_another_distribution(monkeypatch, wrong):
    rng = random.Random(1)
    # Five ids: what two proposals leave of the residual is then mostly more than one token.
    rows = [[random_row(rng, 5, False) for _ in range(3)] for _ in range(20)]
    monkeypatch.setattr(ResidualRule, "turn_to", wrong)
    errors = sorted(error(target, drafts, (1, 2)) for target, *drafts in rows)
    assert errors[10] > 0.005


def drawn_tokens(rng, tree, row):
    """Tokens of a draft's tree, drawn from `row(node)` without replacement."""
    tokens = [0] * tree.size
    for node in range(tree.size):
        tried: list[int] = []
        for child in tree.children[node]:
            tokens[child] = inverse(without(row(node), tried) if tried else row(node), rng.random())
            tried.append(tokens[child])
    return tokens


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_merged_tree_is_verified_as_the_trees_apart_on_the_same_noise(count):
    rng, lengths = random.Random(count), set()
    trees = [*trees_up_to(5), TokenTree((-1, 0, 0, 0, 1, 1, 2, 4, 4, 5))]
    for trial, tree in enumerate(trees * 8):
        size, zeros = rng.choice((4, 6)), trial % 2 == 0
        near = {}  # rows by text: what the target says, and drafts that say something close to it

        def row_of(text, size=size, zeros=zeros, near=near):
            return near.setdefault(text, random_row(rng, size, zeros))

        rows = [[random_row(rng, size, zeros) for _ in range(tree.size)] for _ in range(count)]
        if trial % 3 == 0:
            rows = [rows[0]] * count  # drafts that agree share more of their trees
        tokens = [drawn_tokens(rng, tree, own.__getitem__) for own in rows]
        merged = merge([tree] * len(tokens), tokens)
        texts = [
            tuple(merged.tokens[i] for i in merged.tree.path(node)[1:]) for node in range(merged.tree.size)
        ]
        uniforms = {text: rng.random() for text in texts}
        last = rng.random()
        tensors = [{i: torch.tensor(row, dtype=torch.float64) for i, row in enumerate(own)} for own in rows]
        verdict = verify(
            merged.tokens,
            lambda node, t=texts: torch.tensor(row_of(t[node]), dtype=torch.float64),
            lambda node, m=merged, r=tensors: m.drawn(node, r),
            [*uniforms.values(), last],
        )
        expected = walk_drafts(
            tree, tokens, row_of, lambda draft, node, r=rows: r[draft][node], uniforms.__getitem__, last
        )
        assert (*(merged.tokens[node] for node in verdict.path[1:]), verdict.next_token) == expected
        lengths.add(len(expected))
    assert {1, 2, 3} <= lengths


def test_a_second_draft_is_accepted_where_the_first_is_wrong():
    star, target = TokenTree((-1, 0)), torch.tensor([0.0, 0.0, 1.0])
    rows = [{0: torch.tensor([0.5, 0.5, 0.0])}, {0: torch.tensor([0.0, 0.0, 1.0])}]
    merged = merge([star] * 2, [[0, 1], [0, 2]])
    verdict = verify(merged.tokens, lambda _: target, lambda n: merged.drawn(n, rows), [0.9] * 4)
    assert verdict.path == (0, 2)


def test_a_child_that_was_rejected_is_rejected_again_whatever_its_number():
    # Both drafts proposed it. After the first test nothing is left of its token, so one number is enough.
    rng = random.Random(3)
    for _ in range(200):
        target, first, second = (torch.tensor(random_row(rng, 4, False)) for _ in range(3))
        trial, token = ResidualRule(target, first), rng.randrange(4)
        if trial.chance(token) == 1:
            continue
        trial.reject(token)
        trial.turn_to(second)
        assert trial.chance(token) == 0
