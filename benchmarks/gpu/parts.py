"""What the engine does on a device, part by part: recorded forwards, refused recordings, and verification."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpu.clock import samples
from gpu.forwards import star
from gpu.pairs import BenchPair
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import DeviceWalk
from sequoia_cli.engine.fast.capture import Recorder, cuda_graphs
from sequoia_cli.engine.fast.fixed_cache import MOST_FORWARDS
from sequoia_cli.engine.nodes import tree_block
from sequoia_cli.engine.verification.verifiers import VERIFIERS
from sequoia_cli.engine.warp import Sampling


def measure_parts(pair: BenchPair, vocabulary: int, sizes: Sequence[int], runs: int) -> dict[str, Any]:
    """All of them, of a pair that was made fast."""
    device = pair.target.device
    return {
        "recorded_forwards": recorded_forwards(pair),
        "refused_recording": refused_recording(device),
        "verification": {name: time_verifier(name, vocabulary, sizes, device, runs) for name in VERIFIERS},
    }


def recorded_forwards(pair: BenchPair) -> dict[str, Any]:
    """Run more sizes of trees than graphs are kept: how many are, and the memory with so many and with all.

    Each size runs twice, so that it is recorded; the logits of the first are compared before and after.
    """
    target = pair.target
    prompt = torch.tensor(pair.prompt, device=target.device)
    sizes = range(2, MOST_FORWARDS + 6)
    cache = target.new_cache(len(prompt) + sizes[-1])
    target.prefill(prompt, cache)

    def run(size: int) -> Tensor:
        block = tree_block(star(size), target.device)
        tokens = torch.full((size,), 3, dtype=torch.long, device=target.device)
        for _ in range(2):
            logits = target.forward(
                tokens, len(prompt) + block.depths, cache, target.masks(block, cache.capacity)
            ).logits.clone()
            cache.keep(len(prompt), [])
        return logits

    first, used = run(sizes[0]), []
    for size in sizes[1:]:
        run(size)
        used.append(_allocated(target.device))
    kept = len(getattr(getattr(cache, "rows", None), "_forwards", ()))
    return {
        "sizes": len(sizes),
        "kept": kept,
        "bytes_when_full": used[MOST_FORWARDS - 2],
        "bytes_at_the_end": used[-1],
        "same_logits": bool(torch.equal(first, run(sizes[0]))),
    }


def refused_recording(device: torch.device) -> dict[str, Any]:
    """Record what cannot be recorded: whether the stream is the one of before, and work goes on."""
    if device.type != "cuda":
        return {"measured": False}
    before = torch.cuda.current_stream(device)
    values = torch.ones(8, device=device)

    def reads() -> tuple[Tensor, ...]:
        return (values * float(values.sum()),)  # the host waits, which a capture does not allow

    recorder = Recorder(cuda_graphs(device), "a function that reads")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (found,) = recorder(reads)()
    return {
        "measured": True,
        "refusal": recorder.refusal,
        "stream_restored": torch.cuda.current_stream(device) == before,
        "right_after": found.tolist() == [8.0] * 8,
    }


def time_verifier(
    name: str, vocabulary: int, sizes: Sequence[int], device: torch.device, runs: int
) -> dict[str, Any]:
    """Seconds at temperature 0.6 by tree size, and the most memory in float32 tables of nodes x vocabulary.

    A table in float64 would count twice. A verifier that walks on the host has no figures here.
    """
    make_rule = VERIFIERS[name].on_device
    if make_rule is None:
        return {"walks_on": "host"}
    recorder = Recorder(cuda_graphs(device), name) if device.type == "cuda" else None
    seconds: dict[int, list[float]] = {}
    tables: dict[int, float] = {}
    for size in sizes:
        tree = TokenTree((-1, *((node - 1) // 2 for node in range(1, size))))
        parents = sum(1 for children in tree.children if children)
        logits = torch.randn(size, vocabulary, device=device)
        draft = torch.randn(parents, vocabulary, device=device).softmax(-1)
        tokens = torch.randint(vocabulary, (size,), device=device)
        uniforms = torch.rand(size + 1, dtype=torch.float64, device=device)
        walk = DeviceWalk(tree, device, make_rule, Sampling(0.6), recorder)
        inputs = logits, draft, tokens, uniforms
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = _allocated(device)
            walk(*inputs)
            more = torch.cuda.max_memory_allocated(device) - before
            tables[size] = more / (4 * size * vocabulary)
        seconds[size] = samples(lambda walk=walk, inputs=inputs: walk(*inputs), device, runs)
    return {"walks_on": "device", "seconds": seconds, "tables": tables}


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
