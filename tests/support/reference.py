"""Slow twins: plain-Python versions of the engine's tensor code, and exact distributions by enumeration.

Written from the paper (arXiv 2402.12374, Algorithm 2), not from the engine's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sequoia_cli.core.tree import TokenTree

Row = list[float]


def normalised(row: Sequence[float]) -> Row:
    total = sum(row)
    return [value / total for value in row]


def without(draft: Row, tried: Sequence[int]) -> Row:
    """The draft once `tried` were drawn: renormalised, or uniform over the others where nothing is left."""
    rest = [0.0 if token in tried else value for token, value in enumerate(draft)]
    if sum(rest) > 0:
        return normalised(rest)
    return normalised([0.0 if token in tried else 1.0 for token in range(len(draft))])


def residual_of(residual: Row, draft: Row) -> Row:
    return normalised([max(r - d, 0.0) for r, d in zip(residual, draft, strict=True)])


def ordered_draws(draft: Row, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every ordered draw of `count` children without replacement, with its probability."""

    def extend(tried: tuple[int, ...], chance: float) -> Iterator[tuple[tuple[int, ...], float]]:
        if len(tried) == count:
            yield tried, chance
            return
        for token, probability in enumerate(without(draft, tried) if tried else draft):
            if probability > 0:
                yield from extend((*tried, token), chance * probability)

    yield from extend((), 1.0)


def one_level_distribution(target: Row, draft: Row, count: int, *, update_residual: bool = True) -> Row:
    """The distribution of the token after a root with `count` children, summed over every ordered draw.

    `update_residual=False` is the negative control: a verifier that forgets the residual.
    """
    probs = [0.0] * len(target)
    for drawn, chance in ordered_draws(draft, count):
        residual, current = target, draft
        for index, token in enumerate(drawn):
            accept = min(1.0, residual[token] / current[token])
            probs[token] += chance * accept
            chance *= 1 - accept
            if chance <= 0:
                break
            if update_residual:
                residual = residual_of(residual, current)
            current = without(draft, drawn[: index + 1])
        for token, probability in enumerate(residual):
            probs[token] += max(chance, 0.0) * probability
    return probs


def walk(
    tree: TokenTree,
    tokens: Sequence[int],
    target: Callable[[int], Row],
    draft: Callable[[int], Row],
    uniforms: Sequence[float],
) -> tuple[tuple[int, ...], int]:
    """The accepted path and the next token, for given noise."""
    path = [0]
    while True:
        node = path[-1]
        residual, current, tried = target(node), draft(node), []
        for child in tree.children[node]:
            token = tokens[child]
            if uniforms[child] < residual[token] / current[token]:
                path.append(child)
                break
            residual = residual_of(residual, current)
            tried.append(token)
            if child != tree.children[node][-1]:
                current = without(draft(node), tried)
        else:
            return tuple(path), inverse(residual, uniforms[tree.size])


def walk_drafts(
    tree: TokenTree,
    tokens: Sequence[Sequence[int]],
    target: Callable[[tuple[int, ...]], Row],
    draft: Callable[[int, int], Row],
    uniform: Callable[[tuple[int, ...]], float],
    last: float,
) -> tuple[int, ...]:
    """The accepted tokens and the next one where several drafts grew a tree each (arXiv 2305.09781).

    The trees stay apart: `here` has the nodes of each draft that the accepted text leads to. `target` and
    `uniform` are asked for by text, `draft` by draft and node.
    """
    text: tuple[int, ...] = ()
    here = [(number, 0) for number in range(len(tokens))]
    while True:
        residual, accepted = target(text), None
        for number, node in here:
            current, tried = draft(number, node), []
            for child in tree.children[node]:
                token = tokens[number][child]
                if uniform((*text, token)) < residual[token] / current[token]:
                    accepted = token
                    break
                residual = residual_of(residual, current)
                tried.append(token)
                current = without(draft(number, node), tried)
            if accepted is not None:
                break
        if accepted is None:
            return (*text, inverse(residual, last))
        text = (*text, accepted)
        here = [
            (number, child)
            for number, node in here
            for child in tree.children[node]
            if tokens[number][child] == accepted
        ]


def inverse(row: Row, uniform: float) -> int:
    """The token at `uniform` of the cumulative distribution."""
    point, total = uniform * sum(row), 0.0
    for token, value in enumerate(row):
        total += value
        if value > 0 and point < total:
            return token
    return max(token for token, value in enumerate(row) if value > 0)
