"""`make bench-gpu` on the CPU: the same script with tiny models, and what it says where there is no GPU."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from exhaustive import exhaustive
from sequoia_cli.compiler.value import expected_tokens
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.verification import accept

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def bench(*arguments, folder):
    script = [sys.executable, str(BENCHMARKS / "bench_gpu.py"), *arguments]
    return subprocess.run(script, capture_output=True, text=True, check=False, cwd=folder)


@exhaustive
def test_the_tiny_run_writes_all_figures_and_a_profile_that_compile_takes(tmp_path):
    run = bench("--tiny", "-o", "out/gpu.json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout == ""
    result = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert result["schema"] == "sequoia-bench-gpu/1"
    assert {"device", "dtype", "torch"} <= set(result["environment"])
    assert min(result["copy_bytes_per_second"]) > 0
    pair = result["pairs"]["tiny"]
    for way in ("plain", "fast", "graph"):
        assert {size: len(runs) for size, runs in pair["target_seconds"][way].items()} == dict.fromkeys(
            "128", 2
        )
    assert set(pair["attention_seconds"]["sdpa"]) == set("128")
    parts = pair["parts"]
    assert parts["recorded_forwards"]["kept"] == 24 < parts["recorded_forwards"]["sizes"]
    assert parts["recorded_forwards"]["same_logits"]
    places = {name: found["walks_on"] for name, found in parts["verification"].items()}
    assert places == dict.fromkeys(("sequoia", "specinfer", "spectr", "naive"), "device") | {
        "traversal": "host"
    }
    assert set(pair["decoding"]) == {"plain", "compiled", "wide", "wide, sampled"}
    plain, wide = pair["decoding"]["plain"], pair["decoding"]["wide"]
    assert (plain["speedup"], plain["tokens_per_step"], len(wide["parents"])) == (1, 1, 4)
    assert wide["tokens_per_step"] > 1  # random weights accept nothing: that was the coin
    assert "tiny: milliseconds by number of tokens" in run.stderr

    script = "from sequoia_cli.cli.app import main; main()"
    profile = str(tmp_path / "out" / pair["profile"])
    compiled = subprocess.run(
        [sys.executable, "-c", script, "compile", "--quiet", "--profile", profile, "-o", "-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
    assert json.loads(compiled.stdout)["parents"][0] == -1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    run = bench(folder=tmp_path)
    assert (run.returncode, run.stdout) == (1, "")
    assert "no CUDA device here" in run.stderr and "--tiny" in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_coin_accepts_each_rank_with_its_chance(monkeypatch):
    """20,000 steps; a right program is off by more in one of a million seeds."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu.steps import coin

    tree, rates = TokenTree((-1, 0, 0, 1, 1, 2, 3)), ((0.5, 0.2), (0.4, 0.3))
    lengths, right = [], accept.verify_greedy
    with coin(rates, seed=1):
        for _ in range(20_000):
            verdict = accept.verify_greedy(tree, range(7), [random.randrange(9)] * 7)
            assert all(tree.parents[b] == a for a, b in zip(verdict.path, verdict.path[1:], strict=False))
            lengths.append(len(verdict.path))
    assert accept.verify_greedy is right
    found = sum(lengths) / len(lengths)
    # Path lengths lie between 1 and 4: their standard deviation is below 1.5.
    assert abs(found - expected_tokens(tree, rates)) < 5 * 1.5 / 20_000**0.5
    assert abs(found - expected_tokens(tree, ((0.5, 0.1), (0.4, 0.3)))) > 5 * 1.5 / 20_000**0.5
