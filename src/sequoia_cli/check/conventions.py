"""What surrounds the forward: a prompt's ids and the ids that end a text, by transformers' own reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel


def own_ids(tokenizer: Any, content: str | Sequence[Mapping[str, str]], *, raw: bool) -> list[int]:
    """A prompt's ids: its chat rendered as text by transformers, and that text encoded.

    Without a template, or `raw`, it is the tokenizer's plain encoding, special tokens included.
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
    """What is wrong with a prompt's ids, if anything is. An empty prompt may be the BOS alone."""
    expected = own_ids(tokenizer, content, raw=raw) or [tokenizer.bos_token_id]
    if list(ids) == expected:
        return None
    pairs = zip(ids, expected, strict=False)
    place = next((at for at, (own, other) in enumerate(pairs) if own != other), min(len(ids), len(expected)))
    return f"its ids differ from those of transformers at {place} ({len(ids)} ids, expected {len(expected)})"


def wrong_eos_ids(model: PreTrainedModel, eos_ids: Sequence[int]) -> str | None:
    """What is wrong with the ids that end a text: `generate` ends at those of the generation config."""
    configured = model.generation_config.eos_token_id if model.generation_config else None
    if configured is None:  # nothing is said of it there
        return None
    expected = {configured} if isinstance(configured, int) else set(configured)
    if set(eos_ids) == expected:
        return None
    return f"a text ends at ids {sorted(eos_ids)}; the target's generation config has {sorted(expected)}"
