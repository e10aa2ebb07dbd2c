"""The replays as plots. matplotlib comes with the `dev` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes


def draw(results: dict[str, dict[str, Any]], folder: Path) -> list[Path]:
    """Write the plots of all parts; where they went."""
    return [
        draw_scalability(results["scalability"], folder / "scalability.png"),
        draw_rows(results["rows"]["rows"], folder / "trees.png"),
    ]


def draw_scalability(part: dict[str, Any], place: Path) -> Path:
    """Tokens per step by nodes: lines are replayed, marks are the page's."""
    figure, axes = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for number, (name, plotted) in enumerate(part["plotted"].items()):
        colour = f"C{number}"
        axes.plot(part["sizes"], part["curves"][name], color=colour, label=name)
        axes.plot(part["plotted_sizes"], part["as_drawn"][name], color=colour, linestyle=":", linewidth=1)
        axes.plot(part["plotted_sizes"], plotted, color=colour, linestyle="", marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set(
        xlabel="nodes",
        ylabel="tokens per step",
        title="marks: the project page; dotted: by its conventions; solid: trees of that size",
    )
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    axes.legend()
    return _save(figure, place)


def draw_rows(rows: list[dict[str, Any]], place: Path) -> Path:
    """Of every published tree: speedup measured and modelled, and its layers beside ours at its size."""
    figure, (speedups, layers) = pyplot.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    kinds = sorted({(found["row"]["machine"], found["row"]["target"]) for found in rows})
    for number, kind in enumerate(kinds):
        own = [found for found in rows if (found["row"]["machine"], found["row"]["target"]) == kind]
        # Several rows have the same layers: each kind is moved aside a little.
        aside = (number - len(kinds) / 2) * 0.05
        speedups.scatter(
            [found["row"]["speedup"] for found in own],
            [found["published_speedup"] for found in own],
            label=" ".join(kind),
        )
        layers.scatter(
            [found["row"]["depth"] + aside for found in own], [found["layers"] + aside for found in own]
        )
    _equal(speedups, "speedup of the published tree", "measured", "modelled")
    _equal(layers, "layers at the published nodes", "published", "ours")
    speedups.legend()
    return _save(figure, place)


def _equal(axes: Axes, title: str, across: str, up: str) -> None:
    axes.axline((4, 4), slope=1, color="grey", linewidth=0.8)
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)


def _save(figure: pyplot.Figure, place: Path) -> Path:
    figure.savefig(place, dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return place
