"""A whole decoder layer in few operations, for the plan that most families share.

Besides its matrix products, a layer's cost is launch overhead, not arithmetic: some sixty operations in
transformers, half as many here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.fast.attention import attend, folded, grouped_attention, under
from sequoia_cli.engine.fast.linear import prepared
from sequoia_cli.engine.fast.matrix import AnyMatrix

#: How far a layer's output may be off, relative to what it adds to its input.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
_TOLERANCE_HALF = 0.05


#: The rows of the cache that each row sees, (rows, columns), and how many these are, (rows,).
VisibleRows = tuple[Tensor, Tensor]


class ForwardState:
    """What all layers of a forward have in common, prepared once per forward."""

    def __init__(self) -> None:
        self._given: tuple[Tensor, Tensor] | None = None
        self._ready: tuple[Tensor, Tensor]
        self._wide: tuple[Tensor, Tensor] | None = None
        self._masks: list[tuple[Tensor | None, Tensor]] = []
        self._seen: list[tuple[Tensor, VisibleRows]] = []

    def rotation(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(texts, rows, 1, width) of cosines and of sines; the sines' first half, which turns back, negated.

        A new forward is recognised by these tensors: each forward computes its own.
        """
        if given is not self._given:
            cosines, sines = given
            half = sines.shape[-1] // 2
            signed = torch.cat((-sines[..., :half], sines[..., half:]), -1)
            self._given, self._ready = given, (cosines.unsqueeze(-2), signed.unsqueeze(-2))
            self._wide, self._masks, self._seen = None, [], []
        return self._ready

    def wide_rotation(self, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The same in float32 or wider, whichever dtype the family uses: compiled layers take one dtype."""
        ready = self.rotation(given)
        if self._wide is None:
            wide = torch.promote_types(ready[0].dtype, torch.float32)
            self._wide = ready[0].to(wide), ready[1].to(wide)
        return self._wide

    def mask(self, mask: Tensor | None, shared: int, columns: int, dtype: torch.dtype) -> Tensor:
        """`folded` for this forward, in which some layers may have a mask of their own.

        Without a mask a single row sees all `columns`.
        """
        for known, ready in self._masks:
            if known is mask and ready.shape[-1] == columns:
                return ready
        given = torch.zeros(1, 1, 1, columns, dtype=dtype) if mask is None else mask
        self._masks.append((mask, folded(given, shared).contiguous()))
        return self._masks[-1][1]

    def seen(self, mask: Tensor | None, find: Callable[[Tensor], VisibleRows]) -> VisibleRows | None:
        """The result of `find` for this forward's mask; None without a mask, where a single row sees all."""
        if mask is None:
            return None
        for known, ready in self._seen:
            if known is mask:
                return ready
        self._seen.append((mask, find(mask)))
        return self._seen[-1][1]


@dataclass(frozen=True)
class LayerParts:
    """The parts of a layer of this plan."""

    index: int
    queries: int
    keys: int
    width: int
    scale: float
    before_attention: nn.Module
    into_attention: AnyMatrix
    out_of_attention: AnyMatrix
    before_mlp: nn.Module
    into_mlp: AnyMatrix
    out_of_mlp: AnyMatrix
    activation: nn.Module


#: A layer as one function of tensors (see `engine/fast/compiled.py`): states, cosines, sines, the keys and
#: values of the whole cache, a mask over the rows in use, then `FastBlock.constants`.
Compiled = Callable[[list[Tensor]], list[Tensor]]


class InKernel(Protocol):
    """Layers of rounded weights as one call (see `engine/integer/kernel.py`)."""

    def seen(self, mask: Tensor) -> VisibleRows:
        """What each row sees, of an additive mask."""

    def __call__(
        self,
        states: Tensor,
        rotation: tuple[Tensor, Tensor],
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        end: int,
        seen: VisibleRows | None,
    ) -> Tensor:
        """States (1, rows, hidden) after the layers; their keys and values get the rows before `end`."""


class FastBlock(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): rotated queries and keys, a gated mlp."""

    def __init__(self, parts: LayerParts, shared: ForwardState) -> None:
        super().__init__()
        self.shared = shared
        self.layer_index, self.width, self.scale = parts.index, parts.width, parts.scale
        self.queries, self.keys, self.group = parts.queries, parts.keys, parts.queries // parts.keys
        self.is_causal = True
        self.into_attention = prepared(parts.into_attention)
        self.out_of_attention = prepared(parts.out_of_attention)
        self.into_mlp, self.out_of_mlp = prepared(parts.into_mlp), prepared(parts.out_of_mlp)
        self.inner = self.out_of_mlp.in_features
        self.activation = parts.activation
        self.before_attention, self.before_mlp = parts.before_attention, parts.before_mlp
        self.compiled: Compiled | None = None
        #: The arguments of `compiled` that are the same in every call.
        self.constants: tuple[Tensor, ...] = ()
        self.in_kernel: InKernel | None = None

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
        kept = cache if cache is not None else past_key_values
        if (self.compiled or self.in_kernel) and self.can_run_whole(hidden_states, attention_mask, kept):
            run = self._run_compiled if self.compiled else self._run_in_kernel
            return run(hidden_states, attention_mask, position_embeddings, kept)
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
        if kept is not None:
            keys, values = kept.update(keys, values, self.layer_index)
        keys, values = under(attention_mask, keys, values)
        if attention_mask is None:
            taken, _ = grouped_attention(self, queries, keys, values, None, scaling=self.scale)
        else:
            mask = self.shared.mask(attention_mask, self.group, keys.shape[2], keys.dtype)
            taken = attend(queries, keys, values, mask, self.scale)
        states = self.out_of_attention.onto(hidden_states, taken.reshape(texts, rows, -1))
        gate, up = self.into_mlp(self.before_mlp(states)).split(self.inner, -1)
        return self.out_of_mlp.onto(states, self.activation(gate).mul_(up))

    def can_run_whole(self, states: Tensor, mask: Tensor | None, kept: Any) -> bool:
        """Whether rows of one text follow others in its cache: a prompt has no mask of ours."""
        if states.shape[0] > 1 or type(kept) is not TreeCache:
            return False
        if not kept.layers[self.layer_index].is_initialized:
            return False
        if self.in_kernel is not None and states.dtype != torch.float32:
            return False
        if mask is None:
            return states.shape[1] == 1
        # transformers makes masks of booleans, for one row and for the pieces of a prompt.
        one = self.in_kernel is not None and states.shape[1] == 1
        return mask.dtype == states.dtype or (one and mask.dtype == torch.bool)

    def _run_compiled(
        self, states: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor], kept: TreeCache
    ) -> Tensor:
        cosines, sines = self.shared.wide_rotation(rotation)
        keys, values, length = kept.layers[self.layer_index].reserve(states.shape[1])
        mask = self.shared.mask(mask, self.group, length, states.dtype)
        assert self.compiled is not None
        try:
            return self.compiled([states, cosines, sines, keys, values, mask, *self.constants])[0]
        except RuntimeError as failure:
            # What a handler of signals raises within compiled code comes out as this, its name in the text.
            if str(failure).startswith("KeyboardInterrupt"):
                raise KeyboardInterrupt from None
            raise

    def _run_in_kernel(
        self, states: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor], kept: TreeCache
    ) -> Tensor:
        assert self.in_kernel is not None
        turns, seen = self.kernel_inputs(states, mask, rotation)
        keys, values, end = kept.layers[self.layer_index].reserve(states.shape[1])
        return self.in_kernel(states, turns, [keys], [values], end, seen)

    def kernel_inputs(
        self, states: Tensor, mask: Tensor | None, rotation: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, Tensor], VisibleRows | None]:
        """Rotation and visible rows in the form that the kernel takes."""
        assert self.in_kernel is not None
        self.shared.rotation(rotation)  # distinguishes this forward from the one before
        turns = rotation[0].to(states.dtype), rotation[1].to(states.dtype)
        return turns, self.shared.seen(mask, self.in_kernel.seen)


def trial_outputs(block: FastBlock, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random states (1, 9, hidden), and a block's for them: a prompt of five, then three rows, then one."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 9, block.into_attention.in_features, generator=generator).to(dtype)
    angles = torch.arange(9 * block.width, dtype=torch.float32).view(1, 9, block.width)
    rotation = angles.cos().to(dtype), angles.sin().to(dtype)
    mask = torch.zeros(1, 1, 3, 8, dtype=dtype)
    mask[..., 5:] = torch.full((3, 3), torch.finfo(dtype).min).triu(1)
    cache, outputs = TreeCache(block.layer_index + 1, 16), []
    for first, end, seen in ((0, 5, None), (5, 8, mask), (8, 9, None)):
        part = slice(first, end)
        turns = rotation[0][:, part], rotation[1][:, part]
        outputs.append(block(states[:, part], seen, position_embeddings=turns, cache=cache))
    return states, torch.cat(outputs, 1)


def agrees(found: Tensor, expected: Tensor, states: Tensor, rounded: bool = False) -> bool:
    """Whether a layer's output for `states` is the expected one, up to rounding.

    Where products have `rounded` inputs, the smallest difference sends one that lies half way between two
    numbers to the other one.
    """
    tolerance = _TOLERANCE_HALF if rounded else _TOLERANCE.get(states.dtype, _TOLERANCE_HALF)
    added = tolerance * (expected - states).norm()
    rounding = torch.finfo(states.dtype).eps * expected.norm()  # a layer can add little to large states
    return bool((found - expected).norm() <= added + rounding)
