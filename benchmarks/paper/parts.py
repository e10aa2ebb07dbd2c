"""The replays as plain values, one function for each claim of the papers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from paper import choices, figures, known, rates, scalability


def replay_scalability() -> dict[str, Any]:
    """The project page's plot under the recovered vector, as drawn there and for trees of each size."""
    scale, exponent = rates.fitted_to_plot()
    recovered = rates.power_law(scale, exponent, scalability.RANKS)
    ours = scalability.curves(recovered)
    doublings = scalability.growth_per_doubling(ours["sequoia"])
    middle = slice(scalability.SIZES.index(16), scalability.SIZES.index(1024))
    at_512 = scalability.SIZES.index(512)
    return {
        "scale": scale,
        "exponent": exponent,
        "rates": recovered,
        "sizes": scalability.SIZES,
        "curves": ours,
        "demo_curves": scalability.curves(known.demo_rates()),
        "plotted_sizes": figures.PLOTTED_SIZES,
        "plotted": figures.PLOTTED,
        "as_drawn": scalability.as_drawn(recovered, figures.PLOTTED_SIZES),
        "growth_per_doubling": sum(doublings[middle]) / len(doublings[middle]),
        "gain_at_512": ours["sequoia"][at_512] / ours["independent chains"][at_512],
    }


def replay_demonstration() -> dict[str, Any]:
    """The released demonstration's choice."""
    return dict(zip(("size", "depth", "seconds_per_token", "speedup"), known.demonstration(), strict=True))


def replay_appendix_e() -> dict[str, Any]:
    """G(n), bounds and r_k of the vector that Appendix E prints."""
    vector = figures.published_rates("llama3_70b_from_8b_cnn")
    return {
        "values": list(zip(known.APPENDIX_E_SIZES, known.values(vector), strict=True)),
        "768_within_18_layers": known.value_within_layers(vector),
        "bounds": known.bounds(vector),
        "all_rejected": list(known.all_rejected(vector, tuple(figures.APPENDIX_E_ALL_REJECTED)).items()),
    }


def replay_rows() -> dict[str, Any]:
    """The rows of Tables 1, 3 and 4, and the trees under the two published vectors."""
    rows = [
        asdict(found) | {"name": found.row.name, "measured_cost": found.row.cost}
        for found in choices.compare_rows()
    ]
    return {"rows": rows, "kept_shares": choices.kept_shares()}


def replay_offloading() -> dict[str, Any]:
    """Table 2's machine with Appendix E's vector: the same models, other texts."""
    vector = figures.published_rates("llama3_70b_from_8b_cnn")
    found = [choices.choose_offloaded(vector, overlapped=overlapped) for overlapped in (False, True)]
    return {
        "choices": [asdict(choice) for choice in found],
        "rows": [
            asdict(row) | {"name": row.name, "measured_cost": row.cost} for row in figures.OFFLOADED_ROWS
        ],
    }


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "scalability": replay_scalability,
    "demonstration": replay_demonstration,
    "appendix_e": replay_appendix_e,
    "rows": replay_rows,
    "offloading": replay_offloading,
}
