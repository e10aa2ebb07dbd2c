"""A whole decoder layer in few operations, for the plan that most families share.

What is started, not what is computed, is what a layer costs beside its products: some sixty operations in
transformers, half as many here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sequoia_cli.engine.fast.attention import attend, folded, grouped_attention
from sequoia_cli.engine.fast.linear import FastLinear
from sequoia_cli.engine.fast.matrix import Matrix, matrix_of, stacked

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
#: How far a layer's output may be off, relative to what it adds to its input.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_TOLERANCE_HALF = 0.05


@dataclass(frozen=True)
class Call:
    """One call of a layer as its model made it, and what came out."""

    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    output: Any


class Shared:
    """What all layers of a forward have in common, made ready once for each forward."""

    def __init__(self) -> None:
        self._given: tuple[Tensor, Tensor] | None = None
        self._masks: list[tuple[Tensor, Tensor]] = []

    def rotation(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(texts, rows, 1, width) of cosines and of sines; the sines' first half, which turns back, negated.

        A forward is told from the one before by these: each computes its own.
        """
        if given is not self._given:
            cosines, sines = given
            half = sines.shape[-1] // 2
            signed = torch.cat((-sines[..., :half], sines[..., half:]), -1)
            self._given, self._ready = given, (cosines.unsqueeze(-2), signed.unsqueeze(-2))
            self._masks = []
        return self._ready

    def mask(self, mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """`folded` for this forward, in which some layers may have a mask of their own."""
        for known, ready in self._masks:
            if known is mask:
                return ready
        self._masks.append((mask, folded(mask, query, key)))
        return self._masks[-1][1]


class FastBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): rotated queries and keys, a gated mlp."""

    def __init__(self, layer: nn.Module, shared: Shared) -> None:
        """`layer` must have the parts by name, and its norms be fast already."""
        super().__init__()
        attention: Any = layer.get_submodule("self_attn")
        mlp = layer.get_submodule("mlp")
        self.shared = shared
        self.layer_index, self.width, self.scale = attention.layer_idx, attention.head_dim, attention.scaling
        self.is_causal = True
        queries, keys, values, out = (_matrix(attention, name) for name in _ATTENTION)
        gate, up, down = (_matrix(mlp, name) for name in _MLP)
        self.queries, self.keys = (len(matrix.weight) // self.width for matrix in (queries, keys))
        self.inner = len(gate.weight)
        self.into_attention = FastLinear(stacked([queries, keys, values]))
        self.out_of_attention = FastLinear(out)
        self.into_mlp = FastLinear(stacked([gate, up]))
        self.out_of_mlp = FastLinear(down)
        self.activation = mlp.get_submodule("act_fn")
        self.before_attention = layer.get_submodule("input_layernorm")
        self.before_mlp = layer.get_submodule("post_attention_layernorm")

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *,
        position_embeddings: tuple[Tensor, Tensor],
        cache: Any = None,
        past_key_values: Any = None,
        **others: Any,
    ) -> Tensor:
        """(texts, rows, hidden) in and out, with the arguments that transformers gives its decoder layers."""
        texts, rows, _ = hidden_states.shape
        heads = self.into_attention(self.before_attention(hidden_states)).view(texts, rows, -1, self.width)
        turned, values = heads.split((self.queries + self.keys, self.keys), 2)
        cosines, sines = self.shared.rotation(position_embeddings)
        first, second = turned.chunk(2, -1)
        swapped = torch.cat((second, first), -1)
        # Some families turn in float32, whatever their dtype.
        turned = torch.addcmul(turned * cosines, swapped, sines).to(values.dtype).transpose(1, 2)
        queries, keys = turned.split((self.queries, self.keys), 1)
        values = values.transpose(1, 2)
        kept = cache if cache is not None else past_key_values
        if kept is not None:
            keys, values = kept.update(keys, values, self.layer_index)
        if attention_mask is None:
            taken, _ = grouped_attention(self, queries, keys, values, None, scaling=self.scale)
        else:
            mask = self.shared.mask(attention_mask, queries, keys)
            taken = attend(queries, keys, values, mask, self.scale)
        states = self.out_of_attention.onto(hidden_states, taken.reshape(texts, rows, -1))
        gate, up = self.into_mlp(self.before_mlp(states)).split(self.inner, -1)
        return self.out_of_mlp.onto(states, self.activation(gate).mul_(up))


def fast_block(layer: nn.Module, shared: Shared, call: Call) -> FastBlock | None:
    """A layer made fast; None for one of another plan: by its parts, and by what it gives for `call`."""
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
    block = FastBlock(layer, shared)
    states = call.arguments[0]
    error = (block(*call.arguments, **call.named) - call.output).norm()
    added = _TOLERANCE.get(states.dtype, _TOLERANCE_HALF) * (call.output - states).norm()
    rounding = torch.finfo(states.dtype).eps * call.output.norm()  # a layer can add little to large states
    return block if error <= added + rounding else None


def _reads_positions(layer: nn.Module, call: Call) -> bool:
    """Whether a layer makes more of positions than rotations, as a scale that grows far into a text."""
    positions = call.named.get("position_ids")
    if positions is None:
        return False
    exchanged = layer(*call.arguments, **{**call.named, "position_ids": positions.flip(0)})
    return not torch.equal(exchanged, call.output)


def _matrix(parent: nn.Module, name: str) -> Matrix:
    matrix = matrix_of(parent.get_submodule(name))
    assert matrix is not None
    return matrix
