"""How often the child of each rank is the one accepted: two estimators of the same rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sequoia_cli.core.rates import PromptCounts, Rows
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import draw
from sequoia_cli.engine.grow import pick_children
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

    @property
    def tree(self) -> TokenTree:
        """The tree whose steps are counted: one level of all ranks."""
        return TokenTree((-1, *[0] * self.ranks))


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
    decoder = Decoder(target, [draft], trials.tree, trials.sampling, trials.draft_sampling)
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
    """Write a text token by token, asking at each of them for the chance of each rank.

    The chances are exact given the children drawn, where the on-policy estimator tosses a coin; a target
    forward is over one token, and every depth comes from the same pass (see `weigh`).
    """
    weights, accepted = weigh(places_along(target, draft, prompt, trials, eos_ids, generator), trials)
    return PromptCounts(index, weights, accepted)


@dataclass(frozen=True)
class Place:
    """What was found where one token of a text was to come.

    `chances` has for each rank the chance that its child is the one accepted, `hit` whether one was.
    """

    chances: tuple[float, ...]
    hit: bool


def places_along(
    target: LanguageModel,
    draft: Draft,
    prompt: Sequence[int],
    trials: Trials,
    eos_ids: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> list[Place]:
    """The places of a text that a step with a one-level tree could begin at, in order.

    Each token is the one that verification of the children gives, so the text is the target's own, and a
    token comes with the hit that it goes with: which tokens are hit has a say in what is hit next.
    """
    decoder = Decoder(target, [draft], trials.tree, trials.sampling, trials.draft_sampling)
    list(decoder.decode(prompt, 0))  # checks the prompt
    # A step of two layers has room at all tokens but the last, of the text or of either context.
    context = min(target.context_limit, draft.context_limit)
    count = min(trials.new_tokens - 1, context - len(prompt))
    if count < 1:
        return []
    prompt_ids = torch.tensor(list(prompt), device=target.device)
    capacity = len(prompt) + trials.new_tokens + trials.tree.size
    cache = target.new_cache(capacity)
    reads, greedy = draft.reads_hidden, trials.sampling.greedy
    draft.start(prompt_ids, capacity, target.prefill(prompt_ids[:-1], cache, hidden=reads))
    layout, token = Layout(trials.tree), prompt[-1]
    places = []
    for _ in range(count):
        root = torch.tensor([token], device=target.device)
        position = torch.tensor([cache.length], device=target.device)
        output = target.forward(root, position, cache, None, hidden=reads)
        law = probabilities(output.logits[0], trials.sampling)
        noise = torch.rand(trials.ranks + 2, generator=generator, dtype=torch.float64)
        drawn, probs = pick_children(
            draft.expand(layout, 0, root, trials.draft_sampling),
            (trials.ranks,),
            noise[None, 2:],
            target.vocabulary,
            greedy=greedy,
            ids=draft.ids,
        )
        children = drawn[0].tolist()
        if greedy:
            token = int(law.argmax())
            place = Place(tuple(float(child == token) for child in children), token in children)
        else:
            place, token = _verified(law, probs[0], children, *noise[:2].tolist())
        places.append(place)
        if token in eos_ids:
            break
        draft.commit(layout, (0,), (token,), output.hidden)
    return places


def _verified(
    target: Tensor, draft: Tensor, children: Sequence[int], coin: float, uniform: float
) -> tuple[Place, int]:
    """The chances of the children, in the order drawn, and the token that verification gives."""
    trial, left, chances = Trial(target, draft), 1.0, []
    for child in children:
        chance = trial.chance(child) if left > 0 else 0.0
        chances.append(left * chance)
        left *= 1 - chance
        trial.reject(child)
    for child, reached in zip(children, accumulate(chances), strict=True):
        if coin < reached:
            return Place(tuple(chances), True), child
    return Place(tuple(chances), False), draw(trial.residual(), uniform)


def weigh(places: Sequence[Place], trials: Trials) -> tuple[tuple[float, ...], Rows]:
    """Trials by depth, and expected acceptances by depth and rank, of the steps along one text.

    Not every token begins a step: behind an accepted child the bonus token follows, and the next step begins
    behind that, so places where the draft does badly begin more steps than their share. A trial at depth d is
    the d-th place behind such a beginning, reached if all places between were hits.
    """
    reached, place = [0.0] * len(places), 0
    while place < len(places):
        reached[place] = 1.0
        place += 2 if places[place].hit else 1
    weights, accepted = [], []
    for _ in range(trials.depths):
        weights.append(sum(reached))
        rows = [place.chances for place, weight in zip(places, reached, strict=True) if weight]
        accepted.append(tuple(sum(row[rank] for row in rows) for rank in range(trials.ranks)))
        reached = [0.0, *(w * place.hit for w, place in zip(reached, places, strict=True))][: len(places)]
    return tuple(weights), tuple(accepted)
