"""`--quantize`: which models of a session become integers, and of how many bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from sequoia_cli.engine.feature_model import FeatureModel
from sequoia_cli.engine.integer.quantise import quantise, share_left
from sequoia_cli.engine.loading import smollm2
from sequoia_cli.engine.loading.gguf_weights import read_integers
from sequoia_cli.engine.loading.sources import TARGET_ALIAS
from sequoia_cli.errors import BadInput

#: Weights as loaded, or rounded to 8 or 4 bits.
AS_LOADED, INT8, INT4 = WEIGHTS = ("none", "int8", "int4")

_BITS = {INT8: 8, INT4: 4}

#: From this share of the target's weights on, those that are not rounded are worth a note.
_MUCH = 0.1


def round_models(
    target: PreTrainedModel, name: str, wanted: Mapping[nn.Module, str], announce: Callable[[str], None]
) -> list[nn.Module]:
    """Round the models of which something other than `AS_LOADED` is `wanted`, and return them.

    `name` is what the user calls the target. The default target with 4 bits has the very integers that it was
    published with. Raises `BadInput` for weights that cannot be rounded, `SequoiaError` where the published
    ones cannot be fetched.
    """
    bits = {model: _BITS[weights] for model, weights in wanted.items() if weights != AS_LOADED}
    if not bits:
        return []
    published = name == TARGET_ALIAS and bits.get(target) == _BITS[INT4]
    known = read_integers(smollm2.gguf(announce), target) if published else None
    try:
        quantise(*bits, bits=bits, known=known)
    except ValueError as error:
        raise BadInput(f"the weights cannot be rounded to 4 bits: {error}") from error
    return list(bits)


def widen(wanted: Mapping[nn.Module, str], target: PreTrainedModel) -> None:
    """Let what is left of rounded models be float32: it is little, and the kernel needs it for whole layers.

    A draft that reads the target's hidden states has their dtype.
    """
    for model, weights in wanted.items():
        if (wanted[target] if isinstance(model, FeatureModel) else weights) != AS_LOADED:
            model.float()


def announce_rounding(
    target: PreTrainedModel | None, place: torch.device, compiled: bool, announce: Callable[[str], None]
) -> None:
    """Announce the limits of rounding; `target` is the target if it is rounded."""
    if place.type != "cpu":
        announce("rounded weights change the model and are slower here: their kernels are for CPUs only")
    elif not compiled:
        announce("products of integers are slow unless with --forward compiled")
    if target is not None and (left := share_left(target)) > _MUCH:
        announce(f"{left:.0%} of the target's weights are not in plain linear layers and are not rounded")
