"""Drawing tokens from probabilities by given uniforms: one from a row, or the children of a node."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

#: Uniforms (rows, most) with at least as many columns as the largest count of children, or a generator on the
#: device, by which children are drawn without the host asking for anything.
Noise = Tensor | torch.Generator

#: Below this mass the differences of a cumulative sum, kept to 1e-16, are no longer exact to 1e-7.
_THIN = 1e-9


def draw(probs: Tensor, uniform: float) -> int:
    """The token at `uniform` in [0, 1) of a (vocabulary,) row's cumulative distribution."""
    return int(draw_rows(probs[None], torch.tensor([uniform], dtype=torch.float64, device=probs.device)))


def draw_rows(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The same for each of (rows, vocabulary) at its own of (rows,) uniforms."""
    cumulative = _cumulative(probs)
    return _locate(cumulative, cumulative[:, -1] * uniforms)


def draw_children(probs: Tensor, counts: Sequence[int], noise: Noise) -> list[Tensor]:
    """Children of each row, drawn one after the other without replacement.

    `probs` is (rows, vocabulary), `counts` the number of children of each row. Child i is drawn from the
    row's distribution without the children before it, renormalised; where nothing is left of it, uniformly
    from the tokens not yet drawn (Sequoia, arXiv 2402.12374, Algorithm 2). Returns one (count,) tensor of
    tokens per row, in draw order.
    """
    most = max(counts)
    if most > probs.shape[-1]:
        raise ValueError(f"{most} different children cannot be drawn from {probs.shape[-1]} tokens")
    if isinstance(noise, torch.Generator):
        tokens = _race(probs, most, noise)
    else:
        without_replacement = on_host if probs.device.type == "cpu" else on_device
        tokens, left = without_replacement(_cumulative(probs), noise[:, :most])
        for row in (left < _THIN).nonzero()[:, 0].tolist():
            tokens[row] = _one_by_one(probs[row], noise[row, :most])
    return [tokens[row, :count] for row, count in enumerate(counts)]


def draw_independently(probs: Tensor, counts: Sequence[int], noise: Noise) -> list[Tensor]:
    """The same with replacement: every child from the row's whole distribution, so that some may be equal.

    (SpecInfer, arXiv 2305.09781; SpecTr, arXiv 2310.15141)
    """
    if isinstance(noise, torch.Generator):
        shape = len(probs), max(counts)
        noise = torch.rand(shape, generator=noise, dtype=torch.float64, device=probs.device)
    cumulative = _cumulative(probs)
    points = (cumulative[:, -1] * column for column in noise[:, : max(counts)].to(cumulative).unbind(1))
    tokens = torch.stack([_locate(cumulative, point) for point in points], 1)
    return [tokens[row, :count] for row, count in enumerate(counts)]


def top_children(probs: Tensor, counts: Sequence[int], noise: Noise | None = None) -> list[Tensor]:
    """The most probable tokens of each row, in order, whatever the noise.

    They suit a greedy target, which accepts a child only if it is the target's own choice, whichever way it
    was picked.
    """
    tokens = probs.topk(max(counts), dim=-1).indices
    return [tokens[row, :count] for row, count in enumerate(counts)]


def on_host(cumulative: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, children) tokens by inversion of (rows, vocabulary) sums, and the mass left for the last child.

    The mass without the tokens drawn so far is a shorter line; a point on it is carried over to the whole
    line by adding, in order of position, the mass of each drawn token that lies before it.
    """
    rows = [_on_line(*each) for each in zip(cumulative.numpy(), uniforms.tolist(), strict=True)]
    tokens, left = zip(*rows, strict=True)
    return torch.tensor(tokens), torch.tensor(left, dtype=torch.float64)


def _on_line(line: np.ndarray, uniforms: Sequence[float]) -> tuple[list[int], float]:
    # Children are few, and numbers of Python's own cost far less than the launch of an operation over some.
    left, width = float(line[-1]), 0.0
    largest = math.nextafter(left, 0)
    tokens: list[int] = []
    gone: list[tuple[float, float]] = []  # in order of position
    for uniform in uniforms:
        left -= width
        point, passed = uniform * left, 0
        for start, end in gone:
            if point < start:
                break
            # At least `end`: rounding must not put the point back into a token that is gone.
            point = max(point + (end - start), end)
            passed += 1
        # At most the last one: a row that is not finite has no position, and is reported where it is used.
        token = min(int(line.searchsorted(min(point, largest), side="right")), len(line) - 1)
        start, end = float(line[token - 1]) if token else 0.0, float(line[token])
        gone.insert(passed, (start, end))
        tokens.append(token)
        width = end - start
    return tokens, left


def on_device(cumulative: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The same without the host asking for anything, by operations over all rows and drawn tokens."""
    zero = torch.zeros_like(cumulative[:, :1])
    # Of each drawn token, in order of position: where its mass starts and ends.
    starts = ends = zero[:, :0]
    drawn: list[Tensor] = []
    for child in range(uniforms.shape[1]):
        left = cumulative[:, -1] - (ends - starts).sum(1)
        point = uniforms[:, child].to(left) * left
        token = _locate(cumulative, _beside(point, starts, ends, zero))[:, None]
        drawn.append(token)
        start = torch.where(token > 0, cumulative.gather(1, (token - 1).clamp(min=0)), zero)
        starts, order = torch.cat((starts, start), 1).sort(1)
        ends = torch.cat((ends, cumulative.gather(1, token)), 1).gather(1, order)
    return torch.cat(drawn, 1), left


def _beside(point: Tensor, starts: Tensor, ends: Tensor, zero: Tensor) -> Tensor:
    """(rows,) points on the whole line for those on what is left without (rows, drawn) intervals in order."""
    # Where the point comes to lie if it passes no interval, the first, the first two, ... It is never before
    # the end of an interval that it has passed: rounding must not put it back into a token that is gone.
    lies = torch.cat((zero, (ends - starts).cumsum(1)), 1) + point[:, None]
    lies = torch.maximum(lies, torch.cat((zero, ends), 1))
    passes = (lies[:, :-1] >= starts).cumprod(1).sum(1, keepdim=True)
    return lies.gather(1, passes)[:, 0]


def _race(probs: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """(rows, most) tokens: the first to arrive, each after an exponential time with its probability as rate.

    Given the tokens that have arrived, the next one has the distribution of the others, renormalised. So the
    order of arrival is that of drawing without replacement (arXiv 1903.06059, there with the logarithm of
    times). Tokens without mass come last, in any order. Consumer GPUs compute float64 at 1/64 of the speed of
    float32, whose uniforms are multiples of 2^-24: too coarse for the short times that improbable tokens
    need. A second uniform fills in the digits below, so that small ones have 24 bits of their own.
    """
    coarse, fine = torch.rand((2, *probs.shape), generator=generator, device=probs.device)
    times = -torch.log1p(-(coarse + fine * 2**-24))
    times.clamp_(min=torch.finfo(times.dtype).tiny)
    return torch.where(probs > 0, probs / times, -times).topk(most, dim=-1).indices


def _one_by_one(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The same for one row, renormalising after each child: exact however little mass is left."""
    rest, drawn = probs.clone(), torch.zeros_like(probs, dtype=torch.bool)
    tokens = []
    for uniform in uniforms.tolist():
        if not rest.sum() > 0:
            rest = (~drawn).to(rest)
        token = draw(rest, uniform)
        tokens.append(token)
        drawn[token] = True
        rest[token] = 0
    return torch.tensor(tokens, device=probs.device)


def _cumulative(probs: Tensor) -> Tensor:
    """Cumulative sums along the last axis, in float64 and never falling."""
    sums = probs.cumsum(-1, dtype=torch.float64)
    # A parallel sum rounds each entry in its own way, and what falls by that would have tokens found twice.
    return sums if sums.device.type == "cpu" else sums.cummax(-1).values


def _locate(cumulative: Tensor, point: Tensor) -> Tensor:
    """(rows,) index of the first entry above `point`: a token without mass is never found.

    Among NaN nothing is found. The last index is returned, which can be looked up; whoever reads such rows
    refuses them (see `engine/finite.py`).
    """
    last = cumulative[:, -1]
    point = torch.minimum(point, torch.nextafter(last, torch.zeros_like(last)))
    found = torch.searchsorted(cumulative, point[:, None], right=True)[:, 0]
    return found.clamp_(max=cumulative.shape[-1] - 1)
