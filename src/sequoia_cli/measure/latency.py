"""Timing the parts of a decoding step, by running the very loop that `generate` runs."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from scipy.optimize import isotonic_regression

from sequoia_cli.core.costs import Points
from sequoia_cli.core.hardware import HardwareProfile, Times
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

#: Steps of each size in a visit.
STEPS = 4

PARTS = ("target", "draft", "verify", "overhead")

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
    """Most tokens that may come before a tree, so that a warm-up step and another one fit after them."""
    return min(target.context_limit, draft.context_limit) + 1 - 2 * timing_tree(3).depth


def context_prompt(tokenizer: Any, tokens: int) -> list[int]:
    """`tokens` ids of ordinary text to stand before the tree: the built-in prompts, over and over."""
    ids: list[int] = []
    for prompt in load_prompts().prompts:
        text = prompt.content if isinstance(prompt.content, str) else prompt.content[-1]["content"]
        ids += encode_prompt(tokenizer, text, raw=True)
    return (ids * (tokens // len(ids) + 1))[:tokens]


def timed_steps(
    decoder: Decoder, prompt: Sequence[int], steps: int, generator: torch.Generator
) -> Iterator[Step]:
    """`steps` decoding steps after `prompt`, following a warm-up step that is not counted.

    A text that reaches the model's context is started again.
    """
    depth = decoder.tree.depth
    while steps:
        # The budget leaves the last counted step its whole tree.
        run = decoder.decode(prompt, (steps + 2) * depth, generator=generator)
        counted = 0
        for step in itertools.islice(run, 1, steps + 1):
            if step.depth == depth:
                counted += 1
                yield step
        if not counted:
            raise BadInput(
                f"a context of {len(prompt)} tokens leaves no room for a tree of {depth} layers after a step",
                hint="give a smaller --context",
            )
        steps -= counted


def time_round(
    target: LanguageModel,
    draft: Draft,
    sizes: Sequence[int],
    prompt: Sequence[int],
    number: int,
    samplings: tuple[Sampling, Sampling],
    on_size: Callable[[], None] = lambda: None,
) -> list[Samples]:
    """Time every size once, in an order of its own for each round `number`: a visit for each size above 1.

    In a visit the tree's steps and plain ones, which are size 1, take turns, so that each visit has the pace
    at which the machine ran just then. `samplings` are the target's and the draft's. `on_size` is told when a
    size is done.
    """
    order = [size for size in sizes if size > 1] or [1]
    random.Random(number).shuffle(order)
    plain = Decoder(target, sampling=samplings[0])
    visits = []
    for size in order:
        decoders = [plain, Decoder(target, [draft], timing_tree(size), *samplings)][: min(size, 2)]
        runs = [timed_steps(each, prompt, STEPS, torch.Generator().manual_seed(number)) for each in decoders]
        visits.append(sort_samples(step for turn in zip(*runs, strict=True) for step in turn))
        on_size()
    return visits


def sort_samples(steps: Iterable[Step]) -> Samples:
    """The seconds of each part of the steps, by its size."""
    samples: Samples = {part: {} for part in PARTS}
    for step in steps:
        samples["target"].setdefault(step.size, []).append(step.seconds["target"])
        samples["verify"].setdefault(step.size, []).append(step.seconds["verify"])
        samples["overhead"].setdefault(step.size, []).append(step.seconds["other"])
        for width, seconds in zip(step.level_widths, step.level_seconds, strict=True):
            samples["draft"].setdefault(width, []).append(seconds)
    return samples


def merge_samples(parts: Iterable[Samples]) -> Samples:
    """All samples of several visits together, sizes in order."""
    merged: Samples = {part: {} for part in PARTS}
    for samples in parts:
        for part, by_size in samples.items():
            for size, seconds in by_size.items():
                merged[part].setdefault(size, []).extend(seconds)
    return {part: dict(sorted(by_size.items())) for part, by_size in merged.items()}


def fit_profile(
    visits: Sequence[Samples],
    conditions: Mapping[str, Any],
    record: Mapping[str, Any],
    longer: Mapping[int, Sequence[Samples]] | None = None,
) -> HardwareProfile:
    """The profile of what was timed in these visits, with the raw samples beside the fit.

    `longer` has the visits at longer contexts than that of the conditions.
    """
    return HardwareProfile(
        **vars(fit_times(visits)),
        origin="measured",
        device=str(conditions["device"]),
        conditions=conditions,
        record=record,
        contexts=tuple((context, fit_times(those)) for context, those in sorted((longer or {}).items())),
    )


def fit_times(visits: Sequence[Samples]) -> Times:
    """The times of what was timed in visits at one context.

    The overhead is what plain steps take besides the target and verification; what trees add to that by their
    size belongs to verification.
    """
    steady, samples = steadied(visits), merge_samples(visits)
    overhead = float(f"{statistics.median(steady['overhead'][1]):.6g}")
    rest = {
        size: [verify + other for verify, other in zip(seconds, steady["overhead"][size], strict=True)]
        for size, seconds in steady["verify"].items()
    }
    return Times(
        target_seconds=fitted(steady["target"]),
        draft_seconds=fitted(steady["draft"]),
        # Pooling with other sizes can bring the rest of a plain step below its overhead.
        verify_seconds=tuple(
            (size, max(1e-9, float(f"{seconds - overhead:.6g}"))) for size, seconds in fitted(rest)
        ),
        overhead_seconds=overhead,
        samples={
            part: [[size, [round(value, 7) for value in seconds]] for size, seconds in by_size.items()]
            for part, by_size in samples.items()
        },
    )


def steadied(visits: Sequence[Samples]) -> Samples:
    """All samples together, each divided by the pace of its visit.

    A shared machine changes speed by up to a half, from one second to the next. A visit's pace is what plain
    steps took in it, relative to their median over visits; taking it out leaves what the sizes cost relative
    to each other.
    """
    plain = [statistics.median(visit["target"][1]) for visit in visits]
    typical = statistics.median(plain)
    return merge_samples(
        {
            part: {size: [value * typical / pace for value in seconds] for size, seconds in by_size.items()}
            for part, by_size in visit.items()
        }
        for visit, pace in zip(visits, plain, strict=True)
    )


def fitted(by_size: Mapping[int, Sequence[float]]) -> Points:
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
