"""What children meet at a place, by the rule of each verifier: against exact rates, and on policy."""

import itertools

import pytest
import torch

from enumeration import DRAWS, Coin, outcomes
from exhaustive import exhaustive
from marginals import deviation, random_pair
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.counts import pooled_rate
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.verification import traversal, walk
from sequoia_cli.engine.verification.verifiers import NAIVE, SEQUOIA, SPECINFER, SPECTR, TRAVERSAL, VERIFIERS
from sequoia_cli.engine.verification.walk import Drawn
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.acceptance import on_policy, teacher_forced
from sequoia_cli.measure.acceptance_counts import AcceptanceSettings
from sequoia_cli.measure.node_acceptance import node_acceptance

ALL = pytest.mark.parametrize("verifier", VERIFIERS.values(), ids=VERIFIERS.keys())


def trials(verifier, ranks=3, depths=1, new_tokens=24) -> AcceptanceSettings:
    return AcceptanceSettings(Sampling(1.0), Sampling(1.0), ranks, depths, new_tokens, verifier)


def exact(verifier, target, draft, ranks, monkeypatch):
    """The rate of each rank, and by token the chance that a child was accepted given that it came."""
    star = TokenTree((-1, *[0] * ranks))

    def step(choices):
        tokens = [0, *choices.pick(DRAWS[verifier.name](draft, ranks))]
        offered = Drawn(torch.tensor(draft, dtype=torch.float64), list(star.children[0]))
        with monkeypatch.context() as patch:
            for module in (traversal, walk):
                patch.setattr(module, "draw", lambda probs, _: choices.pick(list(enumerate(probs.tolist()))))
            verdict = verifier.judge(
                tokens,
                lambda node: torch.tensor(target if node == 0 else draft, dtype=torch.float64),
                lambda node: [offered] if node == 0 else [],
                [Coin(choices)] * (star.size + 1),
            )
        child = verdict.path[1] if len(verdict.path) > 1 else None
        return child, tokens[child] if child else verdict.next_token

    rates, hits = [0.0] * ranks, [0.0] * len(target)
    for (child, token), chance in outcomes(step):
        if child:
            rates[child - 1] += chance
            hits[token] += chance
    return rates, [hit / mass if mass else None for hit, mass in zip(hits, target, strict=True)]


def seen(verifier, target, draft, token, count=500):
    """Chances and hits of `count` tries where this token came."""
    target_probs, proposed = (torch.tensor(row, dtype=torch.float64) for row in (target, draft))
    proposals = Proposals(proposed.log()[None])
    noise = torch.rand(count, 3, generator=torch.Generator().manual_seed(token), dtype=torch.float64)
    found = [
        node_acceptance(target_probs, proposals, token, trials(verifier), uniforms) for uniforms in noise
    ]
    return [(*one.accept_probs, one.hit_prob) for one in found]


@ALL
@pytest.mark.parametrize("zeros", [False, True], ids=["", "zeros"])
def test_chances_and_hits_are_those_of_the_judge_whichever_token_came(verifier, zeros, monkeypatch):
    """Fixed seeds; 56 means over draws at 5 errors: a right program fails for one choice in 30,000."""
    target, draft = random_pair(4, zeros)
    rates, hits = exact(verifier, target, draft, 3, monkeypatch)
    for token in (token for token in range(4) if target[token]):
        if verifier.name in ("sequoia", "traversal"):
            assert deviation(seen(verifier, target, draft, token), (*rates, hits[token])) < 5
        else:
            (one,) = {tuple(round(x, 12) for x in row) for row in seen(verifier, target, draft, token, 5)}
            assert one == pytest.approx((*rates, hits[token]), abs=1e-9)


def test_the_exact_rates_see_another_verifiers_chances(monkeypatch):
    target, draft = random_pair(4, False)
    for one, other in itertools.permutations((SEQUOIA, SPECINFER, SPECTR, NAIVE), 2):
        rates, hits = exact(one, target, draft, 3, monkeypatch)
        assert deviation(seen(other, target, draft, 0), (*rates, hits[0])) > 5


#: The distributions of target and draft after each of three tokens.
TABLE = [[0.6, 0.35, 0.05], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]]
PROPOSED = [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]]


def measured(estimate, verifier, first_seed):
    target, draft = ScriptedTarget(TABLE, 400), ScriptedDraft(PROPOSED)
    options = trials(verifier, ranks=2)
    return [
        estimate(target, draft, [0], options, generator=torch.Generator().manual_seed(first_seed + number))
        for number in range(120)
    ]


@exhaustive
@ALL
def test_along_texts_both_estimators_agree_within_their_errors(verifier):
    """Fixed seeds; 10 rates at 4 standard errors: a right program fails for one choice in 1,500."""
    coin, chance = measured(on_policy, verifier, 1000), measured(teacher_forced, verifier, 2000)
    for rank in range(2):
        (one, error), (other, other_error) = pooled_rate(coin, rank), pooled_rate(chance, rank)
        assert abs(one - other) < 4 * (error**2 + other_error**2) ** 0.5


def test_the_comparison_sees_the_rates_of_another_verifier():
    coin, chance = measured(on_policy, SEQUOIA, 1000), measured(teacher_forced, NAIVE, 2000)
    (one, error), (other, other_error) = pooled_rate(coin, 0), pooled_rate(chance, 0)
    assert abs(one - other) > 4 * (error**2 + other_error**2) ** 0.5


def test_traversal_has_rates_at_one_depth_alone():
    target, draft = ScriptedTarget(TABLE), ScriptedDraft(PROPOSED)
    with pytest.raises(BadInput, match="--verifier traversal has no rates by depth"):
        teacher_forced(target, draft, [0], trials(TRAVERSAL, depths=2))
    counts = [
        teacher_forced(target, draft, [0], trials(each), generator=torch.Generator().manual_seed(0))
        for each in (TRAVERSAL, SEQUOIA)
    ]
    assert counts[0] == counts[1]
