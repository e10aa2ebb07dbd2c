"""Forwards by number of tokens: the target as loaded, made fast, and replayed from a graph; the draft."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from gpu.clock import samples
from gpu.pairs import BenchPair
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.nodes import tree_block

#: By number of tokens, the seconds of each run.
Timed = dict[int, list[float]]


def star(size: int) -> TokenTree:
    """A root with all other nodes as its children: a mask that no chain has."""
    return TokenTree((-1, *[0] * (size - 1))) if size > 1 else ROOT_ONLY


def time_forwards(
    model: LanguageModel, prompt: Sequence[int], sizes: Sequence[int], runs: int, *, ordinary: bool
) -> Timed:
    """Behind `prompt`; `ordinary` appends to a cache that views grow over, else as `new_cache` has it."""
    capacity = len(prompt) + max(sizes)
    cache = TreeCache(model.config.num_hidden_layers, capacity) if ordinary else model.new_cache(capacity)
    model.prefill(torch.tensor(prompt, device=model.device), cache)
    return {size: samples(once, model.device, runs) for size, once in _forwards(model, cache, sizes)}


def _forwards(model: LanguageModel, cache: TreeCache, sizes: Sequence[int]) -> Iterator[tuple[int, object]]:
    prefix = cache.length
    for size in sizes:
        block = tree_block(star(size), model.device)
        masks = model.masks(block, cache.capacity) if size > 1 else None
        tokens = torch.full((size,), 3, dtype=torch.long, device=model.device)
        positions = prefix + block.depths

        def once(tokens=tokens, positions=positions, masks=masks) -> None:
            model.forward(tokens, positions, cache, masks)
            cache.keep(prefix, [])

        yield size, once


def time_target(pair: BenchPair, sizes: Sequence[int], runs: int) -> dict[str, Timed]:
    """The target as loaded, then made fast, for good: over an ordinary cache, and over fixed buffers."""
    timed = {"plain": time_forwards(pair.target, pair.prompt, sizes, runs, ordinary=True)}
    pair.target.make_fast()
    pair.draft.make_fast()
    if pair.target.device.type != "cuda":  # the same buffers, with nothing to record them by
        pair.target.fix_buffers(lambda function: function)
    timed["fast"] = time_forwards(pair.target, pair.prompt, sizes, runs, ordinary=True)
    timed["graph"] = time_forwards(pair.target, pair.prompt, sizes, runs, ordinary=False)
    return timed


def time_draft(pair: BenchPair, widths: Sequence[int], runs: int) -> Timed | None:
    """Forwards of a draft that is a model of its own."""
    if not isinstance(pair.draft, IndependentDraft):
        return None
    return time_forwards(pair.draft.model, pair.prompt, widths, runs, ordinary=False)
