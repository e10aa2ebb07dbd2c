"""Measurements as tables for the person at the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from rich.box import SIMPLE_HEAD
from rich.table import Table

from sequoia_cli.core.hardware import HardwareProfile, Times
from sequoia_cli.core.rates import AcceptanceRates

_NUMBERS = ("nodes", "tokens", "depth")


def plain_table(title: str, *columns: str) -> Table:
    """An empty table in the style of all of them; names to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number or column in _NUMBERS else "left")
    return table


def profile_tables(profile: HardwareProfile) -> Iterator[Table]:
    """For each context, milliseconds of each part by size, and what a token costs next to plain decoding."""
    for context, times in ((profile.context, profile), *profile.contexts):
        of = f", context {context}" if profile.contexts else ""
        yield _times_table(times, f"{profile.device} ({profile.origin}){of}, milliseconds")


def _times_table(times: Times, title: str) -> Table:
    table = plain_table(title, "tokens", "target", "relative", "draft level", "verify")
    target, draft, verify = dict(times.target_seconds), dict(times.draft_seconds), dict(times.verify_seconds)
    curve, first = times.curves["target"], times.target_seconds[0][1]
    for tokens in sorted({*target, *draft}):
        seconds = curve.seconds(tokens)
        table.add_row(
            str(tokens),
            _milliseconds(target.get(tokens)),
            f"{seconds / first:.2f}" if isfinite(seconds) else "",
            _milliseconds(draft.get(tokens)),
            _milliseconds(verify.get(tokens)),
        )
    if times.overhead_seconds:
        table.caption = f"and {_milliseconds(times.overhead_seconds)} for whatever else every step takes"
    return table


def rates_table(rates: AcceptanceRates, ranks: int = 6) -> Table:
    """The first ranks of p by depth, with the error of the first row."""
    columns = min(ranks, len(rates.p[0]))
    headings = [
        "depth",
        *(f"p_{rank + 1}" for rank in range(columns)),
        "any",
        *["trials"] * bool(rates.samples),
    ]
    table = plain_table("chance that the child of each rank is the one accepted", *headings)
    for depth, row in enumerate(rates.p):
        name = f"{depth + 1}+" if depth == len(rates.p) - 1 else str(depth + 1)
        own = [f"{rates.row_trials[depth]:.0f}"] if rates.samples else []
        table.add_row(name, *(f"{rate:.3f}" for rate in row[:columns]), f"{sum(row):.3f}", *own)
    if errors := rates.standard_errors():
        table.add_row(
            "±", *(f"{error:.3f}" for error in errors[:columns]), *([""] * (1 + bool(rates.samples)))
        )
    return table


def layouts_table(
    timings: Mapping[str, Mapping[str, Sequence[float]]], chosen: Mapping[str, str], rows: Sequence[int]
) -> Table:
    """Milliseconds of each layout of a weight for the numbers of `rows`, and the layout chosen."""
    layouts = list(next(iter(timings.values())))
    headings = [f"{layout}, {count}" for layout in layouts for count in rows]
    table = plain_table("products by layout and rows, milliseconds", "weight", *headings, "chosen")
    for name, seconds in timings.items():
        cells = [_milliseconds(value) for layout in layouts for value in seconds[layout]]
        table.add_row(name, *cells, chosen[name])
    return table


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.2f}"
