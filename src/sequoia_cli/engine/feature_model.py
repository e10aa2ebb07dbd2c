"""The network of a feature draft: decoder layers over the target's hidden states joined with the next tokens.

EAGLE's idea (arXiv 2401.15077): the target's hidden state before a token, together with that token,
determines most of its state after it. So one or two layers can predict what the target computes with all of
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

#: Attention: queries, keys, values, each (texts, heads, tokens, head width) -> outputs. Applies the mask and
#: stores keys and values for later calls.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

#: Runs one layer: (index, layer, states) -> the states after it.
RunLayer = Callable[[int, nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class FeatureConfig:
    """The shape of the network; `width` is that of the target's hidden states and embeddings."""

    width: int
    layers: int = 1
    heads: int = 8
    kv_heads: int = 8
    head_width: int = 64
    inner_width: int = 1024
    rope_theta: float = 10_000.0


class Rotation(NamedTuple):
    """Cosine and sine of rotary positions, each (tokens, head width) or (texts, 1, tokens, head width)."""

    cosine: Tensor
    sine: Tensor

    def __call__(self, states: Tensor) -> Tensor:
        """Turn (..., tokens, head width) states by their positions."""
        first, second = states.chunk(2, -1)
        return states * self.cosine + torch.cat((-second, first), -1) * self.sine


class FeatureModel(nn.Module):
    """Predicts hidden states: from the state before each token and its embedding to the state after it."""

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.config = config
        self.hidden_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.token_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.join = nn.Linear(2 * config.width, config.width, bias=False)
        self.layers = nn.ModuleList(FeatureLayer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)

    def forward(self, hidden: Tensor, embedded: Tensor, run_layer: RunLayer) -> Tensor:
        """Predicted hidden states (texts, tokens, width), as the target's output head reads them.

        `hidden` are the target's states before the tokens, or earlier predictions of them, and `embedded`
        the target's embeddings of the tokens; both (texts, tokens, width). `run_layer` runs one layer.
        """
        states = self.join(torch.cat((self.hidden_norm(hidden), self.token_norm(embedded)), -1))
        for index, layer in enumerate(self.layers):
            states = run_layer(index, layer, states)
        return self.norm(states)

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Rotary positions for (tokens,) of `positions`."""
        width = self.config.head_width
        powers = torch.arange(0, width, 2, device=positions.device, dtype=torch.float64) / width
        angles = positions[:, None].to(torch.float64) / self.config.rope_theta**powers
        angles = torch.cat((angles, angles), -1)
        return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


class FeatureLayer(nn.Module):
    """A pre-norm decoder layer: grouped-query attention and a gated MLP."""

    def __init__(self, config: FeatureConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, config.head_width
        self.attention_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.qkv = nn.Linear(
            config.width, (config.heads + 2 * config.kv_heads) * config.head_width, bias=False
        )
        self.output = nn.Linear(config.heads * config.head_width, config.width, bias=False)
        self.inner_norm = nn.RMSNorm(config.width, eps=1e-5)
        self.gate_up = nn.Linear(config.width, 2 * config.inner_width, bias=False)
        self.down = nn.Linear(config.inner_width, config.width, bias=False)

    def forward(self, states: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """(texts, tokens, width) in and out."""
        texts, tokens, _ = states.shape
        qkv = self.qkv(self.attention_norm(states)).view(texts, tokens, -1, self.head_width).transpose(1, 2)
        queries, keys, values = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        taken = attend(rotation(queries), rotation(keys), values)
        states = states + self.output(taken.transpose(1, 2).reshape(texts, tokens, -1))
        gate, up = self.gate_up(self.inner_norm(states)).chunk(2, -1)
        return states + self.down(silu(gate) * up)
