"""Timing the parts of a decoding step, by running the very loop that `generate` runs."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from scipy.optimize import isotonic_regression

from sequoia_cli.core.hardware import HardwareProfile, Timings
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.step import Step
from sequoia_cli.engine.text import encode_prompt
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import load_prompts

#: Seconds of each timed part: part -> tokens, width or size -> samples.
Samples = dict[str, dict[int, list[float]]]

#: Steps of each size in a round.
STEPS = 4

PARTS = ("target", "draft", "verify")

#: Relative interquartile range above which a timing is called unsteady, and above which it is no result.
UNSTEADY, UNUSABLE = 0.2, 0.8


def timing_tree(size: int) -> TokenTree:
    """A tree of `size` nodes whose second layer is as wide as a layer with children can be at that size.

    The root has half of the other nodes as children, each of which has one of the rest, so one tree times a
    target forward of `size` tokens and draft levels of 1 and (size - 1) // 2 nodes: all that trees up to
    this size can need.
    """
    second = (size - 1) // 2
    return TokenTree((-1, *[0] * (size - 1 - second), *range(1, second + 1)))


def largest_context(target: LanguageModel, draft: Draft) -> int:
    """Most tokens that may stand before a tree: behind them, a warm-up step and another one fit whole."""
    return min(target.context_limit, draft.context_limit) + 1 - 2 * timing_tree(3).depth


def context_prompt(tokenizer: Any, tokens: int) -> list[int]:
    """`tokens` ids of ordinary text to stand before the tree: the built-in prompts, over and over."""
    ids: list[int] = []
    for prompt in load_prompts().prompts:
        text = prompt.content if isinstance(prompt.content, str) else prompt.content[-1]["content"]
        ids += encode_prompt(tokenizer, text, raw=True)
    return (ids * (tokens // len(ids) + 1))[:tokens]


def time_steps(decoder: Decoder, prompt: Sequence[int], steps: int, generator: torch.Generator) -> list[Step]:
    """`steps` decoding steps behind `prompt`, after one that warms up and is not counted.

    A text that reaches the model's context is begun again.
    """
    depth = decoder.tree.depth
    counted: list[Step] = []
    while len(counted) < steps:
        # The budget leaves the last counted step its whole tree.
        run = decoder.decode(prompt, (steps + 2) * depth, generator=generator)
        fresh = [step for step in itertools.islice(run, 1, steps + 1 - len(counted)) if step.depth == depth]
        if not fresh:
            raise BadInput(
                f"a context of {len(prompt)} tokens leaves no room for a tree of {depth} layers after a step",
                hint="give a smaller --context",
            )
        counted += fresh
    return counted


def time_round(
    target: LanguageModel,
    draft: Draft,
    sizes: Sequence[int],
    prompt: Sequence[int],
    number: int,
    samplings: tuple[Sampling, Sampling],
    on_size: Callable[[], None] = lambda: None,
) -> Samples:
    """Time every size once, in an order of its own for each round `number`.

    `samplings` are the target's and the draft's. `on_size` is told when a size is done.
    """
    order = list(sizes)
    random.Random(number).shuffle(order)
    parts = []
    for size in order:
        decoder = Decoder(target, [draft], timing_tree(size), *samplings)
        parts.append(sort_samples(time_steps(decoder, prompt, STEPS, torch.Generator().manual_seed(number))))
        on_size()
    return merge_samples(parts)


def sort_samples(steps: Iterable[Step]) -> Samples:
    """The seconds of each part of the steps, by its size."""
    samples: Samples = {part: {} for part in PARTS}
    for step in steps:
        samples["target"].setdefault(step.size, []).append(step.seconds["target"])
        rest = step.seconds["verify"] + step.seconds["other"]
        samples["verify"].setdefault(step.size, []).append(rest)
        for width, seconds in zip(step.level_widths, step.level_seconds, strict=True):
            samples["draft"].setdefault(width, []).append(seconds)
    return samples


def merge_samples(parts: Iterable[Samples]) -> Samples:
    """All samples of several rounds together, sizes in order."""
    merged: Samples = {part: {} for part in PARTS}
    for samples in parts:
        for part, by_size in samples.items():
            for size, seconds in by_size.items():
                merged[part].setdefault(size, []).extend(seconds)
    return {part: dict(sorted(by_size.items())) for part, by_size in merged.items()}


def fit_profile(
    rounds: Sequence[Samples], conditions: Mapping[str, Any], record: Mapping[str, Any]
) -> HardwareProfile:
    """The profile of what was timed in these rounds, with the raw samples beside the fit."""
    steady, samples = steadied(rounds), merge_samples(rounds)
    return HardwareProfile(
        target_seconds=fitted(steady["target"]),
        draft_seconds=fitted(steady["draft"]),
        verify_seconds=fitted(steady["verify"]),
        origin="measured",
        device=str(conditions["device"]),
        conditions=conditions,
        samples={
            part: [[size, [round(value, 7) for value in seconds]] for size, seconds in by_size.items()]
            for part, by_size in samples.items()
        },
        record=record,
    )


def steadied(rounds: Sequence[Samples]) -> Samples:
    """All samples together, each divided by the pace of its round.

    A shared machine changes speed from one half minute to the next, by up to a half. All sizes are timed in
    every round, so a round's pace is the median over sizes of its target times relative to their median over
    rounds; taking it out leaves what the sizes cost relative to each other.
    """
    cells = [
        {size: statistics.median(seconds) for size, seconds in part["target"].items()} for part in rounds
    ]
    typical = {size: statistics.median(cell[size] for cell in cells) for size in cells[0]}
    paces = [statistics.median(cell[size] / typical[size] for size in typical) for cell in cells]
    return merge_samples(
        {
            part: {size: [value / pace for value in seconds] for size, seconds in by_size.items()}
            for part, by_size in samples.items()
        }
        for samples, pace in zip(rounds, paces, strict=True)
    )


def fitted(by_size: Mapping[int, Sequence[float]]) -> Timings:
    """The median of each size, made non-decreasing by isotonic regression.

    More tokens never take less time; where measured medians say so it is noise, and a compiler would choose
    by it.
    """
    sizes = sorted(by_size)
    medians = [statistics.median(by_size[size]) for size in sizes]
    monotone = isotonic_regression(medians).x
    return tuple((size, float(f"{seconds:.6g}")) for size, seconds in zip(sizes, monotone, strict=True))


def spread(seconds: Sequence[float]) -> float:
    """Interquartile range relative to the median: blind to the few outliers that every machine has."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle
