"""The effect of 8-bit rounding on a target, compared with the unrounded target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.model import LanguageModel


@dataclass(frozen=True)
class RoundingCost:
    """Measured over the tokens of greedy answers of the unrounded target.

    `divergence` is the mean of KL(unrounded || rounded) in nats, `agreement` the share of positions at which
    both have the same most probable token. Speeds are of plain decoding, in tokens per second.
    """

    tokens: int
    divergence: float
    agreement: float
    perplexity: float
    unrounded_perplexity: float
    speed: float
    unrounded_speed: float


def rounding_cost(
    unrounded: LanguageModel,
    rounded: LanguageModel,
    prompts: Sequence[Sequence[int]],
    most: int,
    eos_ids: Sequence[int],
    on_prompt: Callable[[], None] = lambda: None,
) -> RoundingCost:
    """Compare both targets on answers of up to `most` tokens to `prompts`, at least one.

    `on_prompt` is called after each prompt.
    """
    divergences: list[float] = []
    same: list[bool] = []
    losses: dict[LanguageModel, list[float]] = {unrounded: [], rounded: []}
    seconds, written = dict.fromkeys(losses, 0.0), dict.fromkeys(losses, 0)
    for prompt in prompts:
        answers = {}
        for model in losses:
            start = time.perf_counter()
            answers[model] = list(_answer(model, prompt, most, eos_ids))
            seconds[model] += time.perf_counter() - start
            written[model] += len(answers[model])
        tokens = answers[unrounded]
        wide, narrow = (_log_probabilities(model, prompt, tokens) for model in losses)
        terms = wide.exp() * (wide - narrow)
        divergences += terms.where(wide > -math.inf, 0).sum(-1).tolist()  # 0 log 0 = 0
        same += (wide.argmax(-1) == narrow.argmax(-1)).tolist()
        chosen = torch.tensor(tokens)[:, None]
        for model, found in zip(losses, (wide, narrow), strict=True):
            losses[model] += (-found.gather(1, chosen)).flatten().tolist()
        on_prompt()
    return RoundingCost(
        len(same),
        _mean(divergences),
        _mean(same),
        _perplexity(losses[rounded]),
        _perplexity(losses[unrounded]),
        written[rounded] / seconds[rounded],
        written[unrounded] / seconds[unrounded],
    )


def _answer(model: LanguageModel, prompt: Sequence[int], most: int, eos_ids: Sequence[int]) -> Iterator[int]:
    """The greedy answer, including the token that ends it."""
    for step in Decoder(model).decode(prompt, most):
        for token in step.tokens:
            yield token
            if token in eos_ids:
                return


@torch.inference_mode()
def _log_probabilities(model: LanguageModel, prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Log probabilities (tokens, vocabulary) of each token of the answer, in float32, on the CPU."""
    ids = torch.tensor([[*prompt, *answer[:-1]]], device=model.device)
    logits = model.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :]
    return logits.float().cpu().log_softmax(-1)


def _perplexity(losses: Sequence[float]) -> float:
    mean = _mean(losses)
    return math.exp(mean) if mean < 700 else math.inf


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
