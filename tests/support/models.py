"""Tiny random models of many families: two layers, hidden 32, built in milliseconds, no download.

Weight matrices are multiplied by 4, so that logits spread and a wrong mask or position shows in the argmax.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

_PLAIN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_FALCON = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "new_decoder_architecture": False,
}
# Untied: these scale their embeddings so that a tied head would only repeat the last token.
_GEMMA = {**_GROUPED, "head_dim": 8, "tie_word_embeddings": False}

#: family -> (model_type, configuration). Those below the line cannot take a tree mask.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GROUPED),
    "qwen2": ("qwen2", _GROUPED),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 8}),
    "mistral": ("mistral", {**_GROUPED, "head_dim": 8}),
    "gemma": ("gemma", _GEMMA),
    "gemma2": ("gemma2", {**_GEMMA, "query_pre_attn_scalar": 8}),
    "gemma3": ("gemma3_text", {**_GEMMA, "query_pre_attn_scalar": 8}),
    "gpt2": ("gpt2", _GPT2),
    "opt": (
        "opt",
        {
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 256,
        },
    ),
    "gpt_neox": ("gpt_neox", _PLAIN),
    "gptj": ("gptj", {**_GPT2, "rotary_dim": 4}),
    "phi": ("phi", _PLAIN),
    "phi3": ("phi3", {**_GROUPED, "pad_token_id": None}),
    "gpt_bigcode": ("gpt_bigcode", {**_GPT2, "multi_query": True, "tie_word_embeddings": False}),
    "falcon": ("falcon", {**_FALCON, "alibi": False}),
    "olmo2": ("olmo2", _GROUPED),
    "stablelm": ("stablelm", _GROUPED),
    "starcoder2": ("starcoder2", _GROUPED),
    "cohere": ("cohere", {**_GROUPED, "logit_scale": 1.0}),
    "granite": ("granite", _GROUPED),
    "mixtral": ("mixtral", {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    # ---
    "gpt_neo": (
        "gpt_neo",
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 256,
        },
    ),
    "mpt": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "expansion_ratio": 2, "max_seq_len": 256}),
    "bloom": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False}),
    "falcon_alibi": ("falcon", {**_FALCON, "alibi": True}),
    "mamba": ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}),
    "qwen3_next": (
        "qwen3_next",
        {
            **_GROUPED,
            "head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
        },
    ),
}
REFUSED = ("gpt_neo", "mpt", "bloom", "falcon_alibi", "mamba", "qwen3_next")
SUPPORTED = tuple(family for family in FAMILIES if family not in REFUSED)


def tiny_model(family: str, vocab: int = 64, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A random float32 model of `family`, the same for the same arguments; `overrides` go to its config."""
    model_type, settings = FAMILIES[family]
    no_special_ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = AutoConfig.for_model(model_type, vocab_size=vocab, **{**no_special_ids, **settings, **overrides})
    return random_model(config, seed)


def random_model(config: PreTrainedConfig, seed: int = 0, scale: float = 4) -> PreTrainedModel:
    """A random float32 model of that configuration, the same for the same seed; matrices times `scale`."""
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    except ValueError:  # a family without sdpa
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    finally:
        torch.set_rng_state(state)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return _resting(model)


def near(model: PreTrainedModel, scale: float, seed: int = 0) -> PreTrainedModel:
    """A copy of `model` with Gaussian noise of `scale` on every weight: a draft that agrees often."""
    noise = torch.Generator().manual_seed(seed)
    close = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in close.parameters():
            drawn = torch.randn(parameter.shape, generator=noise, dtype=torch.float32)
            parameter.add_((scale * drawn).to(parameter))
    return _resting(close)


def tiny_tokenizer(vocab: int = 64, *, tokens: dict[int, str] | None = None, **special: Any):
    """A tokenizer of the words w0, w1, ...; `tokens` renames some ids, `special` is as in transformers."""
    words = {(tokens or {}).get(id, f"w{id}"): id for id in range(vocab)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="w0", **special)


def _resting(model: PreTrainedModel) -> PreTrainedModel:
    model.eval()
    model.requires_grad_(False)
    return model
