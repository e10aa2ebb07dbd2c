"""Rules for the tree of each step under one cost curve: the best tree for all steps, EAGLE-2, OPT-Tree,
best-first with a fixed budget, and ours. Greedy: simulated with a published vector, or of a real pair.

Seconds are those of a profile, not of a clock, so that all rules pay the same for the same. The published
rules get the settings that are fastest on other texts of the same kind; ours has constants set by hand, and
no setting for a case.

    python benchmarks/bench_adaptive.py
    python benchmarks/bench_adaptive.py --pair --prompts 8 --rates rates.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
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
    tuning: Callable[[], list[Text]],
    texts: Callable[[], list[Text]],
    makers: Mapping[str, list[Make]],
    costs: StepCosts,
) -> dict[str, dict[str, float]]:
    """Each rule, at the setting that is fastest on the texts for `tuning`, on the others."""

    def decoded(make: Make, some: Callable[[], list[Text]]) -> Totals:
        total = Totals()
        for text in some():
            total.add(run(text, make(), LIMITS.max_depth, costs))
        return total

    def seconds_per_token(make: Make) -> float:
        total = decoded(make, tuning)
        return total.seconds / total.tokens

    found = {}
    for name, settings in makers.items():
        best = decoded(settings[0] if len(settings) == 1 else min(settings, key=seconds_per_token), texts)
        found[name] = {
            "tokens_per_step": best.tokens / best.steps,
            "nodes_per_step": best.nodes / best.steps,
            "ms_per_step": 1000 * best.seconds / best.steps,
            "ms_per_token": 1000 * best.seconds / best.tokens,
        }
        print(name, {key: round(value, 3) for key, value in found[name].items()}, file=sys.stderr)
    for row in found.values():
        row["speed over one tree"] = found["one tree"]["ms_per_token"] / row["ms_per_token"]
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
        lambda: [make(seed) for seed in range(100, 108)],
        makers,
        profile.costs,
    )


def of_pair(profile: HardwareProfile, rates: AcceptanceRates, prompts: int, tokens: int):
    """All rules over the default pair's greedy texts, of built-in prompts that come after those for rates."""
    from adaptive.replayed import ReplayedText, Written

    from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING, load_prompts
    from sequoia_cli.measure.session import open_session

    session = open_session(
        "smollm2", ["smollm2-draft"], device="cpu", dtype="auto", trust_remote_code=False, forward="fast"
    )
    (draft,) = session.drafts
    rows = load_prompts(None, skip=BUILTIN_FOR_COMPILING).prompts[:: max(1, 48 // prompts)][:prompts]
    others = load_prompts(None, limit=4).prompts
    written, tuned = (
        [
            Written(session.target, draft, session.encode(prompt, raw=False), tokens, session.eos_ids)
            for prompt in some
        ]
        for some in (rows, others)
    )
    calibration = rates.calibration()
    assert calibration is not None, "rates with counts by probability are needed"
    makers = rules(profile, [list(row) for row in rates.p], calibration)
    return compare(
        lambda: [ReplayedText(draft, each, 16) for each in tuned],
        lambda: [ReplayedText(draft, each, 16) for each in written],
        makers,
        profile.costs,
    )


def main() -> None:
    """Run and print one JSON document; the tables as they come go to stderr."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pair", action="store_true", help="the default pair, not a simulation")
    parser.add_argument("--profile", default=str(shipped("profiles", "smollm2_cpu.yaml")))
    parser.add_argument("--rates", help="acceptance rates with counts by probability, for --pair")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    options = parser.parse_args()
    profile = HardwareProfile.from_document(read_document(options.profile))
    if options.pair:
        rates = AcceptanceRates.from_document(read_document(options.rates))
        found = {"pair": of_pair(profile, rates, options.prompts, options.tokens)}
    else:
        data = json.loads(Path("tests/data/published_rates.json").read_text())
        found = {}
        for name, vector in data["vectors"].items():
            for spread, sure in ((1.0, 1.0), (4.0, 1.0), (1.0, 2.0)):
                what = f"{name}, spread {spread:g}, sure {sure:g}"
                print(what, file=sys.stderr)
                found[what] = simulated(profile, vector["p"], options.tokens, spread, sure)
    print(json.dumps({"profile": options.profile, "results": found}, indent=1))


if __name__ == "__main__":
    main()
