"""One forward of the default target: as transformers runs it, made fast, compiled, and with 8-bit weights.

The last way has 8-bit weights too, but calls the kernel for each layer, where the one before runs all as one.

All are held in one process and take turns at every number of tokens, after 128 tokens of context, so that a
slow minute of the machine hits all of them. Medians and minima of 15 turns; a table on stderr, one JSON
document on stdout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.measure.session import Session, open_session

TOKENS = (1, 2, 4, 8, 16, 64)
CONTEXT, TURNS, WARM_UP = 128, 15, 3
WAYS = {
    "transformers": {"forward": "plain"},
    "fast": {"forward": "fast"},
    "compiled": {"forward": "compiled"},
    "compiled, int8": {"forward": "compiled", "quantize": "int8", "dtype": "auto"},
}
SINGLY = "int8 by layers"


def opened(dtype: str, settings: dict[str, str]) -> Session:
    """The default target, run in one of the ways."""
    settings = {"dtype": dtype, **settings}
    return open_session("smollm2", [], device="cpu", trust_remote_code=False, **settings)


@contextmanager
def single_layers(target: LanguageModel) -> Iterator[None]:
    """Let the layers of a target be called one by one."""
    decoder = target.model.get_decoder()
    stacked = decoder.layers
    decoder.layers = nn.ModuleList(stacked.children())
    try:
        yield
    finally:
        decoder.layers = stacked


def seconds(target: LanguageModel, cache: TreeCache, ids: torch.Tensor, tokens: int) -> float:
    """Seconds of one forward, whose rows are forgotten again."""
    positions = torch.arange(CONTEXT, CONTEXT + tokens)
    start = time.perf_counter()
    target.forward(ids[:tokens], positions, cache, None)
    taken = time.perf_counter() - start
    cache.keep(CONTEXT, [])
    return taken


def main() -> None:
    """Time by turns and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    sessions = {way: opened(options.dtype, settings) for way, settings in WAYS.items()}
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, sessions["fast"].target.vocabulary, (CONTEXT,), generator=generator)
    caches = {}
    for way, session in sessions.items():
        caches[way] = session.target.new_cache(CONTEXT + max(TOKENS))
        session.target.prefill(ids, caches[way])
    sessions[SINGLY], caches[SINGLY] = sessions["compiled, int8"], caches["compiled, int8"]
    found: dict[str, dict[int, list[float]]] = {way: {} for way in sessions}
    print("{:>7}".format("tokens") + "".join(f"{way + ', ms':>26}" for way in sessions), file=sys.stderr)
    for tokens in TOKENS:
        for _ in range(WARM_UP + TURNS):
            for way, session in sessions.items():
                with single_layers(session.target) if way == SINGLY else nullcontext():
                    taken = seconds(session.target, caches[way], ids, tokens)
                found[way].setdefault(tokens, []).append(taken)
        kept = {way: found[way][tokens][WARM_UP:] for way in sessions}
        first = statistics.median(kept["transformers"])
        cells = []
        for times in kept.values():
            typical = statistics.median(times)
            cells.append(f"{1000 * typical:.1f} (min {1000 * min(times):.1f}, x{first / typical:.2f})")
        print(f"{tokens:7}" + "".join(f"{cell:>26}" for cell in cells), file=sys.stderr)
    samples = {way: [[tokens, times] for tokens, times in found[way].items()] for way in WAYS}
    print(json.dumps({"environment": sessions["fast"].environment, "context": CONTEXT, "samples": samples}))


if __name__ == "__main__":
    main()
