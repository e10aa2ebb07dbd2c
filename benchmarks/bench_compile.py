"""How long compiling takes: the best-valued trees, the choice by cost, its confidence, the whole process.

A human table goes to stderr; the last line on stdout is one JSON document with the same figures, in seconds.
The aims are stated for 2 CPU cores with nothing else running.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.choose import Limits, choose
from sequoia_cli.compiler.confidence import Rechoose, assess
from sequoia_cli.compiler.estimate import Estimate
from sequoia_cli.compiler.result import Confidence
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.rates import AcceptanceRates

RUNS = 7


def seconds(work: Callable[[], object]) -> list[float]:
    """Seconds of each of `RUNS` runs, after one that does not count."""
    work()
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken


def trusted(profile: HardwareProfile, rates: AcceptanceRates, limits: Limits) -> Confidence:
    """A choice with its intervals."""
    estimate = Estimate.of(rates)
    choice = choose(profile, estimate.rows, limits)
    return assess(choice, estimate, Rechoose(profile, limits))


def compile_process(directory: str) -> None:
    """`sequoia compile --budget 128` in a fresh process, imports included, on the shipped inputs."""
    script = "from sequoia_cli.cli.app import main; main()"
    subprocess.run(
        [sys.executable, "-c", script, "compile", "--budget", "128", "--quiet", "-o", "-"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={"SEQUOIA_CACHE": directory, "PATH": ""},
    )


def main() -> None:
    """Time everything and report it."""
    rates = AcceptanceRates.from_document(read_document(shipped("profiles", "published_demo_rates.yaml"))).p
    profile = HardwareProfile.from_document(read_document(shipped("profiles", "a100.yaml")))
    vector = np.array(rates[0])
    descending = [sorted(rates[0], reverse=True)]
    steep = replace(profile, draft_seconds=((1, 0.0005), (16, 0.001), (1024, 0.1)))
    counts, cpu = (
        kind.from_document(read_document(shipped("profiles", name)))
        for kind, name in (
            (AcceptanceRates, "smollm2_cpu_rates.yaml"),
            (HardwareProfile, "smollm2_cpu.yaml"),
        )
    )
    by_depth = [(vector * (1 - 0.01 * depth)).tolist() for depth in range(12)]
    with tempfile.TemporaryDirectory() as empty:
        work: list[tuple[str, float | None, Callable[[], object]]] = [
            ("search 128 x 12 x 32", 0.1, lambda: BestTrees(rates, 128, 12, 32)),
            ("search 128 x 12 x 32, a row per depth", None, lambda: BestTrees(by_depth, 128, 12, 32)),
            ("search 1024 x 32 x 32", 2.0, lambda: BestTrees(rates, 1024, 32, 32)),
            ("search 4096 x 32 x 32, sorted", 1.0, lambda: BestTrees(descending, 4096, 32, 32)),
            ("choice within 128", None, lambda: choose(profile, rates, Limits(128))),
            ("choice within 1024", None, lambda: choose(profile, rates, Limits(1024))),
            ("choice within 128, costly levels", None, lambda: choose(steep, descending, Limits(128))),
            ("choice within 1024, costly levels", None, lambda: choose(steep, descending, Limits(1024))),
            ("choice within 32 and its confidence", None, lambda: trusted(cpu, counts, Limits(32))),
            ("process, compile --budget 128", 0.6, lambda: compile_process(empty)),
        ]
        rows = []
        for name, aim, run in work:
            taken = seconds(run)
            rows.append({"name": name, "aim": aim, "median": statistics.median(taken), "runs": taken})
            shown = "" if aim is None else f"  (aim {aim:g})"
            print(f"{name:40} {rows[-1]['median']:8.4f} s{shown}", file=sys.stderr)
    machine = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    print(json.dumps({"benchmark": Path(__file__).stem, "environment": machine, "results": rows}))


if __name__ == "__main__":
    main()
