"""A tiny configuration of any model type: its defaults with small sizes, and few exceptions by name.

Sizes are such that traps show in a short text: windows of 6 tokens, layers of every kind that the defaults
have, and no weights shared between embedding and head.
"""

from __future__ import annotations

from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

VOCABULARY, WINDOW = 64, 6

_VALUES: dict[int, str] = {
    VOCABULARY: """
        vocab_size pronunciation_vocab_size shape_vocab_size num_centroids vocab_size_per_layer_input
        unpadded_vocab_size intermediate_size ffn_dim intermediate_size_mlp dense_intermediate_size
        decoder_ffn_dim encoder_ffn_dim ffn_hidden_size feed_forward_size dim_ff dff d_inner mamba_d_ssm
    """,
    32: """
        hidden_size d_model n_embd embedding_size embedding_dim emb_dim lru_width word_embed_proj_dim
        input_embedding_size output_embedding_size moe_intermediate_size shared_expert_intermediate_size
        shared_intermediate_size shared_experts_intermediate_size expert_ffn_hidden_size
        moe_shared_expert_intermediate_size hc_lowrank pronunciation_embed_dim shape_embed_dim
    """,
    4: """
        num_attention_heads n_head n_heads num_heads attention_heads swa_num_attention_heads
        decoder_attention_heads encoder_attention_heads num_decoder_attention_heads index_n_heads
        num_encoder_attention_heads linear_num_heads linear_num_value_heads mamba_n_heads num_experts
        n_routed_experts num_local_experts moe_num_experts index_topk rotary_dim chunk_size
        mamba_chunk_size
    """,
    2: """
        num_key_value_heads swa_num_key_value_heads num_kv_heads num_hidden_layers n_layer n_layers
        num_layers decoder_layers encoder_layers num_decoder_layers num_encoder_layers num_experts_per_tok
        num_experts_per_token moe_topk moe_k linear_num_key_heads n_groups mamba_n_groups mamba_ngroups
        index_topk_blocks
    """,
    1: """
        n_group topk_group num_expert_group first_k_dense_replace num_dense_layers n_shared_experts
        num_shared_experts moe_num_shared_experts
    """,
    8: """
        head_dim swa_head_dim v_head_dim qk_rope_head_dim qk_nope_head_dim kv_channels d_head
        global_head_dim index_head_dim dim_head linear_head_dim linear_key_head_dim state_size
        linear_value_head_dim mamba_d_state ssm_state_size mamba_dt_rank time_step_rank d_rel
        mamba_head_dim mamba_num_heads adapter_rank query_pre_attn_scalar hidden_size_per_layer_input
    """,
    16: """
        kv_lora_rank q_lora_rank o_lora_rank qk_head_dim mamba_d_head
    """,
    256: """
        max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length
    """,
    WINDOW: """
        sliding_window sliding_window_size window_size attention_chunk_size keep_window_size
        attention_window_size local_attention local_attention_window_len log_scaling_n_floor floor_scale
        rel_extent index_block_size block_size local_attn_chunk_length lsh_attn_chunk_length
        original_max_position_embeddings
    """,
}
_SIZES = {key: value for value, keys in _VALUES.items() for key in keys.split()}
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
#: Lists as long as the model is deep that hold numbers of layers, not kinds: the configuration makes them.
_NUMBERS = ("moe_layers", "full_attn_idxs")

_BOTH = ["sliding_attention", "full_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 1e4}

#: What the defaults cannot be shrunk to without, and kinds of layer that they do not have.
_EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 32},
    "cohere_compass_text": {
        "rope_parameters": {kind: {**_ROPE, "mrope_section": [2, 1, 1]} for kind in _BOTH}
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 2, "n_output_layers": 1}
    | {"num_hidden_layers": 4, "layer_types": _BOTH * 2},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "gemma3n_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": _BOTH * 2}
    | {"intermediate_size": [64] * 4, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0]},
    "gemma4_text": {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": _BOTH * 2},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"]},
    # Its queries grow with the position, in steps as long as the original context.
    "ministral3": {
        "rope_parameters": {
            **_ROPE,
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 16,
        }
        | {
            "llama_4_scaling_beta": 0.1,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
    },
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8}
    | {"indexer_budget": 8, "indexer_compress_ratio": 2},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"is_decoder": True, "axial_pos_shape": (16, 16), "axial_pos_embds_dim": (16, 16)}
    | {"attn_layers": ("local", "lsh"), "num_buckets": 4, "attention_head_size": 8},
    "xlm": {"causal": True, "use_lang_emb": False},
    "xlstm": {"mlstm_round_up_to_multiple_of": 8, "ffn_round_up_to_multiple_of": 8},
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"mamba_headdim": 8, "n_mamba_heads": 8},
    "zaya": {"num_experts_per_tok": 1},
}


def tiny_config(model_type: str, **overrides: Any) -> PreTrainedConfig:
    """A configuration of that type for a model that is made in milliseconds; `overrides` go to it."""
    kind = CONFIG_MAPPING[model_type]
    return kind(**{**_small(kind()), **overrides})


def _small(config: PreTrainedConfig) -> dict[str, Any]:
    """The settings of a small one: sizes by name, and of the layers one of each kind."""
    given = vars(config)
    settings = {key: value for key, value in _SIZES.items() if key in given}
    settings["tie_word_embeddings"] = False
    settings["eos_token_id"] = None  # texts do not end
    for key in ("bos_token_id", "pad_token_id"):
        settings[key] = None if given.get(key) is None else 0
    if "kv_lora_rank" in given:  # the heads of compressed keys are as many as those of queries
        settings["num_key_value_heads"] = settings["num_attention_heads"]
    if "use_sliding_window" in given:
        settings["use_sliding_window"] = True
    settings |= _one_of_each(given)
    for name in type(config).sub_configs:
        if isinstance(part := given.get(name), PreTrainedConfig):
            settings[name] = _small(part)
    for key, value in _EXCEPTIONS.get(config.model_type, {}).items():
        inner = settings.get(key)
        settings[key] = {**inner, **value} if isinstance(inner, dict) and isinstance(value, dict) else value
    return settings


def _one_of_each(given: dict[str, Any]) -> dict[str, Any]:
    """The lists that have an entry for each layer, cut to layers that differ in one of them."""
    depth = next((given[key] for key in _DEPTHS if key in given), None)
    lists = {
        key: list(value)
        for key, value in given.items()
        if isinstance(value, (list, tuple)) and len(value) == depth and key not in _NUMBERS
    }
    if not lists:
        return {}
    if "sliding_window" in given and set(lists.get("layer_types", ())) == {"full_attention"}:
        lists["layer_types"] = ["sliding_attention", *lists["layer_types"][1:]]
    first = {
        repr(entries): layer
        for layer, entries in reversed(list(enumerate(zip(*lists.values(), strict=True))))
    }
    layers = sorted(first.values()) if len(first) > 1 else [0, 1]
    cut = {key: [_SIZES.get(key, value[layer]) for layer in layers] for key, value in lists.items()}
    return cut | {key: len(layers) for key in _DEPTHS if key in given}
