"""Acceptance rates by child rank: two estimators of the same rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.acceptance_counts import AcceptanceSettings, expected_counts
from sequoia_cli.measure.target_text import acceptance_along


def on_policy(
    target: LanguageModel,
    draft: Draft,
    prompt: Sequence[int],
    settings: AcceptanceSettings,
    *,
    index: int = 0,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> PromptCounts:
    """Decode with a one-level tree of `ranks` children, as `generate` does, and count which is accepted.

    Steps without a tree, because the budget of tokens was used up, are not trials. Measures one depth only:
    the second would need `ranks` children under each of `ranks` children, and such a tree's steps start at
    other positions.
    """
    decoder = Decoder(
        target, [draft], settings.tree, settings.sampling, settings.draft_sampling, verifier=settings.verifier
    )
    count, accepted = 0, [0.0] * settings.ranks
    for step in decoder.decode(prompt, settings.new_tokens, eos_ids=eos_ids, generator=generator):
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
    settings: AcceptanceSettings,
    *,
    index: int = 0,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> PromptCounts:
    """Generate with the target alone, then compute the acceptance that the draft would have had.

    Counts are expectations given the text (see `expected_counts`), where the on-policy estimator samples; all
    depths come from the same text. Raises `BadInput` as `check_positional` does.
    """
    check_positional(settings)
    steps = acceptance_along(target, draft, prompt, settings, eos_ids, generator)
    trials, accepted, cells = expected_counts(steps, settings)
    return PromptCounts(index, trials, accepted, cells=cells)


def check_positional(settings: AcceptanceSettings) -> None:
    """Raise `BadInput` if the verifier has no acceptance rates by depth.

    Traversal accepts whole paths, so the acceptance of a child depends on the nodes above and below it. With
    one level it equals Sequoia's rule; for a greedy target all rules are equal.
    """
    if not settings.verifier.positional and settings.depths > 1 and not settings.sampling.greedy:
        raise BadInput(
            f"--verifier {settings.verifier.name} has no rates by depth: it accepts paths, not children",
            hint="--depths 1 measures the children of the root, --estimator on-policy counts the same",
        )
