"""Predicting the speed of a draft on this machine from measured rates and times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.estimate import Estimate
from sequoia_cli.compiler.result import Choice
from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.distill.corpus import Text
from sequoia_cli.engine.decode import default_draft_sampling
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.acceptance import teacher_forced
from sequoia_cli.measure.acceptance_counts import AcceptanceSettings
from sequoia_cli.measure.latency import Samples, fit_profile, largest_context, time_round

#: Acceptance is measured on this many held-out prompts, with answers of this many tokens.
PROMPTS, NEW_TOKENS = 16, 64
_RANKS, _DEPTHS = 16, 6
_SIZES, _ROUNDS, _CONTEXT = (1, 2, 4, 8, 16, 32), 5, 128
_BUDGET = 32


@dataclass(frozen=True)
class Prediction:
    """Rates and times of a draft with `ids` ids, measured under `conditions`, and the compiled tree."""

    ids: int
    conditions: Mapping[str, Any]
    rates: AcceptanceRates
    profile: HardwareProfile
    choice: Choice

    @property
    def speedup(self) -> float:
        """The predicted speedup over plain decoding."""
        return self.choice.speedup(self.choice.chosen)

    def figures(self) -> dict[str, Any]:
        """The prediction as written to a file."""
        chosen = self.choice.chosen
        return {
            "draft_vocabulary": self.ids,
            "conditions": dict(self.conditions),
            "trials": [round(count, 4) for count in self.rates.row_trials],
            "p": [[round(rate, 4) for rate in row[:8]] for row in self.rates.p],
            "draft_seconds": [list(pair) for pair in self.profile.draft_seconds],
            "target_seconds": [list(pair) for pair in self.profile.target_seconds],
            "tree": {"size": chosen.tree.size, "depth": chosen.tree.depth},
            "tokens_per_step": round(chosen.tokens_per_step, 4),
            "speedup": round(self.speedup, 4),
        }


def prompts_of(texts: Sequence[Text]) -> list[list[int]]:
    """At most `PROMPTS` different prompts: each text up to its first answer, or the start of the text."""
    found: dict[tuple[int, ...], None] = {}  # an ordered set
    for text in texts:
        first = int(text.answer.long().argmax()) if bool(text.answer.any()) else len(text)
        found[tuple(text.tokens[: max(first, min(16, len(text) // 2), 1)].tolist())] = None
    return [list(prompt) for prompt in found][:PROMPTS]


def predict(
    target: LanguageModel,
    drafts: Mapping[int, Draft],
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    conditions: Mapping[str, Any],
    on_piece: Callable[[], None] = lambda: None,
) -> list[Prediction]:
    """Predict the speed of each draft; the keys of `drafts` are their numbers of ids.

    The models are run as given: prepare them first (see `session.prepare`). The drafts are timed in turns and
    share the target's times, so that a change of the machine's speed favours none. `on_piece` is called
    `pieces(len(drafts), len(prompts))` times.
    """
    sampling = Sampling()
    pair = sampling, default_draft_sampling(sampling)
    context = max(1, min(_CONTEXT, *(largest_context(target, draft) for draft in drafts.values())))
    measured = {
        "estimator": "teacher-forced",
        "forward": conditions["forward"],
        "temperature": sampling.temperature,
        "prompts": len(prompts),
        "max_new_tokens": NEW_TOKENS,
        "context": context,
        "budget": _BUDGET,
    }
    timed = _times(target, drafts, prompts, context, pair, on_piece)
    whole = fit_profile([visit for visits in timed.values() for visit in visits], conditions, {})
    found = []
    for size, draft in drafts.items():
        counts = _counts(target, draft, size, prompts, eos_ids, pair, on_piece)
        rates = AcceptanceRates.from_samples(counts, {**conditions, **measured}, {})
        profile = replace(
            fit_profile(timed[size], conditions, {}),
            target_seconds=whole.target_seconds,
            verify_seconds=whole.verify_seconds,
            overhead_seconds=whole.overhead_seconds,
        )
        # The estimate that `compile` uses: raw rates of few counts are too optimistic.
        choice = choose(profile, Estimate.of(rates).rows, Limits(_BUDGET))
        found.append(Prediction(size, measured, rates, profile, choice))
    return found


def _times(
    target: LanguageModel,
    drafts: Mapping[int, Draft],
    prompts: Sequence[Sequence[int]],
    context: int,
    pair: tuple[Sampling, Sampling],
    on_piece: Callable[[], None],
) -> dict[int, list[Samples]]:
    """Times of each draft after `context` tokens; the drafts take turns."""
    tokens = [token for prompt in prompts for token in prompt]
    text = (tokens * (context // len(tokens) + 1))[:context]
    timed: dict[int, list[Samples]] = {size: [] for size in drafts}
    for number in range(_ROUNDS):
        for size, draft in drafts.items():
            sizes = [nodes for nodes in _SIZES if nodes <= min(size, target.vocabulary)]
            timed[size] += time_round(target, draft, sizes, text, number, pair)
            on_piece()
    return timed


def _counts(
    target: LanguageModel,
    draft: Draft,
    size: int,
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    pair: tuple[Sampling, Sampling],
    on_piece: Callable[[], None],
) -> list[PromptCounts]:
    """Acceptance counts of each prompt for a draft with `size` ids."""
    settings = AcceptanceSettings(*pair, min(_RANKS, size), _DEPTHS, NEW_TOKENS)
    counts = []
    for index, prompt in enumerate(prompts):
        noise = torch.Generator().manual_seed(0)
        counts.append(
            teacher_forced(target, draft, prompt, settings, index=index, eos_ids=eos_ids, generator=noise)
        )
        on_piece()
    return counts


def pieces(drafts: int, prompts: int) -> int:
    """How often `predict` calls `on_piece`."""
    return drafts * (_ROUNDS + prompts)
