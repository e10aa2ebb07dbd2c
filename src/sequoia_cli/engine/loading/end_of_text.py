"""Where a text ends: the ids that stop generation."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from sequoia_cli.engine.loading.checkpoint import Checkpoint
from sequoia_cli.engine.loading.foreign import read_json


def end_of_text_ids(
    checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase
) -> tuple[tuple[int, ...], list[str]]:
    """The ids that end a text, and notes on those ignored.

    They are all ids that generation_config.json names, none where it says null; where it does not say, those
    of config.json, else the tokenizer's. No id is special by itself: 0 may be an ordinary token.
    """
    generation = checkpoint.folder / "generation_config.json"
    said = read_json(checkpoint.source, generation) if generation.is_file() else {}
    if "eos_token_id" in said:
        found = _as_list(said["eos_token_id"])
    else:
        config = checkpoint.config
        found = _as_list(getattr(config, "eos_token_id", None))
        found = found or _as_list(getattr(config.get_text_config(), "eos_token_id", None))
        found = found or _as_list(tokenizer.eos_token_id)
    usable = [id for id in found if type(id) is int and 0 <= id < checkpoint.vocabulary]
    ignored = [id for id in found if id not in usable]
    notes = [
        f"{checkpoint.source} names {id!r} as an end of text, which is no id that it has" for id in ignored
    ]
    return tuple(dict.fromkeys(usable)), notes


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
