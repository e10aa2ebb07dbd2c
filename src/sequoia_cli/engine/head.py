"""A model's output head without the model: hidden states in, logits out, for all ids or for some."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sequoia_cli.engine.fast.linear import AnyLinear, FastLinear
from sequoia_cli.engine.fast.matrix import Matrix
from sequoia_cli.engine.integer.linear import IntegerLinear
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.target import LAST
from sequoia_cli.errors import BadInput


@dataclass(frozen=True)
class OutputHead:
    """`weight` (ids, width) and `bias` (ids,); logits are scaled, then capped, as in the family.

    `product` is the prepared or rounded layer; of a rounded one, `weight` holds its numbers.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None
    product: AnyLinear | None = field(default=None, repr=False, compare=False)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits (..., ids) of (..., width) states, in the head's dtype; of a rounded one, in theirs."""
        if not isinstance(self.product, IntegerLinear):
            hidden = hidden.to(self.weight.dtype)
        logits = self.product(hidden) if self.product else linear(hidden, self.weight, self.bias)
        if self.scale != 1:
            logits = logits * self.scale
        return torch.tanh(logits / self.cap) * self.cap if self.cap else logits

    def only(self, ids: Tensor | None) -> OutputHead:
        """The head for `ids` alone, in their order, as a copy; None is for all of them: the head itself."""
        if ids is None:
            return self
        if isinstance(self.product, IntegerLinear):
            return replace(self, **_parts(self.product.only(ids)))
        bias = self.bias[ids] if self.bias is not None else None
        return replace(self, weight=self.weight[ids].contiguous(), bias=bias, product=None)

    def fast(self) -> OutputHead:
        """The same head, prepared for speed."""
        if isinstance(self.product, IntegerLinear):
            return self
        return replace(self, product=FastLinear(Matrix(self.weight, self.bias)))

    @property
    def width(self) -> int:
        """That of the hidden states."""
        if isinstance(self.product, IntegerLinear):
            return self.product.in_features
        return self.weight.shape[1]


def _parts(module: nn.Module) -> dict[str, Any]:
    """Weight, bias and product of the layer that is a head."""
    if isinstance(module, IntegerLinear):
        return {"weight": module.weights.numbers, "bias": module.bias, "product": module}
    weight = getattr(module, "weight", None)
    return {"weight": weight.detach() if weight is not None else None, "bias": getattr(module, "bias", None)}


@torch.inference_mode()
def output_head(model: LanguageModel, name: str) -> OutputHead:
    """The head of `model`. Raises `BadInput` where hidden states and head do not give the model's own logits.

    Some families do more after their last hidden state than their settings say, so the result is compared
    with the model's own logits.
    """
    module = model.model.get_output_embeddings()
    parts = _parts(module)
    if parts["weight"] is None:
        raise BadInput(f"{name} does not expose its output head, which a draft of this kind shares")
    config = model.config
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
    cap = getattr(config, "final_logit_softcapping", None)
    head = OutputHead(**parts, scale=float(scale), cap=cap)
    tokens = torch.arange(8, device=model.device) % model.vocabulary
    output = model.forward(tokens, torch.arange(8, device=model.device), model.new_cache(8), None, taps=LAST)
    (states,) = output.hidden
    if states.shape[-1] == head.width:
        logits = head(states).float()
        tolerance = 1e-3 if model.dtype in (torch.float32, torch.float64) else 0.05
        if (logits - output.logits.float()).abs().max() <= tolerance * output.logits.float().abs().max():
            return head
    raise BadInput(
        f"{name} is of family {model.family}, whose logits are not its head over its last hidden state: no "
        "draft can share that head or be trained for it",
        hint="a smaller model of the family can be its draft: give it as --draft",
    )
