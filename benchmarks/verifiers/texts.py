"""Texts of a target at several samplings side by side, and the trees that steps along them would have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import Noise, draw
from sequoia_cli.engine.grow import FixedShape, Grown, grow
from sequoia_cli.engine.merge import Merged, merge
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.nodes import tree_block
from sequoia_cli.engine.proposals import Draw
from sequoia_cli.engine.step import Stopwatch
from sequoia_cli.engine.target import LAST
from sequoia_cli.engine.warp import Sampling, probabilities


@dataclass(frozen=True)
class Text:
    """What a target wrote after a prompt: the tokens, and all that steps along them need.

    `roots[i]` is the token after which token i was drawn; `prefill` has the hidden states of the prompt
    but its last token, `states` those of the roots. `cache` has the rows of all but the last token.
    """

    prompt: Sequence[int]
    roots: list[int]
    tokens: list[int]
    prefill: tuple[Tensor, ...]
    states: Tensor
    cache: TreeCache


@torch.inference_mode()
def write(
    target: LanguageModel,
    prompt: Sequence[int],
    samplings: Sequence[Sampling],
    length: int,
    room: int,
    eos_ids: Sequence[int],
    generator: torch.Generator,
) -> list[Text]:
    """A text of up to `length` tokens at each sampling; `room` cache rows are left after each of them."""
    ids = torch.tensor(list(prompt), device=target.device)
    capacity, count = len(prompt) + length + room, len(samplings)
    cache = TreeCache(target.config.num_hidden_layers, capacity)
    prefill = target.prefill(ids[:-1], cache, taps=LAST)
    for layer in cache.layers:
        layer.keys, layer.values = (rows.repeat(count, 1, 1, 1) for rows in (layer.keys, layer.values))
    roots, states = [[prompt[-1]] * count], []
    for _ in range(length):
        attended = torch.ones(count, cache.length + 1, dtype=torch.long, device=target.device)
        positions = torch.full((count,), cache.length, device=target.device)
        output = target.forward_rows(
            torch.tensor(roots[-1], device=target.device), positions, cache, attended
        )
        states.append(output.hidden[0])
        uniforms = torch.rand(count, generator=generator, dtype=torch.float64).tolist()
        rows = zip(output.logits, samplings, uniforms, strict=True)
        roots.append([draw(probabilities(row[None], sampling)[0], u) for row, sampling, u in rows])
    texts = []
    for row in range(count):
        tokens = [step[row] for step in roots]
        ends = [place for place, token in enumerate(tokens[1:], 1) if token in eos_ids]
        end = ends[0] if ends else length
        own = torch.stack([step[row] for step in states[:end]])
        texts.append(Text(prompt, tokens[:end], tokens[1 : end + 1], prefill, own, _only(cache, row)))
    return texts


def _only(cache: TreeCache, row: int) -> TreeCache:
    """The cache of one of the texts."""
    own = TreeCache(len(cache.layers), cache.capacity)
    for layer, source in zip(own.layers, cache.layers, strict=True):
        layer.lazy_initialization(source.keys[:1], source.values[:1])
        layer.keys.copy_(source.keys[row : row + 1])
        layer.values.copy_(source.values[row : row + 1])
        layer.length = source.length
    return own


@dataclass(frozen=True)
class Place:
    """Trees drawn in several ways at one place of a text, and the target's logits after all their nodes."""

    merged: Merged
    grown: Sequence[Grown]
    logits: Tensor


@torch.inference_mode()
def places(
    target: LanguageModel,
    draft: Draft,
    text: Text,
    tree: TokenTree,
    sampling: Sampling,
    draws: Sequence[Draw],
    stride: int,
    generator: torch.Generator,
) -> Iterator[Place]:
    """Every `stride`-th place of a text, the last first, with a tree drawn in each of the ways.

    `sampling` is the draft's. The trees are merged, so that the target runs all of them at once; the text's
    cache is used up.
    """
    starts = range(0, len(text.roots), stride)
    by_draw = [_grown(target, draft, text, tree, sampling, way, stride, generator) for way in draws]
    for start, grown in reversed(list(zip(starts, zip(*by_draw, strict=True), strict=True))):
        merged = merge([tree] * len(grown), [one.tokens.tolist() for one in grown])
        block = tree_block(merged.tree, target.device)
        prefix = len(text.prompt) - 1 + start
        text.cache.keep(prefix, [])
        tokens = torch.tensor(merged.tokens, device=target.device)
        masks = target.masks(block, prefix + merged.tree.size) if merged.tree.size > 1 else None
        yield Place(merged, grown, target.forward(tokens, prefix + block.depths, text.cache, masks).logits)


def _grown(
    target: LanguageModel,
    draft: Draft,
    text: Text,
    tree: TokenTree,
    sampling: Sampling,
    way: Draw,
    stride: int,
    generator: torch.Generator,
) -> list[Grown]:
    """The draft's trees along a text, each after what was written before."""
    draft.start(torch.tensor(list(text.prompt), device=target.device), text.cache.capacity, text.prefill)
    found = []

    def drawn(probs: Tensor, counts: Sequence[int], noise: Noise) -> list[Tensor]:
        # Not `way` itself: where the most probable are picked, no probabilities are kept.
        return way(probs, counts, noise)

    for start in range(0, len(text.roots), stride):
        shape = FixedShape(tree)
        noise = torch.rand(shape.start(tree.depth), generator=generator, dtype=torch.float64)
        root, watch = text.roots[start], Stopwatch(target.device)
        size = target.vocabulary
        found.append(grow(draft, shape, tree.size, root, size, target.device, sampling, noise, drawn, watch))
        end = start + stride
        draft.commit((0,), text.tokens[start:end], [text.states[start:end]])
    return found


def room_for(tree: TokenTree, draws: int) -> int:
    """Cache rows that the merged trees may take."""
    return draws * (tree.size - 1) + 1
