"""Random feature drafts for the tiny models, and a slow twin of one: a plain pass over the text, no cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.feature_model import FeatureConfig, FeatureModel
from sequoia_cli.engine.head import output_head
from sequoia_cli.engine.model import LanguageModel


def tiny_feature(width: int = 32, seed: int = 0, **shape) -> FeatureModel:
    """A random float32 network, grouped heads; weights are large, so that a wrong row shows."""
    settings = {"layers": 1, "heads": 4, "kv_heads": 2, "head_width": 8, "inner_width": 48, **shape}
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = FeatureModel(FeatureConfig(width, **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.mul_(3)
    torch.set_rng_state(state)
    return model.eval().requires_grad_(False)


def feature_draft(target: LanguageModel, ids: Tensor | None = None, kind=FeatureDraft, **options):
    """A draft of that network with the target's embedding and head, as a command makes it."""
    model = tiny_feature(target.config.hidden_size, **options).to(target.dtype)
    head = output_head(target, "the target")
    embedding = target.model.get_input_embeddings()
    return kind(model, embedding, head.only(ids) if ids is not None else head, target.context_limit, ids)


def true_states(target: LanguageModel, text: Sequence[int]) -> Tensor:
    """The target's last hidden state behind each token of `text`: its own plain forward."""
    with torch.no_grad():
        output = target.model(input_ids=torch.tensor([list(text)]), output_hidden_states=True)
    return output.hidden_states[-1][0]


def twin_logits(draft: FeatureDraft, target: LanguageModel, text: Sequence[int], below: Sequence[int]):
    """What a draft should give behind `below`, tokens of its own tree behind the last of a committed text.

    Before each token of `text` stands the target's state, zeros before the first; before each of `below` the
    state that the network itself gave one token earlier.
    """
    text, states = list(text), true_states(target, text)
    before = [torch.zeros_like(states[0]), *states[:-1]]
    predicted = _network(draft.model, target, text, before)[-1]
    for token in below:
        text, before = [*text, token], [*before, predicted]
        predicted = _network(draft.model, target, text, before)[-1]
    logits = target.model.get_output_embeddings()(predicted)
    return logits if draft.ids is None else logits[draft.ids]


def _network(model: FeatureModel, target: LanguageModel, tokens: Sequence[int], before: Sequence[Tensor]):
    """The states behind the tokens, with every formula written out."""
    weights = dict(model.named_parameters())
    embedded = target.model.get_input_embeddings()(torch.tensor(tokens))
    joined = (
        _normed(torch.stack(list(before)), weights["hidden_norm.weight"]),
        _normed(embedded, weights["token_norm.weight"]),
    )
    states = torch.cat(joined, -1) @ weights["join.weight"].T
    for index in range(model.config.layers):
        layer = {name: weights[f"layers.{index}.{name}.weight"] for name in _LAYER}
        states = states + _attention(model.config, layer, _normed(states, layer["attention_norm"]))
        gate, up = (_normed(states, layer["inner_norm"]) @ layer["gate_up"].T).tensor_split(2, -1)
        states = states + (gate / (1 + torch.exp(-gate)) * up) @ layer["down"].T
    return _normed(states, weights["norm.weight"])


_LAYER = ("attention_norm", "qkv", "output", "inner_norm", "gate_up", "down")


def _normed(states: Tensor, weight: Tensor) -> Tensor:
    return states / (states.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def _attention(config: FeatureConfig, layer: dict[str, Tensor], states: Tensor) -> Tensor:
    width, group = config.head_width, config.heads // config.kv_heads
    heads = (states @ layer["qkv"].T).split(width, -1)
    queries = [_rotated(head, config) for head in heads[: config.heads]]
    keys = [_rotated(head, config) for head in heads[config.heads : config.heads + config.kv_heads]]
    values = heads[config.heads + config.kv_heads :]
    later = torch.ones(len(states), len(states), dtype=torch.bool).triu(1)
    taken = []
    for number, query in enumerate(queries):
        scores = query @ keys[number // group].T / math.sqrt(width)
        taken.append(scores.masked_fill(later, -math.inf).softmax(-1) @ values[number // group])
    return torch.cat(taken, -1) @ layer["output"].T


def _rotated(head: Tensor, config: FeatureConfig) -> Tensor:
    """Number i and number i + half of a row are one complex number, turned by its position."""
    real, imaginary = head.chunk(2, -1)
    powers = torch.arange(real.shape[-1], dtype=torch.float64) / real.shape[-1]
    angles = torch.arange(len(head))[:, None] * config.rope_theta**-powers
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)
