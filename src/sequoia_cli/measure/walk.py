"""A text that the target writes alone, and what a draft's children would have met along it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.finite import finite_rows, not_finite
from sequoia_cli.engine.target import Target, TargetText
from sequoia_cli.engine.warp import probabilities
from sequoia_cli.measure.trials import StepTries, Trials, windows
from sequoia_cli.measure.tries import expected_try


def steps_along(
    target: Target,
    draft: Draft,
    prompt: Sequence[int],
    trials: Trials,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> list[StepTries]:
    """What a step would find that begins at each place of a text, in order (see `weigh`).

    Each step is a chain along the text's own tokens, of which the first is committed. What a draft that reads
    hidden states proposes depends on where the step began, so it runs all levels of each; any other runs
    each place once, as the root, and deeper levels are the places further on.
    """
    decoder = Decoder(
        target, [draft], trials.tree, trials.sampling, trials.draft_sampling, verifier=trials.verifier
    )
    list(decoder.decode(prompt, 0))  # checks the prompt
    # A step of two layers has room at all tokens but the last, of the text or of either context.
    context = min(target.context_limit, draft.context_limit)
    count = min(trials.new_tokens - 1, context - len(prompt))
    if count < 1:
        return []
    levels = min(trials.depths, count) if draft.taps else 1
    capacity = len(prompt) + count + levels
    prompt_ids = torch.tensor(list(prompt), device=target.device)
    written, states = target.open(prompt_ids[:-1], capacity, draft.taps)
    draft.start(prompt_ids, capacity, states)

    text = islice(_write(target, written, prompt[-1], draft, trials, eos_ids, generator), count)
    ahead = deque(islice(text, levels))
    steps: list[StepTries] = []
    while ahead:
        tries = []
        for level, place in enumerate(ahead):
            root = torch.tensor([place.root], device=target.device)
            proposals = draft.extend((level - 1,), root)
            if not bool(proposals.finite):
                raise not_finite(
                    "draft", draft.dtype, f"token {len(prompt) + len(steps) + level + 1} of the text"
                )
            uniforms = torch.rand(trials.ranks, generator=generator, dtype=torch.float64)
            tries.append(expected_try(place.law, proposals, place.token, trials, uniforms))
        steps.append(tuple(tries))
        place = ahead.popleft()
        draft.commit((0,), (place.token,), place.hidden)
        ahead.extend(islice(text, 1))
    if draft.taps:
        return steps
    return windows([tried for (tried,) in steps], trials.depths)


class _Place(NamedTuple):
    """A token of the text, the one before it, and what the target had behind that: its law, hidden state."""

    root: int
    token: int
    law: Tensor
    hidden: tuple[Tensor, ...]


def _write(
    target: Target,
    text: TargetText,
    root: int,
    draft: Draft,
    trials: Trials,
    eos_ids: Sequence[int],
    generator: torch.Generator | None,
) -> Iterator[_Place]:
    """Write a text behind `root`, token by token, up to an end-of-text id."""
    while True:
        tokens = torch.tensor([root], device=target.device)
        output = text.run((-1,), tokens, taps=draft.taps)
        text.keep((0,))
        law = probabilities(output.logits[0], trials.sampling)
        if not bool(finite_rows(law[None])):
            raise not_finite("target", target.dtype, f"token {text.length + 1} of the text")
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        token = draw(law, float(uniform))
        yield _Place(root, token, law, output.hidden)
        if token in eos_ids:
            return
        root = token
