"""One layer's attention with a tree mask, at once or in two parts, by context and tree size.

The default target's heads, on the CPU unless told otherwise: medians in microseconds on stderr, every sample
as JSON on stdout.

    python benchmarks/bench_attention.py --dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

import torch
from gpu.attention import time_attention

SHAPE = (9, 3, 64)
CONTEXTS, SIZES = (128, 1024, 8192), (1, 8, 64, 512)


@torch.inference_mode()
def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--runs", type=int, default=30)
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    found = {}
    for context in CONTEXTS:
        found[context] = time_attention(SIZES, context, SHAPE, device, dtype, options.runs)
        for size in SIZES:
            whole, parts = (1e6 * statistics.median(found[context][name][size]) for name in ("sdpa", "apart"))
            print(
                f"context {context}, {size} nodes: {whole:.0f} at once, {parts:.0f} in two parts",
                file=sys.stderr,
            )
    json.dump({"dtype": options.dtype, "threads": torch.get_num_threads(), "seconds": found}, sys.stdout)


if __name__ == "__main__":
    main()
