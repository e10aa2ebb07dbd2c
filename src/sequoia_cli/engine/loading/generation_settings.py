"""What a checkpoint's generation_config.json asks for that is not done here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sequoia_cli.core.artifact import shown

#: Keys that leave the distribution of the text alone, or that have an option or a place of their own here.
_HARMLESS = frozenset(
    (
        # options of ours, or the caller's
        *("do_sample", "temperature", "top_k", "top_p", "max_length", "max_new_tokens"),
        # ids, read elsewhere
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
        # how it is computed and what is returned beside it
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache"),
        *("compile_config", "disable_compile", "prefill_chunk_size", "continuous_batching_config"),
        *("low_memory", "output_attentions", "output_hidden_states", "output_logits", "output_scores"),
        "return_dict_in_generate",
        # of beam search alone, which num_beams turns on
        *("early_stopping", "length_penalty", "diversity_penalty", "num_beam_groups"),
        # every distribution is normalised here, and not-a-number is an error
        *("renormalize_logits", "remove_invalid_values"),
        # speculation of transformers' own, which keeps the distribution
        *("is_assistant", "assistant_early_exit", "assistant_ensemble_weight", "speculation_type", "use_mtp"),
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("assistant_lookbehind", "target_lookbehind", "prompt_lookup_num_tokens"),
        "max_matching_ngram_size",
        # the encoder's
        "encoder_no_repeat_ngram_size",
        # where the file comes from
        "transformers_version",
    )
)

#: Keys whose value is "off" at 1. All keys are off where they are null, false, 0 or empty.
_OFF_AT_ONE = frozenset(
    (
        *("repetition_penalty", "encoder_repetition_penalty", "guidance_scale", "typical_p"),
        *("num_beams", "num_return_sequences"),
    )
)

#: Settings that a note lists, the others being counted.
_MOST = 6


def not_applied(settings: Mapping[str, Any]) -> str | None:
    """The settings that may change the text and are ignored here, as key=value; None without any.

    Whatever is not known to be harmless counts: a list of harmful keys would miss those of the next version.
    """
    found = [f"{key}={shown(value)}" for key, value in sorted(settings.items()) if _asks(key, value)]
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return ", ".join(found[:_MOST]) + more if found else None


def _asks(key: str, value: Any) -> bool:
    if key.startswith("_"):  # the library's own
        return False
    return bool(value) and key not in _HARMLESS and not (value == 1 and key in _OFF_AT_ONE)
