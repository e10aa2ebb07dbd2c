"""Exact acceptance rates by enumeration of the children, and how far means of measurements are from them."""

import random

import torch

from reference import normalised, ordered_draws, residual_of, without


def random_pair(size, zeros):
    """A target and a draft over `size` tokens; with `zeros` each lacks a token that the other has."""
    rng = random.Random(10 * size + zeros)
    rows = [[0.02 + rng.random() ** 3 for _ in range(size)] for _ in range(2)]
    if zeros:
        rows[0][0] = rows[1][1] = 0.0
    return tuple(map(normalised, rows))


def exact_chances(target, draft, children, *, update=True):
    """The chance of each child, and what is left of the target and its chance, by the slow twin."""
    residual, current, left, chances = target, draft, 1.0, []
    for index, token in enumerate(children):
        accept = min(1.0, residual[token] / current[token]) if left > 0 else 0.0
        chances.append(left * accept)
        left *= 1 - accept
        if left > 1e-12:
            residual = residual_of(residual, current) if update else residual
            current = without(draft, children[: index + 1])
    return chances, left, residual


def marginal_rates(target, draft, ranks, *, update=True):
    """The exact rate of each rank, summed over every ordered draw of the children."""
    rates = [0.0] * ranks
    for children, drawn in ordered_draws(draft, ranks):
        for rank, chance in enumerate(exact_chances(target, draft, children, update=update)[0]):
            rates[rank] += drawn * chance
    return rates


def hit_rates(target, draft, ranks):
    """The exact chance that a child was accepted given the token that came, by token."""
    hits = [0.0] * len(target)
    for children, drawn in ordered_draws(draft, ranks):
        for child, chance in zip(children, exact_chances(target, draft, children)[0], strict=True):
            hits[child] += drawn * chance
    return [hit / mass if mass else None for hit, mass in zip(hits, target, strict=True)]


def deviation(seen, expected) -> float:
    """The largest deviation of the columns' means from what is expected, in standard errors."""
    seen, expected = torch.tensor(seen, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)
    errors = seen.std(0) / len(seen) ** 0.5 + 1e-9
    return float(((seen.mean(0) - expected).abs() / errors).max())
