"""How often does `sequoia check` fail a right program? Its statistics, all tests together, simulated.

Each run draws the tokens of a whole default check from distributions with a few likely tokens and a long
tail. The shipped bets and Holm's procedure test them. The tests of one run share their tokens, as they do in
the command. A table on stderr, one JSON document on stdout; exit 1 where a rate is significantly above its
level (at 0.001).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest

from sequoia_cli.check.betting import (
    CONCENTRATIONS,
    LEAST_EXPECTED,
    LOG_ODDS,
    Group,
    cells_wealth,
    event_wealth,
    holm,
    mixture,
)
from sequoia_cli.check.tally import BINS

Array = NDArray[np.float64]

LEVELS = (0.05, 0.01, 0.001, 0.0001)
SAMPLES = 400
VOCABULARY = 2000
_CHUNK = 100


@dataclass(frozen=True)
class Context:
    """What the target and a draft say somewhere, tokens by falling probability of the target."""

    probs: Array
    proposed: Array

    @classmethod
    def drawn(cls, random: np.random.Generator, sharpness: float) -> Context:
        """Zipf's tail of that exponent with noise; the draft's is near it."""
        logits = -sharpness * np.log(np.arange(1, VOCABULARY + 1)) + random.normal(0, 0.5, VOCABULARY)
        logits = np.sort(logits)[::-1]
        probs, proposed = np.exp(logits), np.exp(logits + random.normal(0, 1, VOCABULARY))
        return cls(probs / probs.sum(), proposed / proposed.sum())

    def tokens(self, uniforms: Array) -> NDArray[np.int64]:
        """The token of each uniform: it is then the token's place among all, too."""
        return np.searchsorted(np.cumsum(self.probs)[:-1], uniforms, side="right")

    @property
    def favours(self) -> NDArray[np.bool_]:
        """The tokens that the draft proposes too often."""
        return self.proposed > self.probs


def wealth_of_cells(context: Context, tokens: NDArray[np.int64], used: NDArray[np.bool_], n: float) -> Array:
    """(runs, concentrations) log wealth of a group of (runs, outcomes) tokens, those that are `used`."""
    group = Group.of(torch.from_numpy(context.probs), n)
    if group.size < 2:
        return np.zeros((len(tokens), len(CONCENTRATIONS)))
    cell = np.full(VOCABULARY, len(group.tokens))
    cell[group.tokens] = range(len(group.tokens))
    cells = cell[tokens]
    counts = np.stack([(used & (cells == at)).sum(1) for at in range(len(group.prior))], 1).astype(float)
    own = context.probs[group.tokens]
    masses = np.append(own, max(1e-300, 1 - own.sum()))
    return cells_wealth(counts, group.prior, counts @ np.log(masses))


def wealth_of_ranks(uniforms: Array, used: NDArray[np.bool_]) -> Array:
    """(runs,) log wealth of the test of ranks."""
    bins = (uniforms * BINS).astype(int)
    counts = np.stack([(used & (bins == at)).sum(1) for at in range(BINS)], 1).astype(float)
    uniform = np.full(BINS, 1 / BINS)
    return mixture(cells_wealth(counts, uniform, counts @ np.log(uniform)))


def wealth_of_events(came: NDArray[np.bool_], chance: Array, used: NDArray[np.bool_] | None = None) -> Array:
    """(runs, log odds) log wealth of (runs, events)."""
    won = event_wealth(came.astype(float), chance)
    return (won if used is None else won * used[..., None]).sum(1)


def smallest_p_values(runs: int, seed: int) -> Array:
    """(runs,) smallest adjusted p-value of each run: a level that it is below has an alarm."""
    random = np.random.default_rng(seed)
    contexts = [Context.drawn(random, sharpness) for sharpness in (1.1, 1.6, 2.5)]
    seconds = [[Context.drawn(random, random.uniform(0.9, 3)) for _ in range(60)] for _ in contexts]
    parts = [_chunk(contexts, seconds, min(_CHUNK, runs - at), random) for at in range(0, runs, _CHUNK)]
    return np.array([min(holm(row)) for part in parts for row in np.exp(-np.maximum(0, part)).tolist()])


def _chunk(
    contexts: list[Context], seconds: list[list[Context]], runs: int, random: np.random.Generator
) -> Array:
    """(runs, tests) log wealth of all tests."""
    tests: list[Array] = []
    favoured, successive, texts, prompts = (np.zeros((runs, len(LOG_ODDS))) for _ in range(4))
    places, leaves = [], []
    shape = runs, SAMPLES
    for context, after in zip(contexts, seconds, strict=True):
        first_places, second_places = random.random(shape), random.random(shape)
        first, everywhere = context.tokens(first_places), np.ones(shape, dtype=bool)
        same_step = random.random(shape) < np.minimum(1, context.proposed / context.probs)[first]
        tests.append(mixture(wealth_of_cells(context, first, everywhere, SAMPLES)))
        favoured += wealth_of_events(context.favours[first], _mass(context, runs))
        within, across = (np.zeros((runs, len(CONCENTRATIONS))) for _ in range(2))
        for token in range(VOCABULARY):
            expected = float(context.probs[token]) * SAMPLES
            if expected < 2 * LEAST_EXPECTED:
                break
            of, here = after[token % len(after)], first == token
            second = of.tokens(second_places)
            within += wealth_of_cells(of, second, here & same_step, expected)
            across += wealth_of_cells(of, second, here & ~same_step, expected)
            starts = here & ~same_step
            favoured += wealth_of_events(of.favours[second], _mass(of, runs), starts)
            again = of.tokens(random.random(shape))
            successive += wealth_of_events(second == again, of.probs[again], starts)
        tests += [mixture(within), mixture(across)]
        before = np.roll(first, 1, axis=1)
        texts += wealth_of_events((first == before)[:, 1:], context.probs[before][:, 1:])
        other = context.tokens(places[-1] if places else random.random(shape))
        prompts += wealth_of_events(first == other, context.probs[other])
        places.append(first_places)
        leaves.append((second_places, same_step))
    together = np.concatenate(places, 1)
    tests.append(wealth_of_ranks(together, np.ones(together.shape, dtype=bool)))
    tests.append(wealth_of_ranks(*(np.concatenate(parts, 1) for parts in zip(*leaves, strict=True))))
    return np.stack([*tests, *map(mixture, (favoured, successive, texts, prompts))], 1)


def _mass(context: Context, runs: int) -> Array:
    return np.full((runs, SAMPLES), context.probs[context.favours].sum())


def main() -> None:
    """Simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    smallest = smallest_p_values(options.runs, options.seed)
    found = []
    for level in LEVELS:
        alarms = int((smallest <= level).sum())
        test = binomtest(alarms, options.runs, level, alternative="greater")
        low, high = binomtest(alarms, options.runs).proportion_ci(0.95)
        found.append({"level": level, "alarms": alarms, "low": low, "high": high})
        found[-1]["holds"] = bool(test.pvalue >= 1e-3)
        print(
            f"level {level:<7g} {alarms:5} alarms in {options.runs} runs, "
            f"{alarms / options.runs:.2g} (95%: {low:.2g} to {high:.2g})",
            file=sys.stderr,
        )
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({"options": vars(options), "seconds": seconds, "rates": found}))
    if not all(one["holds"] for one in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
