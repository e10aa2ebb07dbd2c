"""How often the child of each rank is the one accepted: two estimators of the same rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.trials import Trials, weigh
from sequoia_cli.measure.walk import steps_along


def on_policy(
    target: LanguageModel,
    draft: Draft,
    prompt: Sequence[int],
    trials: Trials,
    *,
    index: int = 0,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> PromptCounts:
    """Decode with a one-level tree of `ranks` children and count which was accepted: what `generate` does.

    A step whose tree was cut because the budget was used up is no trial. One depth only: to be tried behind
    whichever child is accepted, the second would take a tree of all ranks under each of all ranks, whose
    steps begin at other places.
    """
    decoder = Decoder(
        target, [draft], trials.tree, trials.sampling, trials.draft_sampling, verifier=trials.verifier
    )
    count, accepted = 0, [0.0] * trials.ranks
    for step in decoder.decode(prompt, trials.new_tokens, eos_ids=eos_ids, generator=generator):
        if step.size == 1:
            continue
        count += 1
        for rank in step.ranks:
            accepted[rank] += 1
    return PromptCounts(index, (float(count),), (tuple(accepted),))


def teacher_forced(
    target: LanguageModel,
    draft: Draft,
    prompt: Sequence[int],
    trials: Trials,
    *,
    index: int = 0,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> PromptCounts:
    """Let the target write a text alone, and reckon what steps of the draft along it would have come to.

    Whether a step begins at a place and what it has accepted there are probabilities, where the on-policy
    estimator tosses coins; every depth comes from the same text (see `weigh`). Raises `BadInput` where a
    rate by depth would mean nothing (see `check_positional`).
    """
    check_positional(trials)
    weights, accepted, cells = weigh(steps_along(target, draft, prompt, trials, eos_ids, generator), trials)
    return PromptCounts(index, weights, accepted, cells=cells)


def check_positional(trials: Trials) -> None:
    """Raise `BadInput` for depths that the verifier's rule does not tell apart.

    Traversal accepts whole paths: what it does at a node depends on all below and above. At one level it is
    Sequoia's rule, and for a greedy target all are.
    """
    if not trials.verifier.positional and trials.depths > 1 and not trials.sampling.greedy:
        raise BadInput(
            f"--verifier {trials.verifier.name} has no rates by depth: it accepts whole paths, not children",
            hint="--depths 1 measures the children of the root, --estimator on-policy counts the same",
        )
