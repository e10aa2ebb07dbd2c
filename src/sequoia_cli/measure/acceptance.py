"""How often the child of each rank is the one accepted: two estimators of the same rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sequoia_cli.core.rates import PromptCounts
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder, pick_children
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verify import Trial
from sequoia_cli.engine.warp import Sampling, probabilities


@dataclass(frozen=True)
class Trials:
    """What is measured: children of `ranks` ranks, `depths` levels down, on texts of `new_tokens` tokens."""

    sampling: Sampling
    draft_sampling: Sampling
    ranks: int
    depths: int
    new_tokens: int


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

    A step whose tree was cut because the budget was used up is no trial. One depth only.
    """
    star = TokenTree((-1, *[0] * trials.ranks))
    decoder = Decoder(target, draft, star, trials.sampling, trials.draft_sampling)
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
    """Let the target write the text, then ask at each of its tokens for the chance of each rank.

    The chances are exact given the children drawn, where the on-policy estimator tosses a coin; every token
    is asked, and every depth comes from the same pass (see `weigh`).
    """
    plain = Decoder(target, sampling=trials.sampling)
    text = [
        token
        for step in plain.decode(prompt, trials.new_tokens, eos_ids=eos_ids, generator=generator)
        for token in step.tokens
    ]
    chances = chances_along(target, draft, prompt, text, trials, generator)
    weights, accepted = weigh(chances, trials.depths)
    return PromptCounts(index, weights, accepted)


def chances_along(
    target: LanguageModel,
    draft: Draft,
    prompt: Sequence[int],
    text: Sequence[int],
    trials: Trials,
    generator: torch.Generator | None = None,
) -> list[list[float]]:
    """For each token of `text`, the chance of each rank that its child is the one accepted there."""
    prompt_ids = torch.tensor(list(prompt), device=target.device)
    text_ids = torch.tensor(list(text), device=target.device)
    capacity = len(prompt) + len(text) + trials.ranks + 1
    greedy = trials.sampling.greedy
    reads = draft.reads_hidden
    # A greedy target's choices are the text itself; a second forward would only round differently.
    cache = target.new_cache(capacity)
    hidden = target.prefill(prompt_ids[:-1], cache, hidden=reads) if reads or not greedy else None
    draft.start(prompt_ids, capacity, hidden)
    laws: Tensor | None = None
    states: Tensor | None = None
    if reads or not greedy:
        inputs = torch.cat((prompt_ids[-1:], text_ids[:-1]))
        positions = torch.arange(len(prompt) - 1, len(prompt) - 1 + len(text), device=target.device)
        laws, states = target.forward(inputs, positions, cache, None, hidden=reads)

    star = Layout(TokenTree((-1, *[0] * trials.ranks)))
    rows = []
    for place, token in enumerate(text):
        root = torch.tensor([text[place - 1] if place else prompt[-1]], device=target.device)
        probs = draft.expand(star, 0, root, trials.draft_sampling)
        noise = torch.rand(1, trials.ranks, generator=generator, dtype=torch.float64)
        drawn, probs = pick_children(probs, (trials.ranks,), noise, target.vocabulary, greedy=greedy)
        children = drawn[0].tolist()
        if greedy:
            rows.append([1.0 if child == token else 0.0 for child in children])
        else:
            assert laws is not None
            law = probabilities(laws[place], trials.sampling)
            rows.append(_chances(law, probs[0], children))
        draft.commit(star, (0,), (token,), None if states is None else states[place : place + 1])
    return rows


def _chances(target: Tensor, draft: Tensor, children: Sequence[int]) -> list[float]:
    """The chance of each child, in the order drawn, that it is the one accepted."""
    trial, left, chances = Trial(target, draft), 1.0, []
    for token in children:
        chance = trial.chance(token) if left > 0 else 0.0
        chances.append(left * chance)
        left *= 1 - chance
        trial.reject(token)
    return chances


def weigh(
    chances: Sequence[Sequence[float]], depths: int
) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Expected trials by depth, and acceptances by depth and rank, of steps along one text.

    Not every token begins a step: behind an accepted child the bonus token follows, and the next step begins
    behind that, so places where the draft does badly begin more steps than their share. Weighing each place
    by its chance to begin a step of a one-level tree gives what the on-policy estimator would see. A trial at
    depth d is then the d-th place behind such a beginning, reached if all places between were accepted.
    """
    length = len(chances)
    begins = [0.0] * (length + 2)
    if length:
        begins[0] = 1.0
    hits = [sum(row) for row in chances]
    for place in range(length):
        begins[place + 1] += begins[place] * (1 - hits[place])
        begins[place + 2] += begins[place] * hits[place]
    reached = begins[:length]
    weights, accepted = [], []
    for _ in range(depths):
        weights.append(sum(reached))
        columns = zip(*chances, strict=True)
        accepted.append(tuple(sum(w * c for w, c in zip(reached, column, strict=True)) for column in columns))
        reached = [0.0, *(weight * hit for weight, hit in zip(reached, hits, strict=True))][:length]
    return tuple(weights), tuple(accepted)
