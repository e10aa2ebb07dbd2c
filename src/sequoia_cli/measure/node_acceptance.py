"""Acceptance probabilities of one node's children, for the rule of each verifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.verification.k_sequential import KSequential
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import NAIVE, SPECINFER, SPECTR
from sequoia_cli.measure.acceptance_counts import AcceptanceSettings, NodeAcceptance


def node_acceptance(
    target: Tensor, proposals: Proposals, token: int, settings: AcceptanceSettings, uniforms: Tensor
) -> NodeAcceptance:
    """Acceptance of children drawn from a draft's proposals after one node, where the text has `token`.

    `target` (vocabulary,) is the target's distribution; `uniforms` (ranks,) are for rules that have to draw.
    With a greedy target, or the naive rule, the children are the draft's most probable tokens.
    """
    if settings.sampling.greedy or settings.verifier is NAIVE:
        (children,) = proposals.top((settings.ranks,), len(target))
        found = matched_acceptance(target, children.tolist(), token)
        largest = proposals.largest(settings.ranks)
    else:
        proposed = proposals.probabilities(settings.draft_sampling)
        found = _drawn_acceptance(target, proposed.over(len(target), 0), token, settings, uniforms)
        largest = proposed.largest(settings.ranks)
    return replace(found, largest=tuple(largest[0].tolist()))


def _drawn_acceptance(
    target: Tensor, proposed: Tensor, token: int, settings: AcceptanceSettings, uniforms: Tensor
) -> NodeAcceptance:
    if settings.verifier is SPECTR:
        return k_sequential_acceptance(target, proposed, token, settings.ranks)
    replacement = settings.verifier is SPECINFER
    return sampled_acceptance(target, proposed, token, uniforms.tolist(), replacement=replacement)


def matched_acceptance(target: Tensor, children: Sequence[int], token: int) -> NodeAcceptance:
    """Acceptance of fixed children: the child that equals the target's token is accepted."""
    return NodeAcceptance(tuple(target[list(children)].tolist()), float(token in children))


def k_sequential_acceptance(target: Tensor, proposed: Tensor, token: int, count: int) -> NodeAcceptance:
    """Acceptance by K-SEQ: each child has the same probability if those before are rejected (`KSequential`).

    The accepted mass of each token is known too, so nothing has to be drawn.
    """
    rule = KSequential(target, count)
    rule.turn_to(proposed)
    probs = tuple(rule.each * (1 - rule.each) ** rank for rank in range(count))
    return NodeAcceptance(probs, min(1.0, float(rule.accepted[token]) / float(target[token])))


def sampled_acceptance(
    target: Tensor, proposed: Tensor, token: int, uniforms: Sequence[float], *, replacement: bool = False
) -> NodeAcceptance:
    """Acceptance of children drawn one after another from `proposed`, each as if those before were rejected.

    Let R and D be the target's residual and the draft's distribution for the next child (see `ResidualRule`).
    The child is x and accepted with probability min(R(x), D(x)), and x and rejected with max(D(x) - R(x), 0);
    after a rejection the token comes from norm(max(R - D, 0)), whatever x was. So the rank's acceptance
    probability is the overlap of R and D, and a rejected child is a draw from the normalised excess of D over
    R. Given that the token is x, it was accepted here with probability min(1, D(x) / R(x)).

    Both values are exact given the rejected children, and so is their mean over those, because the rejected
    children are drawn independently of the token. Drawing all children beforehand, as a step does, would be
    wrong: given those, the token is not distributed as the target. With `replacement` D is always `proposed`
    and R depends on no child, so a single draw is exact.
    """
    rule = ResidualRule(target, proposed, replacement=replacement)
    reached, missed, probs = 1.0, 1.0, []
    for uniform in uniforms:
        residual, draft = rule.distributions()
        excess = (draft - residual).clamp_(min=0)
        rejected = min(1.0, float(excess.sum()))
        probs.append(reached * (1 - rejected))
        reached *= rejected
        mine, wanted = float(draft[token]), float(residual[token])
        missed *= 1 - mine / wanted if mine < wanted else 0.0
        if reached == 0:
            break
        rule.reject(draw(excess, uniform))
    probs += [0.0] * (len(uniforms) - len(probs))
    return NodeAcceptance(tuple(probs), 1 - missed)
