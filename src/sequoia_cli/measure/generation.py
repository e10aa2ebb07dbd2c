"""Generating one text: runs the decoding loop and turns its steps into text as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.step import CONTEXT, LENGTH, STOP, Step
from sequoia_cli.engine.text import TextStream
from sequoia_cli.errors import SequoiaError
from sequoia_cli.measure.statistics import Speculation


@dataclass
class Generation:
    """A generated text.

    `finish` is `stop` or `length`, None until the text is finished; `context_reached` is true if the context
    was full rather than the budget used up. `seconds` is wall time from prompt to end, `first_token_seconds`
    to the end of the first step.
    """

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    context_reached: bool = False
    seconds: float = 0.0
    first_token_seconds: float | None = None
    speculation: Speculation = field(default_factory=Speculation)


def generate(
    decoder: Decoder,
    tokenizer: Any,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    eos_ids: Sequence[int] = (),
    stop: Sequence[str] = (),
    seed: int = 0,
    on_text: Callable[[str], None] = lambda piece: None,
    result: Generation | None = None,
) -> Generation:
    """Decode one prompt. `on_text` gets each piece of text as soon as it can no longer change.

    The text depends only on prompt, seed, models and tree, not on what ran before. A given `result` is filled
    as the text grows, so that it can be used after an interruption.
    """
    result = result if result is not None else Generation(len(prompt))
    stream = TextStream(tokenizer, stop)
    generator = torch.Generator().manual_seed(seed)
    steps: list[Step] = []
    began, ended = time.perf_counter(), False
    try:
        for step in decoder.decode(prompt, max_new_tokens, eos_ids=eos_ids, generator=generator):
            steps.append(step)
            result.token_ids += step.tokens
            result.speculation.add(step)
            piece = stream.push(step.tokens)
            result.text = stream.text
            result.seconds = time.perf_counter() - began
            result.first_token_seconds = result.first_token_seconds or result.seconds
            on_text(piece)
            if stream.stopped:
                break
            ended = step.finish == STOP
            result.context_reached = step.finish == CONTEXT
    except SequoiaError:  # emit the text held back so far
        on_text(stream.finish())
        result.text = stream.text
        raise
    piece = stream.finish()
    if stream.stopped:
        # The stop text was complete some tokens, or even steps, before the stream could be certain of it.
        result.token_ids = result.token_ids[: stream.token_count]
        result.speculation = Speculation.of(steps, stream.token_count)
        result.context_reached = False
    result.text = stream.text
    on_text(piece)
    result.finish = STOP if ended or stream.stopped else LENGTH
    return result
