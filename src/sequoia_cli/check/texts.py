"""Whole texts compared with the target's own forward, token by token, and where two texts differ first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sequoia_cli.check.reference import Reference, Row, compare
from sequoia_cli.check.watched import Seen, Watched
from sequoia_cli.engine.step import LENGTH, STOP

#: How many times the target's own rounding of a row explains an error in it. On the default pair in bfloat16
#: the tool's rows were at most 1.6 times as far off; with rows of a side branch in the cache, 19 times at the
#: median.
SLACK = 4.0


class Rows(NamedTuple):
    """Logits (tokens, vocabulary) by the tool, by the target's own forward, and in the wider dtype."""

    found: Tensor
    plain: Tensor
    exact: Tensor


@dataclass(frozen=True)
class Checked:
    """One text, token by token.

    `rows` says how well the logits that each token came from are known, `shortfalls` by how much the
    token's logit lies below the largest in the wider dtype, `choices` whether it is the most probable by the
    tool's own logits. The last two decide for greedy texts alone.
    """

    prompt: str
    token_ids: tuple[int, ...]
    finish: str | None
    rows: tuple[Row, ...]
    shortfalls: tuple[float, ...]
    choices: tuple[bool, ...]
    greedy: bool
    end: str | None = None

    @property
    def wrong_rows(self) -> list[int]:
        """Places whose logits are off by more than rounding explains."""
        return [place for place, row in enumerate(self.rows) if not row.error <= SLACK * row.rounding]

    @property
    def wrong_tokens(self) -> list[int]:
        """Places where a greedy text has a token that rounding cannot have made the most probable."""
        if not self.greedy:
            return []
        found = zip(self.shortfalls, self.rows, self.choices, strict=True)
        return [place for place, (short, row, own) in enumerate(found) if not own or not tied(short, row)]


@dataclass(frozen=True)
class Difference:
    """Where a greedy text first differs from the plain one: at `place`, by `tokens` (None: it had ended).

    `gap` is by how much the target's two largest logits differ there in its dtype and `exact_gap` in the
    wider one; `shortfalls` by how much the two tokens lie below the largest in the wider one; `rounding` as
    in `Row`.
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
        """Whether both tokens can be the most probable, for all that the dtype's rounding lets one know."""
        row = Row(0.0, self.rounding)
        return None not in self.tokens and all(tied(short, row) for short in self.shortfalls)


def tied(shortfall: float, row: Row) -> bool:
    """Whether rounding may have put a token first whose logit is that much below the largest.

    Both logits may be off, either way, by as much as `SLACK` roundings.
    """
    return shortfall <= 2 * SLACK * row.rounding


def check_text(
    watched: Watched,
    reference: Reference,
    name: str,
    prompt: Sequence[int],
    max_new_tokens: int,
    eos_ids: Sequence[int],
    seed: int,
    each: Callable[[Seen], Any] = lambda seen: None,
) -> tuple[Checked, Rows]:
    """Let the tool write one text, then compare: one forward of the reference over it in each dtype."""
    steps = []
    for seen in watched.steps(prompt, max_new_tokens, eos_ids, seed):
        steps.append(seen)
        each(seen)
    tokens = [token for seen in steps for token in seen.tokens]
    given = [*prompt, *tokens[:-1]]
    rows = Rows(
        torch.cat([seen.logits for seen in steps]),
        reference.plain(given, len(tokens)),
        reference.exact(given, len(tokens)),
    )
    own = torch.tensor(tokens, device=rows.found.device)[:, None]
    short = rows.exact.amax(-1) - rows.exact.gather(1, own)[:, 0]
    best = rows.found.gather(1, own)[:, 0] == rows.found.amax(-1)
    finish = steps[-1].finish
    checked = Checked(
        name,
        tuple(tokens),
        finish,
        tuple(compare(*rows)),
        tuple(short.tolist()),
        tuple(best.tolist()),
        watched.sampling.greedy,
        wrong_end(tokens, finish, eos_ids, max_new_tokens),
    )
    return checked, rows


def wrong_end(tokens: Sequence[int], finish: str | None, eos_ids: Sequence[int], most: int) -> str | None:
    """What is wrong with where a text ends, if anything is."""
    ends = [place for place, token in enumerate(tokens) if token in eos_ids]
    if ends and ends[0] < len(tokens) - 1:
        return f"it goes on for {len(tokens) - 1 - ends[0]} tokens after an end of text"
    if len(tokens) > most:
        return f"it has {len(tokens)} tokens, {most} were asked for"
    expected = STOP if ends else LENGTH if len(tokens) == most else None
    if expected is not None and finish != expected:
        return f"it says that it ended by '{finish}'; expected '{expected}'"
    return None


def first_difference(ours: Checked, plain: Checked, rows: Rows) -> Difference | None:
    """The first difference from the plain text of the same prompt, or None; `rows` are those of `ours`."""
    pairs = zip(ours.token_ids, plain.token_ids, strict=False)
    shared = min(len(ours.token_ids), len(plain.token_ids))
    place = next((at for at, (a, b) in enumerate(pairs) if a != b), shared)
    if place == len(ours.token_ids) == len(plain.token_ids):
        return None
    tokens = tuple(text.token_ids[place] if place < len(text.token_ids) else None for text in (ours, plain))
    at = min(place, len(ours.rows) - 1)  # nothing is known after the end of ours
    exact = rows.exact[at].double()
    short = [float(exact.max() - exact[token]) if token is not None else 0.0 for token in tokens]
    return Difference(
        ours.prompt,
        place,
        (tokens[0], tokens[1]),
        _gap(rows.plain[at]),
        _gap(exact),
        (short[0], short[1]),
        ours.rows[at].rounding,
    )


def _gap(row: Tensor) -> float:
    first, second = row.double().topk(2).values.tolist()
    return first - second
