"""Rules for the tree of each step under one cost curve: the best tree for all steps, EAGLE-2, OPT-Tree,
best first with a fixed budget, and ours. With published vectors, or along texts of the default pair:
greedy ones, or sampled ones with the `naive` verifier, for which all of these rules are lossless.

Seconds are those of a profile, not of a clock, so that all rules pay the same for the same. The published
rules get the settings that are fastest on other texts of the same kind; ours has constants set by hand, and
no setting for a case. `--figure` draws each rule's speed over the best tree, by category of prompts.

    python benchmarks/bench_adaptive.py
    python benchmarks/bench_adaptive.py --pair --prompts 48 --rates rates.yaml --figure adaptive.png
    python benchmarks/bench_adaptive.py --pair --temperature 0.6 --dataset question.jsonl --rates rates.yaml
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from adaptive.rules import BestFirst, Eagle2, OptTree
from adaptive.simulated import SimulatedText
from adaptive.steps import Text, Totals, run

from sequoia_cli.compiler.adaptive import adaptive_plan
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.calibration import Calibration, bin_of
from sequoia_cli.core.costs import StepCosts
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.core.tree import ROOT_ONLY
from sequoia_cli.engine.adaptive import shapes_of
from sequoia_cli.engine.grow import FixedShape, Shape

LIMITS = Limits(budget=64, max_depth=12, max_branch=16)
RANKS = 10
BUDGETS = (6, 8, 12, 24)

Make = Callable[[], Shape]


def rules(
    profile: HardwareProfile, rows: list[list[float]], calibration: Calibration
) -> dict[str, list[Make]]:
    """Makers of shapes by rule, one for each setting that is tried."""
    choice = choose(profile, rows, LIMITS)
    plan = adaptive_plan(choice.plan({}, {}), choice, rows, LIMITS, calibration)
    make = shapes_of(plan)
    least = profile.costs.draft.seconds(1) / profile.costs.seconds(1)
    tree = choice.chosen.tree
    depths = (2, 3, 5)

    def several(rule: Callable[[int, int], Shape]) -> list[Make]:
        return [lambda n=n, d=d: rule(n, d) for n in BUDGETS for d in depths]

    return {
        "plain": [lambda: FixedShape(ROOT_ONLY)],
        "one tree": [lambda: FixedShape(tree)],
        "EAGLE-2": several(lambda n, d: Eagle2(n, RANKS, d)),
        "OPT-Tree": [
            lambda n=n, delta=delta: OptTree(n, RANKS, LIMITS.max_depth, delta)
            for n in BUDGETS
            for delta in (least, 2 * least)
        ],
        "best first": [lambda n=n: BestFirst(n, RANKS, LIMITS.max_depth) for n in BUDGETS],
        "ours": [lambda: make(plan.tree)],
    }


def compare(
    tuning: Callable[[], Iterable[Text]],
    texts: Callable[[], Iterable[tuple[str, Text]]],
    makers: Mapping[str, list[Make]],
    costs: StepCosts,
) -> dict[str, dict[str, dict[str, float]]]:
    """Each rule at its fastest setting on the texts for `tuning`: on the others by category, and on all."""

    def decoded(make: Make, some: Iterable[tuple[str, Text]]) -> dict[str, Totals]:
        totals = {"all": Totals()}
        for category, text in some:
            found = run(text, make(), LIMITS.max_depth, costs)
            for name in {category, "all"}:
                totals.setdefault(name, Totals()).add(found)
        return totals

    def seconds_per_token(make: Make) -> float:
        total = decoded(make, (("all", text) for text in tuning()))["all"]
        return total.seconds / total.tokens

    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, settings in makers.items():
        best = settings[0] if len(settings) == 1 else min(settings, key=seconds_per_token)
        for category, total in decoded(best, texts()).items():
            found.setdefault(category, {})[name] = {
                "tokens_per_step": total.tokens / total.steps,
                "nodes_per_step": total.nodes / total.steps,
                "ms_per_step": 1000 * total.seconds / total.steps,
                "ms_per_token": 1000 * total.seconds / total.tokens,
            }
    for rows in found.values():
        for row in rows.values():
            row["speed over one tree"] = rows["one tree"]["ms_per_token"] / row["ms_per_token"]
    for category, rows in found.items():
        cells = ", ".join(f"{name} {row['speed over one tree']:.3f}" for name, row in rows.items())
        print(f"{category}: {cells}", file=sys.stderr)
    for name, row in found["all"].items():
        print(name, {key: round(value, 3) for key, value in row.items()}, file=sys.stderr)
    return found


def calibrated(make: Callable[[int], SimulatedText], trials: int) -> Calibration:
    """What `sequoia acceptance` would count of simulated texts, at one depth."""
    cells: dict[tuple[int, int, int], tuple[float, float]] = {}
    text = make(10**6)
    for _ in range(trials):
        (row,), (winner,) = text.extend([(-1, 0)])
        text.commit(())
        for rank, given in enumerate(row[: LIMITS.max_branch]):
            key = 0, rank, bin_of(given)
            before = cells.get(key, (0.0, 0.0))
            cells[key] = before[0] + 1, before[1] + (winner == rank)
    return Calibration.of(cells)


def simulated(profile: HardwareProfile, vector: list[float], tokens: int, spread: float, sure: float):
    """All rules over texts simulated with a vector."""

    def make(seed: int) -> SimulatedText:
        return SimulatedText(vector, tokens, seed, spread, sure)

    makers = rules(profile, [vector[: LIMITS.max_branch]], calibrated(make, 4000))
    return compare(
        lambda: [make(seed) for seed in range(2)],
        lambda: [("all", make(seed)) for seed in range(100, 108)],
        makers,
        profile.costs,
    )


def of_pair(profile: HardwareProfile, rates: AcceptanceRates, options: argparse.Namespace):
    """All rules over the default pair's texts: of a dataset, or of built-in prompts that rates do not use."""
    from adaptive.replayed import ReplayedText, Written
    from default_pair import open_default_pair

    from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING, load_prompts

    session = open_default_pair(quantize=options.quantize)
    (draft,) = session.drafts
    rows = load_prompts(options.dataset, skip=None if options.dataset else BUILTIN_FOR_COMPILING).prompts
    rows = rows[:: max(1, len(rows) // options.prompts)][: options.prompts]
    others = load_prompts(None, limit=4).prompts
    written, tuned = (
        [
            Written(
                *(session.target, draft, session.encode(prompt, raw=False), options.tokens),
                *(session.eos_ids, options.temperature, prompt.category),
            )
            for prompt in some
        ]
        for some in (rows, others)
    )
    calibration = rates.calibration()
    assert calibration is not None, "rates with counts by probability are needed"
    makers = rules(profile, [list(row) for row in rates.p], calibration)
    return compare(
        lambda: (ReplayedText(draft, each, 16) for each in tuned),
        lambda: ((each.category or "all", ReplayedText(draft, each, 16)) for each in written),
        makers,
        profile.costs,
    )


def draw(found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]], path: Path) -> None:
    """Speed over the best tree: a row of marks for each rule, by setting and category. Needs matplotlib."""
    from matplotlib.figure import Figure

    labels = [
        (setting, category)
        for setting, by_category in found.items()
        for category in sorted(by_category, key=lambda name: (name == "all", name))
    ]
    figure = Figure(figsize=(7, 1.5 + 0.28 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for mark, rule in zip("o^sDx", ("plain", "EAGLE-2", "OPT-Tree", "best first", "ours"), strict=True):
        speeds = [found[setting][category][rule]["speed over one tree"] for setting, category in labels]
        axes.plot(speeds, range(len(labels)), mark, label=rule, fillstyle="none")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(
        range(len(labels)),
        [name if len(found) == 1 else setting if name == "all" else name for setting, name in labels],
    )
    axes.set_xlabel("speed over the best tree for all steps")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.0 + 1.5 / len(labels)), ncols=5, frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run and print one JSON document; the tables as they come go to stderr."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", action="store_true", help="the default pair, not a simulation")
    parser.add_argument("--profile", default=str(shipped("profiles", "smollm2_cpu.yaml")))
    parser.add_argument("--rates", help="acceptance rates with counts by probability, for --pair")
    parser.add_argument("--dataset", help="prompts for --pair, in place of the built-in ones")
    parser.add_argument("--prompts", type=int, default=8, help="at most so many, spread over all")
    parser.add_argument("--temperature", type=float, default=0.0, help="for --pair")
    parser.add_argument("--quantize", default="none", help="for --pair: none, int8 or int4")
    parser.add_argument("--tokens", type=int, default=300, help="of each text")
    parser.add_argument("--figure", type=Path, help="where to draw the speeds, as .png or .svg")
    options = parser.parse_args()
    profile = HardwareProfile.from_document(read_document(options.profile))
    if options.pair:
        rates = AcceptanceRates.from_document(read_document(options.rates))
        found = {"pair": of_pair(profile, rates, options)}
    else:
        data = json.loads(Path("tests/data/published_rates.json").read_text())
        found = {}
        for name, vector in data["vectors"].items():
            for spread, sure in ((1.0, 1.0), (4.0, 1.0), (1.0, 2.0)):
                what = f"{name}, spread {spread:g}, sure {sure:g}"
                print(what, file=sys.stderr)
                found[what] = simulated(profile, vector["p"], options.tokens, spread, sure)
    if options.figure:
        draw(found, options.figure)
    print(json.dumps({"profile": options.profile, "results": found}, indent=1))


if __name__ == "__main__":
    main()
