"""Measurements as tables for the person at the terminal."""

from __future__ import annotations

from rich.table import Table

from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.rates import AcceptanceRates


def profile_table(profile: HardwareProfile) -> Table:
    """Milliseconds of each part by size, and what a token costs next to plain decoding."""
    table = Table(title=f"{profile.device} ({profile.origin}), milliseconds", title_justify="left")
    for heading in ("tokens", "target", "relative", "draft level", "verify"):
        table.add_column(heading, justify="right")
    first = profile.target_seconds[0][1]
    draft, verify = dict(profile.draft_seconds), dict(profile.verify_seconds)
    for tokens in sorted({*dict(profile.target_seconds), *draft}):
        seconds = profile.target(tokens)
        table.add_row(
            str(tokens),
            _milliseconds(dict(profile.target_seconds).get(tokens)),
            f"{seconds / first:.2f}" if seconds is not None else "",
            _milliseconds(draft.get(tokens)),
            _milliseconds(verify.get(tokens)),
        )
    return table


def rates_table(rates: AcceptanceRates, ranks: int = 8) -> Table:
    """The first ranks of p by depth, with the error of the first row."""
    columns = min(ranks, len(rates.p[0]))
    table = Table(title="chance that the child of each rank is the one accepted", title_justify="left")
    table.add_column("depth", justify="right")
    for rank in range(columns):
        table.add_column(f"p_{rank + 1}", justify="right")
    table.add_column("any", justify="right")
    if rates.samples:
        table.add_column("trials", justify="right")
    for depth, row in enumerate(rates.p):
        name = f"{depth + 1}+" if depth == len(rates.p) - 1 else str(depth + 1)
        own = [f"{rates.trials[depth]:.0f}"] if rates.samples else []
        table.add_row(name, *(f"{rate:.3f}" for rate in row[:columns]), f"{sum(row):.3f}", *own)
    if errors := rates.standard_errors():
        table.add_row(
            "±", *(f"{error:.3f}" for error in errors[:columns]), *([""] * (1 + bool(rates.samples)))
        )
    return table


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1000 * seconds:.2f}"
