"""Training a feature draft: several passes, each on the predictions of the one before."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from sequoia_cli.distill.batches import Batch
from sequoia_cli.engine.feature_model import FeatureModel


class FeatureStudent:
    """A `FeatureModel` in training.

    Pass 0 reads the target's states. Pass j reads, before each token, the state that pass j - 1 predicted
    there, as the draft will j levels below a root; a token of it sees the rows of pass 0 up to its root, and
    the rows of the passes between on the way down (training-time test: EAGLE-3, arXiv 2503.01840).
    """

    def __init__(self, model: FeatureModel, embedding: nn.Module, passes: int) -> None:
        self.model, self.embedding, self.passes = model, embedding, passes

    def predictions(self, batch: Batch, passes: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Of each pass, the states where a token of an answer follows, from the pass's own number on."""
        dtype = self.model.join.weight.dtype  # may be wider than the target's
        with torch.no_grad():
            embedded = self.embedding(batch.tokens).to(dtype)
        before = _shifted(batch.hidden.to(dtype))
        rotation = self.model.rotation(torch.arange(batch.tokens.shape[1], device=embedded.device), dtype)
        past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.model.layers]
        for number in range(self.passes if passes is None else passes):

            def run_layer(index: int, layer: nn.Module, states: Tensor) -> Tensor:
                def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                    past[index].append((keys, values))
                    return _attend(queries, past[index])

                return layer(states, rotation, attend)

            states = self.model(before, embedded, run_layer)
            places = batch.answer.clone()
            places[:, :number] = False
            yield states[places], places
            before = _shifted(states)


def _shifted(states: Tensor) -> Tensor:
    """What stood before each token: the states one to the right, zeros before the first."""
    return torch.cat((torch.zeros_like(states[:, :1]), states[:, :-1]), 1)


def _attend(queries: Tensor, passes: list[tuple[Tensor, Tensor]]) -> Tensor:
    """What pass j takes home, j + 1 being the number of `passes`: its token at t stands j below its root.

    It sees row t - j and those before it of pass 0, row t - j + i of pass i, and itself.
    """
    keys, values = passes[0]
    group = queries.shape[1] // keys.shape[1]
    if len(passes) == 1:
        return scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=group > 1)
    below, length = len(passes) - 1, queries.shape[2]
    # Scaled before the products, which might leave the range of a narrow dtype.
    queries = queries * queries.shape[-1] ** -0.5
    queries = queries.unflatten(1, (-1, group))  # (texts, kv heads, group, tokens, head width)
    seen = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril_(-below)
    scores = torch.matmul(queries, keys[:, :, None].transpose(-1, -2))
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    own = [
        (_later(keys, below - number), _later(values, below - number))
        for number, (keys, values) in enumerate(passes)
        if number
    ]
    scores = torch.cat((scores, *((queries * k[:, :, None]).sum(-1, keepdim=True) for k, _ in own)), -1)
    weights = scores.softmax(-1)
    taken = torch.matmul(weights[..., :length], values[:, :, None])
    for number, (_, value) in enumerate(own):
        taken = taken + weights[..., length + number, None] * value[:, :, None]
    return taken.flatten(1, 2)


def _later(rows: Tensor, by: int) -> Tensor:
    """Rows moved `by` places to the right: at t what stood at t - by (zeros before, which nothing uses)."""
    if by == 0:
        return rows
    return torch.cat((torch.zeros_like(rows[:, :, :by]), rows[:, :, :-by]), 2)
