"""Checks of a prompt's ids and of the end-of-text ids against transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel


def reference_ids(tokenizer: Any, content: str | Sequence[Mapping[str, str]], *, raw: bool) -> list[int]:
    """A prompt's ids by transformers: its chat is rendered to text, and the text is encoded.

    Without a template, or if `raw`, the tokenizer's plain encoding, special tokens included.
    """
    if tokenizer.chat_template and not raw:
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else list(content)
        rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"])
    text = content if isinstance(content, str) else content[0]["content"]
    return list(tokenizer(text, verbose=False)["input_ids"])


def wrong_prompt(
    tokenizer: Any, content: str | Sequence[Mapping[str, str]], ids: Sequence[int], *, raw: bool
) -> str | None:
    """An error in a prompt's ids, None if they are transformers'. An empty prompt is the BOS token alone."""
    expected = reference_ids(tokenizer, content, raw=raw) or [tokenizer.bos_token_id]
    if list(ids) == expected:
        return None
    pairs = zip(ids, expected, strict=False)
    place = next((at for at, (own, other) in enumerate(pairs) if own != other), min(len(ids), len(expected)))
    return f"its ids differ from those of transformers at {place} ({len(ids)} ids, expected {len(expected)})"


def wrong_eos_ids(model: PreTrainedModel, eos_ids: Sequence[int]) -> str | None:
    """An error in the ids that end a text, None if they are those of the generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    if configured is None:  # the config does not set it
        return None
    expected = {configured} if isinstance(configured, int) else set(configured)
    if set(eos_ids) == expected:
        return None
    return f"a text ends at ids {sorted(eos_ids)}; the target's generation config has {sorted(expected)}"
