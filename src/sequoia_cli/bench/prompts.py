"""A target as far as engines have to know it before one is loaded: ids of prompts, ends of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sequoia_cli.engine.loading.checkpoint import describe, tokenizer_of
from sequoia_cli.engine.loading.end_of_text import end_of_text_ids
from sequoia_cli.engine.loading.feature import is_feature_folder
from sequoia_cli.engine.loading.sources import fetch_description, locate
from sequoia_cli.engine.model import context_limit
from sequoia_cli.engine.text import encode_prompt
from sequoia_cli.measure.prompts import Prompt


@dataclass(frozen=True)
class Described:
    """A target without its weights. `folder` is what other libraries load: a path, or its name on the hub."""

    folder: str
    tokenizer: Any
    eos_ids: tuple[int, ...]
    context_limit: int

    def encode(self, prompts: Sequence[Prompt], *, raw: bool = False) -> tuple[tuple[int, ...], ...]:
        """The ids of the prompts. Raises `BadInput` naming one that cannot be encoded."""
        ids = []
        for prompt in prompts:
            with prompt.named_in_errors():
                ids.append(tuple(encode_prompt(self.tokenizer, prompt.content, raw=raw)))
        return tuple(ids)


def assistant_context(draft: str, trust_remote_code: bool) -> int | None:
    """Positions of a draft that assists by itself; None for one that is no model of its own.

    Raises `BadInput` where there is no such draft.
    """
    source = locate("draft", draft)
    folder = fetch_description(source, lambda line: None)
    if is_feature_folder(folder):
        return None
    return context_limit(describe(source, folder, trust_remote_code).config.get_text_config())


def describe_target(
    target: str, trust_remote_code: bool, announce: Callable[[str], None] = lambda line: None
) -> Described:
    """Read what a target's folder says of it. Raises `BadInput` for one that is no target."""
    source = locate("target", target)
    folder = fetch_description(source, announce)
    checkpoint = describe(source, folder, trust_remote_code)
    tokenizer = tokenizer_of(checkpoint)
    eos_ids, _ = end_of_text_ids(checkpoint, tokenizer)
    name = target if source.kind == "hub" else str(folder)
    return Described(name, tokenizer, tuple(eos_ids), context_limit(checkpoint.config.get_text_config()))
