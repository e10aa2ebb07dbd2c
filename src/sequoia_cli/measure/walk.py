"""A text that the target writes alone, and what a draft's children would have met along it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from sequoia_cli.core.tree import chain
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.finite import finite_rows, not_finite
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import probabilities
from sequoia_cli.measure.trials import StepTries, Trials, windows
from sequoia_cli.measure.tries import expected_try


def steps_along(
    target: LanguageModel,
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
    levels = min(trials.depths, count) if draft.reads_hidden else 1
    layouts = [Layout(chain(level + 1), target.device) for level in range(levels + 1)]
    capacity = len(prompt) + count + levels
    cache = target.new_cache(capacity)
    prompt_ids = torch.tensor(list(prompt), device=target.device)
    states = target.prefill(prompt_ids[:-1], cache, hidden=draft.reads_hidden)
    draft.start(prompt_ids, capacity, states)

    text = islice(_write(target, cache, prompt[-1], draft, trials, eos_ids, generator), count)
    ahead = deque(islice(text, levels))
    steps: list[StepTries] = []
    while ahead:
        layout, tries = layouts[len(ahead)], []
        for level, place in enumerate(ahead):
            root = torch.tensor([place.root], device=target.device)
            columns = draft.expand(layout, level, root, trials.draft_sampling)
            if not bool(finite_rows(columns)):
                raise not_finite(
                    "draft", draft.dtype, f"token {len(prompt) + len(steps) + level + 1} of the text"
                )
            uniforms = torch.rand(trials.ranks, generator=generator, dtype=torch.float64)
            tries.append(expected_try(place.law, columns, draft.ids, place.token, trials, uniforms))
        steps.append(tuple(tries))
        place = ahead.popleft()
        draft.commit(layout, (0,), (place.token,), place.hidden)
        ahead.extend(islice(text, 1))
    if draft.reads_hidden:
        return steps
    return windows([tried for (tried,) in steps], trials.depths)


class _Place(NamedTuple):
    """A token of the text, the one before it, and what the target had behind that: its law, hidden state."""

    root: int
    token: int
    law: Tensor
    hidden: Tensor | None


def _write(
    target: LanguageModel,
    cache: TreeCache,
    root: int,
    draft: Draft,
    trials: Trials,
    eos_ids: Sequence[int],
    generator: torch.Generator | None,
) -> Iterator[_Place]:
    """Write a text behind `root`, token by token, up to an end-of-text id."""
    while True:
        tokens = torch.tensor([root], device=target.device)
        position = torch.tensor([cache.length], device=target.device)
        output = target.forward(tokens, position, cache, None, hidden=draft.reads_hidden)
        law = probabilities(output.logits[0], trials.sampling)
        if not bool(finite_rows(law[None])):
            raise not_finite("target", target.dtype, f"token {cache.length + 1} of the text")
        uniform = torch.rand(1, generator=generator, dtype=torch.float64)
        token = draw(law, float(uniform))
        yield _Place(root, token, law, output.hidden)
        if token in eos_ids:
            return
        root = token
