"""What the children of one place are expected to meet there, by the rule of each verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.proposals import Proposals, Proposed
from sequoia_cli.engine.verification.k_sequential import KSequential
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import NAIVE, SPECINFER, SPECTR
from sequoia_cli.measure.trials import Trials, Try


def expected_try(law: Tensor, proposals: Proposals, token: int, trials: Trials, uniforms: Tensor) -> Try:
    """What children drawn from a draft's proposals after one node meet where `token` came.

    `law` is the target's, (vocabulary,), and `uniforms` (ranks,) are there for what has to be drawn. A greedy
    target takes the most probable children by every rule, as the naive one does for any.
    """
    if trials.sampling.greedy or trials.verifier is NAIVE:
        (children,) = proposals.top((trials.ranks,), len(law))
        found, largest = matched_try(law, children.tolist(), token), proposals.largest(trials.ranks)
    else:
        proposed = proposals.probabilities(trials.draft_sampling)
        found, largest = _tried(law, proposed, token, trials, uniforms), proposed.largest(trials.ranks)
    return replace(found, largest=tuple(largest[0].tolist()))


def _tried(law: Tensor, proposed: Proposed, token: int, trials: Trials, uniforms: Tensor) -> Try:
    row = proposed.over(len(law), 0)
    if trials.verifier is SPECTR:
        return k_sequential_try(law, row, token, trials.ranks)
    return sampled_try(law, row, token, uniforms.tolist(), replacement=trials.verifier is SPECINFER)


def matched_try(law: Tensor, children: Sequence[int], token: int) -> Try:
    """Children that do not depend on chance: the one accepted is the one that the target's token equals."""
    return Try(tuple(law[list(children)].tolist()), float(token in children))


def k_sequential_try(law: Tensor, proposed: Tensor, token: int, count: int) -> Try:
    """Children of which each is accepted with the same chance, if those before were not (see `KSequential`).

    The mass with which a token is accepted is known too, so nothing has to be drawn.
    """
    rule = KSequential(law, count)
    rule.turn_to(proposed)
    chances = tuple(rule.each * (1 - rule.each) ** rank for rank in range(count))
    return Try(chances, min(1.0, float(rule.accepted[token]) / float(law[token])))


def sampled_try(
    law: Tensor, proposed: Tensor, token: int, uniforms: Sequence[float], *, replacement: bool = False
) -> Try:
    """Children drawn from `proposed` one after the other, each as if those before it had been rejected.

    With R and D for the next child (see `ResidualRule`), the child is x and accepted with probability
    min(R(x), D(x)), and x and rejected with probability max(D(x) - R(x), 0). After a rejection the token is
    distributed as norm(max(R - D, 0)), whatever x was. So a rank's chance is the overlap of R and D, and its
    rejected child is a draw from their excess. A token that came was hit at this rank with probability
    min(1, D(token) / R(token)). Both are exact given the rejected children. So is their mean over these,
    because the rejected children do not depend on the token. Children drawn as a step draws them would not
    do: given those, the token does not have the target's distribution. With `replacement` D is always
    `proposed`; R then depends on no child, and both are exact at once.
    """
    trial = ResidualRule(law, proposed, replacement=replacement)
    left, missed, chances = 1.0, 1.0, []
    for uniform in uniforms:
        wanted, offered = trial.distributions()
        excess = (offered - wanted).clamp_(min=0)
        rejected = min(1.0, float(excess.sum()))
        chances.append(left * (1 - rejected))
        left *= rejected
        share, whole = float(offered[token]), float(wanted[token])
        missed *= 1 - share / whole if share < whole else 0.0
        if left == 0:
            break
        trial.reject(draw(excess, uniform))
    chances += [0.0] * (len(uniforms) - len(chances))
    return Try(tuple(chances), 1 - missed)
