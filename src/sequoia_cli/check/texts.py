"""Comparing whole texts with the reference, token by token, and finding where two texts first differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sequoia_cli.check.observed import ObservedDecoder, ObservedStep
from sequoia_cli.check.reference import Reference, RowError, compare
from sequoia_cli.engine.step import LENGTH, STOP

#: An error in a row of logits is explained by rounding up to this multiple of the target's own. On the
#: default pair in bfloat16 the tool's errors were at most 1.6 times the target's; with a side branch left in
#: the cache, 19 times at the median.
SLACK = 4.0


class TextLogits(NamedTuple):
    """Logits (tokens, vocabulary) of the tool, of the reference, and of the reference in the wider dtype."""

    found: Tensor
    plain: Tensor
    exact: Tensor


@dataclass(frozen=True)
class CheckedText:
    """One text, checked token by token.

    For each token: `rows`, the error of its row of logits; `shortfalls`, how far its logit lies below the
    largest in the wider dtype; `choices`, whether it is the most probable by the tool's own logits. The last
    two matter for greedy texts only. `end` is an error in where the text ends.
    """

    prompt: str
    token_ids: tuple[int, ...]
    finish: str | None
    rows: tuple[RowError, ...]
    shortfalls: tuple[float, ...]
    choices: tuple[bool, ...]
    greedy: bool
    end: str | None = None

    @property
    def wrong_rows(self) -> list[int]:
        """Positions whose logits have larger errors than rounding explains."""
        return [place for place, row in enumerate(self.rows) if not row.error <= SLACK * row.rounding]

    @property
    def wrong_tokens(self) -> list[int]:
        """Positions of a greedy text with a token that is not the most probable, allowing for rounding."""
        if not self.greedy:
            return []
        found = zip(self.shortfalls, self.rows, self.choices, strict=True)
        return [place for place, (short, row, own) in enumerate(found) if not own or not tied(short, row)]


@dataclass(frozen=True)
class Difference:
    """The first difference of a greedy text from the plain one: `tokens` at `place` (None: the text ended).

    `gap` is the difference of the target's two largest logits there in its dtype, `exact_gap` in the wider
    one; `shortfalls` are how far the two tokens' logits lie below the largest in the wider one; `rounding` is
    as in `RowError`.
    """

    prompt: str
    place: int
    tokens: tuple[int | None, int | None]
    gap: float
    exact_gap: float
    shortfalls: tuple[float, float]
    rounding: float

    @property
    def within_rounding(self) -> bool:
        """Whether either token may be the most probable, within rounding."""
        row = RowError(0.0, self.rounding)
        return None not in self.tokens and all(tied(short, row) for short in self.shortfalls)


def tied(shortfall: float, row: RowError) -> bool:
    """Whether rounding may have made a token the most probable whose logit is `shortfall` below the largest.

    Each of the two logits may be wrong by `SLACK` roundings, in opposite directions.
    """
    return shortfall <= 2 * SLACK * row.rounding


def check_text(
    decoder: ObservedDecoder,
    reference: Reference,
    name: str,
    prompt: Sequence[int],
    max_new_tokens: int,
    eos_ids: Sequence[int],
    seed: int,
    each: Callable[[ObservedStep], Any] = lambda step: None,
) -> tuple[CheckedText, TextLogits]:
    """Generate one text with the tool, then compare it with one forward of the reference in each dtype."""
    steps = []
    for step in decoder.steps(prompt, max_new_tokens, eos_ids, seed):
        steps.append(step)
        each(step)
    tokens = [token for step in steps for token in step.tokens]
    given = [*prompt, *tokens[:-1]]
    rows = TextLogits(
        torch.cat([step.logits for step in steps]),
        reference.plain(given, len(tokens)),
        reference.exact(given, len(tokens)),
    )
    own = torch.tensor(tokens, device=rows.found.device)[:, None]
    short = rows.exact.amax(-1) - rows.exact.gather(1, own)[:, 0]
    best = rows.found.gather(1, own)[:, 0] == rows.found.amax(-1)
    finish = steps[-1].finish
    checked = CheckedText(
        name,
        tuple(tokens),
        finish,
        tuple(compare(*rows)),
        tuple(short.tolist()),
        tuple(best.tolist()),
        decoder.sampling.greedy,
        wrong_end(tokens, finish, eos_ids, max_new_tokens),
    )
    return checked, rows


def wrong_end(tokens: Sequence[int], finish: str | None, eos_ids: Sequence[int], most: int) -> str | None:
    """An error in where a text ends, None if there is none."""
    ends = [place for place, token in enumerate(tokens) if token in eos_ids]
    if ends and ends[0] < len(tokens) - 1:
        return f"it continues for {len(tokens) - 1 - ends[0]} tokens after an end of text"
    if len(tokens) > most:
        return f"it has {len(tokens)} tokens, {most} were asked for"
    expected = STOP if ends else LENGTH if len(tokens) == most else None
    if expected is not None and finish != expected:
        return f"it says that it ended by '{finish}'; expected '{expected}'"
    return None


def first_difference(ours: CheckedText, plain: CheckedText, logits: TextLogits) -> Difference | None:
    """The first difference from the plain text of the same prompt, or None; `logits` are those of `ours`."""
    pairs = zip(ours.token_ids, plain.token_ids, strict=False)
    shared = min(len(ours.token_ids), len(plain.token_ids))
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), shared)
    if place == len(ours.token_ids) == len(plain.token_ids):
        return None
    tokens = tuple(text.token_ids[place] if place < len(text.token_ids) else None for text in (ours, plain))
    at = min(place, len(ours.rows) - 1)  # there are no logits after the end of ours
    exact = logits.exact[at].double()
    short = [float(exact.max() - exact[token]) if token is not None else 0.0 for token in tokens]
    return Difference(
        ours.prompt,
        place,
        (tokens[0], tokens[1]),
        _gap(logits.plain[at]),
        _gap(exact),
        (short[0], short[1]),
        ours.rows[at].rounding,
    )


def _gap(row: Tensor) -> float:
    first, second = row.double().topk(2).values.tolist()
    return first - second
