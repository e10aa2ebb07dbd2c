"""What a GPU gives: forwards eager and from graphs, attention, whole steps, and the gain of a compiled tree.

Needs no network. Weights are random in the shape of Llama-2-7B and its 68M draft, with acceptance by a coin
of published rates; the default pair follows where its weights are in the cache. A table goes to stderr; JSON
with all samples, and a profile of each pair for `sequoia compile --profile`, are written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from gpu.attention import time_attention
from gpu.clock import copy_samples
from gpu.forwards import time_draft, time_target
from gpu.pairs import BenchPair, default_pair, random_pair
from gpu.parts import measure_parts
from gpu.steps import compare, measure_profile

from sequoia_cli import __version__
from sequoia_cli.core.artifact import render
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.measure.session import device_name, dtype_name, packages

SCHEMA = "sequoia-bench-gpu/1"
GIGA = 1e9


def main() -> int:
    """Measure everything; 1 where there is no GPU to measure."""
    options = _options()
    if not torch.cuda.is_available() and not options.tiny:
        print("no CUDA device here; --tiny runs the same on the CPU, to see that it works", file=sys.stderr)
        return 1
    options.output.parent.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    scale = TINY if options.tiny else FULL
    name = "tiny" if options.tiny else "llama-2-7b-68m"
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": {"device": device_name(device), "dtype": dtype_name(dtype), **packages()},
        "copy_bytes_per_second": copy_samples(device, scale["copy_bytes"], scale["runs"]),
        "pairs": {},
    }
    copied = statistics.median(result["copy_bytes_per_second"])
    print(f"{device_name(device)}: copies at {copied / GIGA:,.0f} GB/s", file=sys.stderr)
    makers = [lambda: random_pair(name, device, dtype, scale["context"], tiny=options.tiny)]
    if not options.tiny:
        makers.append(lambda: default_pair(device, dtype, scale["context"]))
    for make in makers:
        pair = make()
        if pair is None:
            print("the default pair is not in the cache, and was left out", file=sys.stderr)
            continue
        result["pairs"][pair.name] = measured = _measure(pair, device, dtype, scale, options.output.parent)
        _show(pair, measured, copied)
        del pair  # its memory is for the next
    write_atomically(options.output, json.dumps(result) + "\n")
    print(f"wrote {options.output}", file=sys.stderr)
    return 0


#: What is measured, and the same in seconds on a CPU.
FULL = {
    "context": 128,
    "copy_bytes": 1 << 30,
    "runs": 20,
    "sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
    "profile_sizes": [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512],
    "verified_sizes": [8, 128, 1024],
    "rounds": 5,
    "budget": 512,
    "tokens": 256,
    "texts": 4,
}
TINY = {
    "context": 24,
    "copy_bytes": 1 << 20,
    "runs": 2,
    "sizes": [1, 2, 8],
    "profile_sizes": [1, 2, 8],
    "verified_sizes": [8],
    "rounds": 1,
    "budget": 8,
    "tokens": 24,
    "texts": 1,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="two layers of width 32, also on a CPU")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench_gpu.json"), help="where JSON goes")
    return parser.parse_args()


def _measure(
    pair: BenchPair, device: torch.device, dtype: torch.dtype, scale: dict[str, Any], folder: Path
) -> dict[str, Any]:
    config, runs, sizes = pair.target.config, scale["runs"], scale["sizes"]
    heads = config.num_attention_heads
    shape = heads, config.num_key_value_heads, config.hidden_size // heads
    attention = time_attention(sizes, scale["context"], shape, device, dtype, runs)
    target = time_target(pair, sizes, runs)
    draft = time_draft(pair, sizes, runs)
    conditions = {
        "target": pair.name,
        "dtype": dtype_name(dtype),
        "forward": "fast",
        "device": device_name(device),
        "context": scale["context"],
        "temperature": 0.0,
    }
    record = {"command": "benchmarks/bench_gpu.py", "version": __version__, "packages": packages()}
    parts = measure_parts(pair, config.vocab_size, scale["verified_sizes"], runs)
    profile = measure_profile(pair, scale["profile_sizes"], scale["rounds"], conditions, record)
    place = folder / f"bench_gpu_{pair.name}.yaml"
    write_atomically(place, render(profile.to_dict(), "yaml"))
    amounts = scale["budget"], scale["tokens"], scale["texts"]
    return {
        "weight_bytes": pair.weight_bytes,
        "refusal": pair.target.recorder.refusal if pair.target.recorder else "no fixed buffers",
        "target_seconds": target,
        "draft_seconds": draft,
        "attention_seconds": attention,
        "parts": parts,
        "profile": place.name,
        "acceptance": "coin" if pair.coin else "the pair's own",
        "decoding": compare(pair, profile, *amounts, target["graph"], draft),
    }


def _show(pair: BenchPair, measured: dict[str, Any], copied: float) -> None:
    target, attention = measured["target_seconds"], measured["attention_seconds"]
    print(f"\n{pair.name}: milliseconds by number of tokens, medians", file=sys.stderr)
    columns = [*target, *attention]
    print(" tokens" + "".join(f"{name:>10}" for name in columns), file=sys.stderr)
    for size in target["plain"]:
        cells = [(target | attention)[name].get(size) for name in columns]
        shown = [
            f"{statistics.median(c) * 1e3:10.3f}" if isinstance(c, list) else f"{'-':>10}" for c in cells
        ]
        print(f"{size:7}" + "".join(shown), file=sys.stderr)
    for name, timed in target.items():
        reached = measured["weight_bytes"] / statistics.median(timed[1])
        share = f"{reached / copied:.0%} of a copy's"
        print(f"{name}: weights at {reached / GIGA:,.0f} GB/s, {share}", file=sys.stderr)
    _show_parts(measured["parts"])
    for name, found in measured["decoding"].items():
        beside = found["beside_forwards"]
        print(
            f"{name}, {len(found['parents'])} nodes: {found['tokens_per_step']:.2f} tokens a step "
            f"({found['expected_tokens_per_step']:.2f} expected), "
            f"{found['seconds_per_step'] * 1e3:.2f} ms "
            f"({found['predicted_seconds_per_step'] * 1e3:.2f} predicted), speedup {found['speedup']:.2f}"
            + (f", {beside:.0%} beside forwards" if beside is not None else ""),
            file=sys.stderr,
        )


def _show_parts(parts: dict[str, Any]) -> None:
    forwards, refused = parts["recorded_forwards"], parts["refused_recording"]
    more = (forwards["bytes_at_the_end"] - forwards["bytes_when_full"]) / 1e6
    same = "the same" if forwards["same_logits"] else "OTHER"
    print(
        f"graphs: {forwards['kept']} kept of {forwards['sizes']} sizes, {more:.1f} MB more at the end than "
        f"when so many were kept; the first, recorded anew, gives {same} logits",
        file=sys.stderr,
    )
    if refused["measured"]:
        stream = "restored" if refused["stream_restored"] else "NOT restored"
        right = "right" if refused["right_after"] else "WRONG"
        print(f"a refused recording: stream {stream}, result {right} ({refused['refusal']})", file=sys.stderr)
    for name, found in parts["verification"].items():
        cells = [
            f"{size} nodes {statistics.median(runs) * 1e6:.0f} us"
            + (f" and {found['tables'][size]:.2f} tables" if found["tables"] else "")
            for size, runs in found.get("seconds", {}).items()
        ]
        print(f"{name} walks on the {found['walks_on']}: {', '.join(cells)}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
