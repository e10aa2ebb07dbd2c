"""Whole decoding steps: the profile of a pair, and how much a tree gains over plain decoding."""

from __future__ import annotations

import bisect
import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from gpu.forwards import Timed
from gpu.pairs import BenchPair
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.counts import Rows
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder, default_draft_sampling
from sequoia_cli.engine.verification import accept
from sequoia_cli.engine.verification.walk import Verdict
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.measure.latency import fit_profile, time_round

GREEDY = Sampling()


def measure_profile(
    pair: BenchPair, sizes: Sequence[int], rounds: int, conditions: dict[str, Any], record: dict[str, Any]
) -> HardwareProfile:
    """What `sequoia profile` measures, of this pair."""
    both = GREEDY, default_draft_sampling(GREEDY)
    visits = [
        visit
        for number in range(rounds)
        for visit in time_round(pair.target, pair.draft, sizes, pair.prompt, number, both)
    ]
    return fit_profile(visits, conditions, record)


@contextmanager
def coin(rates: Rows, seed: int) -> Iterator[None]:
    """In place of a greedy target's choices: the child of rank k is accepted with the chance p_k.

    Everything else is done as ever, the choices are computed and read included.
    """
    dice = random.Random(seed)
    borders = [list(itertools.accumulate(row)) for row in rates]

    def verdict(tree: TokenTree, tokens: Sequence[int], choices: Sequence[int]) -> Verdict:
        path = [0]
        while True:
            row = borders[min(len(path) - 1, len(borders) - 1)]
            rank, children = bisect.bisect_right(row, dice.random()), tree.children[path[-1]]
            if rank >= len(children):
                return Verdict(tuple(path), choices[path[-1]])
            path.append(children[rank])

    with patch.object(accept, "verify_greedy", verdict):
        yield


def time_texts(
    pair: BenchPair, tree: TokenTree, tokens: int, texts: int, sampling: Sampling = GREEDY
) -> dict[str, Any]:
    """Texts of so many tokens after the prompt, the first of which warms up and records.

    `steps` has (wall seconds, tokens, size, seconds by stage) of all steps of the others but their first.
    """
    decoder = Decoder(pair.target, [pair.draft] if tree.size > 1 else [], tree, sampling)
    steps: list[list[Any]] = []
    accepted = pair.rates if pair.coin and sampling.greedy else None
    for text in range(texts + 1):
        generator = torch.Generator().manual_seed(text)
        with coin(accepted, text) if accepted else nullcontext():
            last = None
            for step in decoder.decode(pair.prompt, tokens, generator=generator):
                now = time.perf_counter()
                if text and last is not None:
                    steps.append([now - last, len(step.tokens), step.size, dict(step.seconds)])
                last = now
    return {"parents": list(tree.parents), "steps": steps}


def compare(
    pair: BenchPair,
    profile: HardwareProfile,
    budget: int,
    tokens: int,
    texts: int,
    forwards: Timed,
    drafts: Timed | None,
) -> dict[str, dict[str, Any]]:
    """Plain decoding, the tree that is best by the profile, and the best of half the budget's size.

    Each with what it gains, what was predicted, and what share of a step is not a model's forward; the best
    tree once more at a temperature, where the coin has no say.
    """
    choices = {
        "compiled": choose(profile, pair.rates, Limits(budget)).chosen,
        "wide": choose(profile, pair.rates, Limits(budget), size=budget // 2).chosen,
    }
    plain = choose(profile, pair.rates, Limits(1)).chosen
    runs = {name: (choice, GREEDY) for name, choice in {"plain": plain, **choices}.items()}
    runs["wide, sampled"] = choices["wide"], Sampling(0.6)
    found = {}
    for name, (choice, sampling) in runs.items():
        text = time_texts(pair, choice.tree, tokens, texts, sampling)
        steps = text["steps"]
        found[name] = {
            **text,
            "tokens_per_second": _rate(steps),
            "tokens_per_step": sum(step[1] for step in steps) / len(steps),
            "expected_tokens_per_step": expected_tokens(choice.tree, pair.rates),
            "seconds_per_step": statistics.median(_whole(steps, choice.tree)),
            "predicted_seconds_per_step": choice.seconds,
            "beside_forwards": _beside(steps, choice.tree, forwards, drafts),
        }
        found[name]["speedup"] = _rate(steps) / _rate(found["plain"]["steps"])
    return found


def _rate(steps: Sequence[Sequence[Any]]) -> float:
    return sum(step[1] for step in steps) / sum(step[0] for step in steps)


def _whole(steps: Sequence[Sequence[Any]], tree: TokenTree) -> list[float]:
    """Seconds of the steps that had the whole tree."""
    return [step[0] for step in steps if step[2] == tree.size]


def _beside(
    steps: Sequence[Sequence[Any]], tree: TokenTree, forwards: Timed, drafts: Timed | None
) -> float | None:
    """The share of a whole tree's steps that neither the target's nor the draft's forwards take.

    Both are those timed alone, at the nearest larger size. None where the draft's were not.
    """
    if tree.size > 1 and drafts is None:
        return None
    alone = _at(forwards, tree.size) + sum(_at(drafts or {}, len(level)) for level in tree.expanded)
    return 1 - alone / statistics.median(_whole(steps, tree))


def _at(timed: Timed, size: int) -> float:
    return statistics.median(timed[min((each for each in timed if each >= size), default=max(timed))])
