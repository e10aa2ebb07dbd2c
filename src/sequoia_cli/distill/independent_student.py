"""Training an independent draft: the first layers of the target, or a model of another config."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sequoia_cli.distill.batches import Batch
from sequoia_cli.engine.loading.sharing import share_ends
from sequoia_cli.errors import BadInput


class IndependentStudent:
    """A causal model in training whose embedding and head are the target's and stay as they are.

    It reads nothing but tokens, so what it proposes does not depend on the level: one pass is all.
    """

    passes = 1

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def predictions(self, batch: Batch, passes: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The last hidden states where a token of an answer follows; the same for every pass."""
        # Padding stands behind a text, where causal attention never looks.
        output = self.model(input_ids=batch.tokens, use_cache=False, output_hidden_states=True)
        states = output.hidden_states[-1][batch.answer]
        for _ in range(passes or 1):
            yield states, batch.answer


def first_layers(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the target's first `layers` layers and its last norm, sharing embedding and head.

    Raises `BadInput` for a target of fewer layers, or one whose weights do not go by layer.
    """
    config = copy.deepcopy(target.config)
    text = config.get_text_config()
    whole = text.num_hidden_layers
    if layers >= whole:
        raise BadInput(f"a draft of {layers} layers is no smaller than its target, which has {whole}")
    for key, value in vars(text).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(text, key, value[:layers])
    text.num_hidden_layers = layers
    model = _empty(target, config)
    theirs = target.state_dict()
    if missing := [name for name in model.state_dict() if name not in theirs]:
        raise BadInput(
            f"the layers of family {text.model_type} cannot be taken apart: {missing[0]} is missing"
        )
    model.load_state_dict({name: theirs[name].clone() for name in model.state_dict()})
    share_ends(model, target)
    return model


def from_config(target: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """A random model of `config` with the target's embedding and head. Raises `BadInput` for other shapes."""
    mine, theirs = config.get_text_config(), target.config.get_text_config()
    if (mine.vocab_size, mine.hidden_size) != (theirs.vocab_size, theirs.hidden_size):
        raise BadInput(
            f"the draft's config has {mine.vocab_size} ids and width {mine.hidden_size}, and the target has "
            f"{theirs.vocab_size} ids and width {theirs.hidden_size}; the draft shares its embedding and head"
        )
    model = _empty(target, config)
    share_ends(model, target)
    return model


def _empty(target: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    same = type(config) is type(target.config)
    attention = target.config._attn_implementation
    with torch.device(target.device):
        model = (
            type(target)._from_config(config, attn_implementation=attention)
            if same
            else AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        )
    return model.to(target.dtype).eval()
