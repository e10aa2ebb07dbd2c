"""`sequoia bench --scaling`: growth of time and memory with prompt and tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sequoia_cli.cli.bench.report import number
from sequoia_cli.cli.render import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from sequoia_cli.bench.scaling import Point
    from sequoia_cli.bench.target import TargetDescription
    from sequoia_cli.bench.workload import Workload
    from sequoia_cli.cli.console import Commentary

#: The engines to measure unless --engines names others.
DEFAULT_ENGINES = "plain,tree"


def measure(
    engines: Sequence[str],
    work: Workload,
    target: TargetDescription,
    rounds: int,
    pythons: Mapping[str, str],
    say: Commentary,
) -> tuple[list[Point], bool]:
    """The points, and whether an interrupt cut them short. Notes the lengths beyond the context."""
    from sequoia_cli.bench.scaling import LENGTHS, NEW_TOKENS, SIZES, points
    from sequoia_cli.measure.latency import context_prompt

    room = target.context_limit - NEW_TOKENS
    if beyond := [length for length in LENGTHS if length > room]:
        say.note(
            f"left out: prompts of {', '.join(map(str, beyond))} tokens; "
            f"with {NEW_TOKENS} new tokens they exceed this target's context, {target.context_limit}"
        )
    text = context_prompt(target.tokenizer, min(room, LENGTHS[-1]))
    runs = (len(LENGTHS) - len(beyond)) * len(engines) + len(SIZES) * ("tree" in engines)
    found: list[Point] = []
    with say.progress() as bar:
        task = bar.add_task("engines", total=runs * (2 + rounds))  # loading, warm-up and rounds

        def show(what: str) -> None:
            bar.update(task, description=what, advance=1)

        try:
            for point in points(engines, work, text, rounds, show, pythons):
                found.append(point)
        except KeyboardInterrupt:
            return found, True
    return found, False


def document(points: Sequence[Point]) -> list[dict[str, Any]]:
    """All points with their samples."""
    return [
        {
            "engine": point.outcome.engine,
            "prompt_tokens": point.prompt_tokens,
            "tree_nodes": point.tree_nodes,
            "first_token_seconds": _median(point, "first_token_seconds"),
            "seconds_per_step": _median(point, "seconds_per_step"),
            "peak_bytes": point.outcome.peak_bytes,
            "samples": [sample.to_dict() for sample in point.outcome.samples],
        }
        for point in points
        if point.outcome.samples
    ]


def table(points: Sequence[Point]) -> Table:
    """Time and memory by point."""
    shown = plain_table(
        "growth with the prompt, then with the tree",
        *("engine", "prompt tokens", "tree nodes", "first token, ms", "step, ms", "peak memory, MB"),
    )
    for entry in document(points):
        shown.add_row(
            entry["engine"],
            str(entry["prompt_tokens"]),
            str(entry["tree_nodes"]),
            number(entry["first_token_seconds"], ".0f", 1000),
            number(entry["seconds_per_step"], ".1f", 1000),
            number(entry["peak_bytes"], ".0f", 1e-6),
        )
    return shown


def _median(point: Point, name: str) -> float | None:
    from sequoia_cli.bench.summary import median_of

    return median_of(point.outcome.samples, name)
