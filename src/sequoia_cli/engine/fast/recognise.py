"""Recognises decoder layers that `FastBlock` can replace, by their parts and by their output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sequoia_cli.engine.fast.block import FastBlock, ForwardState, LayerParts, agrees
from sequoia_cli.engine.fast.matrix import matrix_named, matrix_of, stacked

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Call:
    """One call of a layer as its model made it, with its output."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    output: Any


def fast_block(layer: nn.Module, shared: ForwardState, call: Call) -> FastBlock | None:
    """The `FastBlock` of a layer; None where its parts, or its output for `call`, are others."""
    parts = dict(layer.named_children())
    if set(parts) != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return None
    attention, mlp = dict(parts["self_attn"].named_children()), dict(parts["mlp"].named_children())
    if set(attention) - {"rotary_emb"} != set(_ATTENTION) or set(mlp) != {*_MLP, "act_fn"}:
        return None
    if not all(matrix_of(part) for name, part in {**attention, **mlp}.items() if name.endswith("_proj")):
        return None
    given = call.named.get("position_embeddings")
    if not (isinstance(given, tuple) and given[0].shape[-1] == getattr(parts["self_attn"], "head_dim", None)):
        return None
    if _reads_positions(layer, call):
        return None
    block = FastBlock(_parts(layer), shared)
    output = block(*call.arguments, **call.named)
    return block if agrees(output, call.output, call.arguments[0]) else None


def _reads_positions(layer: nn.Module, call: Call) -> bool:
    """Whether a layer uses positions beyond rotations, such as a scale that grows with the position."""
    positions = call.named.get("position_ids")
    if positions is None:
        return False
    exchanged = layer(*call.arguments, **{**call.named, "position_ids": positions.flip(0)})
    return not torch.equal(exchanged, call.output)


def _parts(layer: nn.Module) -> LayerParts:
    """The parts of a layer, found by name."""
    attention: Any = layer.get_submodule("self_attn")
    mlp = layer.get_submodule("mlp")
    queries, keys, values, out = (matrix_named(attention, name) for name in _ATTENTION)
    gate, up, down = (matrix_named(mlp, name) for name in _MLP)
    width = attention.head_dim
    return LayerParts(
        index=attention.layer_idx,
        queries=queries.out_features // width,
        keys=keys.out_features // width,
        width=width,
        scale=attention.scaling,
        before_attention=layer.get_submodule("input_layernorm"),
        into_attention=stacked([queries, keys, values]),
        out_of_attention=out,
        before_mlp=layer.get_submodule("post_attention_layernorm"),
        into_mlp=stacked([gate, up]),
        out_of_mlp=down,
        activation=mlp.get_submodule("act_fn"),
    )
