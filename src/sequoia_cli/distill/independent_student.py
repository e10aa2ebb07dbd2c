"""Training an independent draft: the first layers of the target, or a model of another config."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from sequoia_cli.distill.batches import Batch
from sequoia_cli.engine.loading.foreign import refusing
from sequoia_cli.engine.loading.sharing import share_ends
from sequoia_cli.errors import BadInput


class IndependentStudent:
    """A causal model in training, whose embedding and head are frozen.

    It reads tokens only, so its proposals do not depend on the level: one pass suffices.
    """

    passes = 1

    def __init__(self, model: PreTrainedModel, *, shares: bool = True) -> None:
        """`shares`: embedding and head are the target's, and so not stored with the draft."""
        self.model, self.shares = model, shares
        self._rows = model.get_input_embeddings().weight.shape[0]
        # The logits are not used, and computing them would be most of a forward.
        keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._options = {"logits_to_keep": 1} if keeps else {}

    def predictions(self, batch: Batch, passes: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The last hidden states where a token of an answer follows; the same for every pass."""
        # Tokens without an embedding in the draft become its last id, as in decoding.
        tokens = batch.tokens.clamp(max=self._rows - 1)
        # Padding follows the text, where causal attention does not look.
        output = self.model(input_ids=tokens, use_cache=False, output_hidden_states=True, **self._options)
        states = output.hidden_states[-1][batch.answer]
        for _ in range(passes or 1):
            yield states, batch.answer


def require_layers(target: PreTrainedModel, layers: int) -> None:
    """Raise `BadInput` if the target has no more layers, or its weights cannot be split by layer.

    Compares names only, without allocating weights.
    """
    config = target.config.get_text_config()
    if layers >= config.num_hidden_layers:
        raise BadInput(
            f"a draft of {layers} layers is no smaller than its target, which has {config.num_hidden_layers}"
        )
    skeleton = _build(target, _shortened(target.config, layers), 0, torch.device("meta"))
    theirs = target.state_dict()
    if missing := [name for name in skeleton.state_dict() if name not in theirs]:
        raise BadInput(f"the layers of family {config.model_type} cannot be split: {missing[0]} is missing")


def first_layers(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """A model of the target's first `layers` layers and its final norm, sharing embedding and head.

    Raises `BadInput` as `require_layers` does.
    """
    require_layers(target, layers)
    model = _empty(target, _shortened(target.config, layers), 0)
    theirs = target.state_dict()
    model.load_state_dict({name: theirs[name].clone() for name in model.state_dict()})
    share_ends(model, target)
    return model


def from_config(target: PreTrainedModel, config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model of `config` with random layers (from `seed`) and the target's embedding and head.

    Raises `BadInput` if their shapes differ.
    """
    _require_shape(target, config)
    model = _empty(target, config, seed)
    share_ends(model, target)
    return model


def probe_model(target: PreTrainedModel, config: PreTrainedConfig) -> PreTrainedModel:
    """A random float32 model of `config`, cut to one layer and a few ids, on the CPU.

    It shows cheaply what the family computes after its layers. Raises `BadInput` as `from_config` does, and
    if no model can be made from the config.
    """
    _require_shape(target, config)
    short = _shortened(config, 1)
    text = short.get_text_config()
    text.vocab_size = _TINY_VOCABULARY
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, key, None)
    with refusing(f"no draft of family {config.model_type} can be made of its config"):
        _build(target, config, 0, torch.device("meta"))  # all layers, without allocating weights
        return _build(target, short, 0, torch.device("cpu")).float().eval()


_TINY_VOCABULARY = 64


def _require_shape(target: PreTrainedModel, config: PreTrainedConfig) -> None:
    mine, theirs = config.get_text_config(), target.config.get_text_config()
    if (mine.vocab_size, mine.hidden_size) != (theirs.vocab_size, theirs.hidden_size):
        raise BadInput(
            f"the draft's config has {mine.vocab_size} ids and width {mine.hidden_size}, and the target has "
            f"{theirs.vocab_size} ids and width {theirs.hidden_size}; the draft shares its embedding and head"
        )


def _shortened(config: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    """A copy of `config` for the first `layers` layers."""
    config = copy.deepcopy(config)
    text = config.get_text_config()
    whole = text.num_hidden_layers
    for key, value in vars(text).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(text, key, value[:layers])
    text.num_hidden_layers = layers
    return config


def _empty(target: PreTrainedModel, config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    return _build(target, config, seed, target.device).to(target.dtype).eval()


def _build(
    target: PreTrainedModel, config: PreTrainedConfig, seed: int, device: torch.device
) -> PreTrainedModel:
    """A model as transformers initialises it. The global random state that this uses is restored."""
    from transformers import AutoModelForCausalLM

    same = type(config) is type(target.config)
    attention = target.config._attn_implementation
    forked = [device] if device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices=forked),
        torch.device(device),
    ):
        torch.manual_seed(seed % (1 << 64))
        return (
            type(target)._from_config(config, attn_implementation=attention)
            if same
            else AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        )
