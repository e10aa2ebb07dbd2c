"""Weights as small integers in the order in which `kernel.cpp` reads them, and their slow products.

A module each, so that they move and are saved with their layer; their scales keep their dtype whatever the
model is converted to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sequoia_cli.engine.integer.arithmetic import (
    BLOCK,
    GROUP,
    SPAN,
    filled_up,
    packed,
    round_inputs,
    round_weight,
    unpacked,
)


class IntegerWeights(nn.Module):
    """The weights of `outputs` rows of `width`."""

    numbers: Tensor

    def __init__(self, outputs: int, width: int, **buffers: Tensor | None) -> None:
        super().__init__()
        self.outputs, self.width = outputs, width
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    @abstractmethod
    def rows(self, ids: Tensor | None = None) -> Tensor:
        """The weights (ids, width), float32, of the outputs `ids`, or all of them."""

    @abstractmethod
    def product(self, inputs: Tensor) -> Tensor:
        """(rows, outputs), float32, of (rows, width) inputs, by torch's own operations."""

    @abstractmethod
    def only(self, ids: Tensor) -> IntegerWeights:
        """The rows of the outputs `ids`, in their order, as a copy."""

    @classmethod
    @abstractmethod
    def stacked(cls, parts: Sequence[Any]) -> IntegerWeights:
        """Several of this class and one width: their outputs one after the other."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> IntegerWeights:
        """As for any module, but that everything keeps its dtype: the kernel reads it as it is."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            setattr(self, name, buffer.to(self.numbers.device))
        return self


class ByOutput(IntegerWeights):
    """Numbers of 8 bits with a scale for each output."""

    scales: Tensor

    def __init__(self, numbers: Tensor, scales: Tensor) -> None:
        """Of (outputs, width) numbers, int8, and (outputs,) scales."""
        filled = filled_up(scales.float(), BLOCK)
        super().__init__(*numbers.shape, numbers=packed(numbers), scales=filled)

    @classmethod
    def of(cls, weight: Tensor) -> ByOutput:
        """The nearest to (outputs, width) weights."""
        return cls(*round_weight(weight))

    def rows(self, ids: Tensor | None = None) -> Tensor:
        return self._numbers(ids) * self._scales(ids)[:, None]

    def product(self, inputs: Tensor) -> Tensor:
        given, scales = round_inputs(inputs)
        numbers = filled_up(self._numbers().float(), GROUP, 1).unflatten(1, (-1, GROUP))
        found = given.new_zeros(len(given), self.outputs)
        for group in range(given.shape[1]):
            # Sums of a group stay below 2^24, so that they are exact in float32.
            found += given[:, group] @ numbers[:, group].T * scales[:, group, None]
        return found * self._scales()

    def only(self, ids: Tensor) -> ByOutput:
        return ByOutput(self._numbers(ids), self._scales(ids))

    @classmethod
    def stacked(cls, parts: Sequence[ByOutput]) -> ByOutput:
        return cls(
            torch.cat([part._numbers() for part in parts]), torch.cat([part._scales() for part in parts])
        )

    def _numbers(self, ids: Tensor | None = None) -> Tensor:
        return unpacked(self.numbers, self.outputs, self.width, ids)

    def _scales(self, ids: Tensor | None = None) -> Tensor:
        return self.scales[: self.outputs] if ids is None else self.scales[ids]


class BySpan(IntegerWeights):
    """Numbers with a scale for each `SPAN` of an output's: of 8 bits, or of 4 bits and with an offset too."""

    scales: Tensor
    offsets: Tensor | None

    def __init__(self, numbers: Tensor, scales: Tensor, offsets: Tensor | None = None) -> None:
        """Of (outputs, width) numbers, (outputs, spans) scales and offsets in float16.

        Numbers are int8 from -127 to 127 without offsets, uint8 from 0 to 15 with them.
        """
        laid = packed(numbers)
        if offsets is not None:
            laid = laid[:, 0::2] | laid[:, 1::2] << 4
        super().__init__(*numbers.shape, numbers=laid, scales=_by_block(scales), offsets=_by_block(offsets))

    def rows(self, ids: Tensor | None = None) -> Tensor:
        wide = self._numbers(ids).float() * self._spread(self.scales, ids)
        return wide if self.offsets is None else wide + self._spread(self.offsets, ids)

    def product(self, inputs: Tensor) -> Tensor:
        given, scales = round_inputs(inputs)
        given = given.flatten(1).unflatten(1, (-1, SPAN))
        scales = scales.repeat_interleave(GROUP // SPAN, 1)
        numbers = filled_up(self._numbers().float(), GROUP, 1).unflatten(1, (-1, SPAN))
        found = given.new_zeros(len(given), self.outputs)
        for span in range(given.shape[1]):
            exact = given[:, span] @ numbers[:, span].T
            found += exact * self._of_span(self.scales, span) * scales[:, span, None]
            if self.offsets is not None:
                shift = given[:, span].sum(1) * scales[:, span]
                found += self._of_span(self.offsets, span) * shift[:, None]
        return found

    def only(self, ids: Tensor) -> BySpan:
        offsets = None if self.offsets is None else self._flat(self.offsets, ids)
        return BySpan(self._numbers(ids), self._flat(self.scales, ids), offsets)

    @classmethod
    def stacked(cls, parts: Sequence[BySpan]) -> BySpan:
        scales = torch.cat([part._flat(part.scales) for part in parts])
        offsets = [part._flat(part.offsets) for part in parts if part.offsets is not None]
        assert len(offsets) in (0, len(parts)), "all are of one width in bits"
        return cls(
            torch.cat([part._numbers() for part in parts]), scales, torch.cat(offsets) if offsets else None
        )

    def _numbers(self, ids: Tensor | None = None) -> Tensor:
        laid = self.numbers
        if self.offsets is not None:
            laid = torch.stack((laid & 15, laid >> 4), 2).flatten(1, 2)
        return unpacked(laid, self.outputs, self.width, ids)

    def _flat(self, values: Tensor, ids: Tensor | None = None) -> Tensor:
        """(ids, spans) of (blocks, spans, BLOCK), or all outputs."""
        rows = values.transpose(1, 2).flatten(0, 1)
        return rows[: self.outputs] if ids is None else rows[ids]

    def _spread(self, values: Tensor, ids: Tensor | None) -> Tensor:
        return self._flat(values, ids).float().repeat_interleave(SPAN, 1)[:, : self.width]

    def _of_span(self, values: Tensor, span: int) -> Tensor:
        return values[:, span].flatten()[: self.outputs].float()


def _by_block(values: Tensor | None) -> Tensor | None:
    """(blocks, spans, BLOCK) of (outputs, spans), filled up with zeros to whole blocks and groups."""
    if values is None:
        return None
    filled = filled_up(filled_up(values, GROUP // SPAN, 1), BLOCK)
    return filled.unflatten(0, (-1, BLOCK)).transpose(1, 2).contiguous()
