"""The replays as tables in Markdown, for the terminal and for `results.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from paper import figures

Rows = Sequence[Sequence[str]]


def tables(results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The tables of the parts that are there, each with its title."""
    shown: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
        "scalability": _scalability,
        "demonstration": _demonstration,
        "appendix_e": _appendix_e,
        "rows": _rows,
        "offloading": _offloading,
    }
    for name, part in results.items():
        yield from shown[name](part)


def _table(title: str, columns: Sequence[str], rows: Rows, note: str = "") -> str:
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (columns, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join([f"### {title}", "", *lines, *(["", note] if note else []), ""])


def _scalability(part: dict[str, Any]) -> Iterator[str]:
    names = list(part["plotted"])
    columns = ["nodes", *(f"{name}: {which}" for name in names for which in ("plotted", "replayed"))]
    rows = [
        [
            f"{size}",
            *(f"{part[which][name][place]:.3f}" for name in names for which in ("plotted", "as_drawn")),
        ]
        for place, size in enumerate(part["plotted_sizes"])
    ]
    first = ", ".join(f"{rate:.4f}" for rate in part["rates"][:4])
    yield _table(
        "Scalability as the project page draws it, tokens per step",
        columns,
        rows,
        f"Recovered vector: r_k = (1 + {part['scale']:.4f} k)^-{part['exponent']:.4f}, p = {first}, ...; "
        f"growth per doubling from 16 to 1,024 nodes {part['growth_per_doubling']:.3f} "
        f"(plotted {figures.PLOTTED_DOUBLING}).",
    )
    kinds = list(part["curves"])
    rows = [
        [
            f"{size}",
            *(f"{part[which][kind][place]:.3f}" for which in ("curves", "demo_curves") for kind in kinds),
        ]
        for place, size in enumerate(part["sizes"])
    ]
    yield _table(
        "The same of trees of exactly these sizes, and under the released demonstration's vector",
        ["nodes", *kinds, *(f"demo: {kind}" for kind in kinds)],
        rows,
        f"Sequoia over independent chains at 512 nodes: {part['gain_at_512']:.2f} times.",
    )


def _demonstration(part: dict[str, Any]) -> Iterator[str]:
    size, depth, seconds, speedup = figures.DEMO_BEST
    rows = [
        ["published", f"{size}", f"{depth}", f"{seconds:.3f}", f"{speedup:.3f}"],
        [
            "replayed",
            f"{part['size']}",
            f"{part['depth']}",
            f"{part['seconds_per_token']:.4f}",
            f"{part['speedup']:.4f}",
        ],
    ]
    yield _table(
        "The released demonstration's choice", ["", "nodes", "layers", "seconds per token", "speedup"], rows
    )


def _appendix_e(part: dict[str, Any]) -> Iterator[str]:
    yield _table(
        "Appendix E's vector: best tokens per step by nodes",
        ["nodes", *(f"{size}" for size, _ in part["values"]), "768 in 18 layers"],
        [["G", *(f"{value:.4f}" for _, value in part["values"]), f"{part['768_within_18_layers']:.3f}"]],
    )
    rows = [
        [name, f"{figures.APPENDIX_E_BOUNDS[name]}", f"{value:.3f}"] for name, value in part["bounds"].items()
    ]
    rows += [
        [f"r_{count}", f"{figures.APPENDIX_E_ALL_REJECTED[count]:.4f}", f"{value:.4f}"]
        for count, value in part["all_rejected"]
    ]
    yield _table("Its bounds for other shapes, and r_k", ["", "published", "replayed"], rows)


def _rows(part: dict[str, Any]) -> Iterator[str]:
    rows = [
        [
            found["name"],
            f"{found['row']['size']}, {found['row']['depth']}",
            f"{found['row']['tokens']:.2f}",
            f"{found['first_rates'][0]:.3f}, {found['first_rates'][1]:.3f}",
            f"{round(found['same'] / found['row']['tokens'] - 1, 5) + 0.0:.2%}",  # no -0.00
            f"{found['measured_cost']:.2f}, {found['cost']:.2f}",
            f"{found['row']['speedup']:.2f}, {found['published_speedup']:.2f}",
            f"{found['layers']}",
            f"{found['listed'][0]}, {found['listed'][1]}",
            f"{found['size']}, {found['depth']}",
            f"{found['speedup']:.2f}",
            f"{found['speedup'] / found['published_speedup'] - 1:+.1%}",
        ]
        for found in part["rows"]
    ]
    columns = (
        *("row", "published nodes, layers", "tokens", "fitted p_1, p_2", "ours, same nodes and layers"),
        *(
            "step in plain steps: measured, modelled",
            "its speedup: measured, modelled",
            "our layers at its nodes",
            "ours of power-of-two nodes",
        ),
        *("our nodes, layers", "our speedup, modelled", "gain, modelled"),
    )
    yield _table("Trees of Tables 1, 3 and 4 beside ours", columns, rows)
    rows = [
        [
            found["name"],
            f"{found['row']['specinfer']:.2f}",
            f"{found['specinfer']:.2f}",
            f"{found['specinfer'] / found['row']['specinfer'] - 1:+.1%}",
        ]
        for found in part["rows"]
    ]
    yield _table(
        "SpecInfer's 5x8 tree under the rates fitted to Sequoia's: tokens per step",
        ["row", "measured", "predicted", "difference"],
        rows,
    )
    shares = [
        [name, f"{len(kept)}", f"{min(kept.values()):.2%}", f"{mean(kept.values()):.2%}"]
        for name, kept in part["kept_shares"].items()
    ]
    yield _table(
        "Published trees under vectors not their own: share of the tokens of ours, same nodes and layers",
        ["vector", "trees", "least", "mean"],
        shares,
    )


def _offloading(part: dict[str, Any]) -> Iterator[str]:
    rows = [
        [
            row["name"] + ", published",
            f"{row['size']}, {row['depth']}",
            f"{row['tokens']:.2f}",
            f"{row['measured_cost']:.3f}",
            f"{row['speedup']:.2f}",
        ]
        for row in part["rows"]
    ]
    for found in part["choices"]:
        way = "transfer beside compute" if found["overlapped"] else "transfer, then compute"
        rows.append(
            [
                f"modelled, {way}: published size",
                "768, 18",
                f"{found['published_tokens']:.2f}",
                f"{found['published_cost']:.3f}",
                f"{found['published_speedup']:.2f}",
            ]
        )
        rows.append(
            [
                f"modelled, {way}: our choice",
                f"{found['size']}, {found['depth']}",
                f"{found['tokens']:.2f}",
                f"{found['tokens'] / found['speedup']:.3f}",
                f"{found['speedup']:.2f}",
            ]
        )
    yield _table(
        "Offloading (Table 2)", ["", "nodes, layers", "tokens", "step in plain steps", "speedup"], rows
    )
