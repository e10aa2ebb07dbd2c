"""What the sums of the prompts say: rates with intervals, as a table, a csv and a figure."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.errors import SequoiaError

#: Standard errors on each side of a 95% interval.
_WIDTH = 1.96
MEASURES = {"accepted": "one of 5 children accepted", "tokens": "tokens per step"}
COLOURS = {"sequoia": "C0", "specinfer": "C1", "spectr": "C2", "naive": "C3", "traversal": "C4"}


def intervals(entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each setting, measure and verifier: mean over places, half a 95% interval, the same of what it lacks
    to Sequoia's at the same places.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault((entry["temperature"], entry["top_p"], entry["draft"]), []).append(entry)
    found = []
    for (temperature, top_p, draft), group in groups.items():
        counts = [entry["places"] for entry in group]
        for measure in MEASURES:
            for name in group[0][measure]:
                sums = [entry[measure][name] for entry in group]
                apart = [entry[measure][name] - entry[measure]["sequoia"] for entry in group]
                mean, half = _ratio(sums, counts)
                difference, half_difference = _ratio(apart, counts)
                found.append(
                    {
                        "temperature": temperature,
                        "top_p": top_p,
                        "draft": draft,
                        "measure": measure,
                        "verifier": name,
                        "mean": round(mean, 4),
                        "half_width": round(half, 4),
                        "to_sequoia": round(difference, 4),
                        "to_sequoia_half_width": round(half_difference, 4),
                        "places": sum(counts),
                        "prompts": len(group),
                    }
                )
    return found


def _ratio(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """A mean over all places, and half its interval: the prompt is the unit, as in `pooled_rate`."""
    total, units = sum(counts), len(counts)
    mean = sum(sums) / total
    if units < 2:
        return mean, math.inf
    squares = sum((value - mean * count) ** 2 for value, count in zip(sums, counts, strict=True))
    return mean, _WIDTH * math.sqrt(squares * units / (units - 1)) / total


def print_table(found: Sequence[Mapping[str, Any]], out: TextIO) -> None:
    """A line for each setting, measure by measure."""
    names = list(COLOURS)
    for measure, title in MEASURES.items():
        print(f"\n{title}, 95% intervals over prompts", file=out)
        print("{:>12}{:>7}{:>11}".format("temperature", "top-p", "draft"), file=out, end="")
        print("".join(f"{name:>16}" for name in names), file=out)
        lines: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
        for entry in found:
            if entry["measure"] == measure:
                key = entry["temperature"], entry["top_p"], entry["draft"]
                lines.setdefault(key, {})[entry["verifier"]] = entry
        for (temperature, top_p, draft), entries in lines.items():
            cells = (f"{entries[name]['mean']:.3f} ± {entries[name]['half_width']:.3f}" for name in names)
            print(
                f"{temperature:12}{top_p:7}{draft:>11}" + "".join(f"{cell:>16}" for cell in cells), file=out
            )


def write_csv(found: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One line for each mean."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


def write_figure(found: Sequence[Mapping[str, Any]], path: Path, tree: TokenTree) -> None:
    """Both measures over temperature, a column for each top-p. Raises `SequoiaError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SequoiaError(
            "a figure needs matplotlib, which is not installed", hint="pip install 'sequoia-cli[dev]'"
        ) from None
    shown = [entry for entry in found if entry["draft"] == "as target"]
    top_ps = sorted({entry["top_p"] for entry in shown})
    figure = Figure(figsize=(4 * len(top_ps), 7), layout="constrained")
    axes = figure.subplots(len(MEASURES), len(top_ps), sharex=True, sharey="row", squeeze=False)
    for row, (measure, title) in enumerate(MEASURES.items()):
        for column, top_p in enumerate(top_ps):
            panel = axes[row][column]
            for name, colour in COLOURS.items():
                line = sorted(
                    (entry["temperature"], entry["mean"], entry["half_width"])
                    for entry in shown
                    if (entry["measure"], entry["verifier"]) == (measure, name)
                    and (entry["top_p"] == top_p or entry["temperature"] == 0)
                )
                xs, means, halves = zip(*line, strict=True)
                panel.plot(xs, means, marker="o", markersize=3, color=colour, label=name)
                low, high = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1, 1))
                panel.fill_between(xs, low, high, color=colour, alpha=0.12, linewidth=0)
            panel.grid(alpha=0.3)
            panel.set_title(f"top-p {top_p}" if row == 0 else "")
            panel.set_xlabel("temperature" if row else "")
        axes[row][0].set_ylabel(title if row == 0 else f"{title}, tree of {tree.size} nodes")
    axes[0][0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=72)
