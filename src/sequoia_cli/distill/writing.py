"""The target writes texts, many side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from sequoia_cli.distill.corpus import Corpus, Text
from sequoia_cli.distill.scripts import Given, Script, Written
from sequoia_cli.engine.draw import draw_rows
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import SequoiaError


def write_corpus(
    target: LanguageModel,
    scripts: Iterator[Script],
    corpus: Corpus,
    tokens: int,
    *,
    rows: int,
    length: int,
    seed: int,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> None:
    """Add texts to `corpus` until it has `tokens` tokens, `rows` of them at a time, none above `length`.

    Each shard holds what one pass over an empty cache wrote and has random numbers of its own, so a run that
    was interrupted loses the last pass only. `on_tokens` is told how many tokens came, as they come.
    """
    while corpus.tokens < tokens:
        generator = torch.Generator().manual_seed((seed + corpus.shards) % (1 << 64))
        corpus.add(write(target, scripts, rows, length, generator, on_tokens))


@torch.inference_mode()
def write(
    target: LanguageModel,
    scripts: Iterator[Script],
    rows: int,
    length: int,
    generator: torch.Generator,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> list[Text]:
    """`rows` texts side by side for `length` forwards; where one ends the next begins in its row.

    Every row of the cache is as long as the pass, and the mask hides from a text what stood there before it.
    Texts that the end of the pass cuts short count too. Raises `SequoiaError` for logits that are no numbers.
    """
    device = target.device
    cache = target.new_cache(length)
    mask = torch.ones(rows, length, dtype=torch.long, device=device)
    states: Tensor | None = None
    texts: list[Text] = []
    writers = [_Writer(next(scripts), start=0) for _ in range(rows)]

    def finish(row: int, end: int) -> None:
        writer = writers[row]
        assert states is not None
        if end - writer.start > 1:  # one token alone has nothing to learn from
            hidden = states[row, writer.start : end].cpu()
            texts.append(Text(torch.tensor(writer.tokens), hidden, torch.tensor(writer.answer)))

    for now in range(length):
        tokens = torch.tensor([writer.tokens[-1] for writer in writers], device=device)
        positions = torch.tensor([now - writer.start for writer in writers], device=device)
        output = target.forward_rows(tokens, positions, cache, mask[:, : now + 1])
        assert output.hidden is not None
        if states is None:
            states = output.hidden.new_empty(rows, length, output.hidden.shape[-1])
        states[:, now] = output.hidden
        temperatures = torch.tensor([writer.temperature for writer in writers], device=device)
        uniforms = torch.rand(rows, generator=generator, dtype=torch.float64).to(device)
        chosen = _sample(output.logits, temperatures, uniforms).tolist()
        for row, writer in enumerate(writers):
            if not writer.go_on(chosen[row]):
                finish(row, now + 1)
                writers[row] = _Writer(next(scripts), start=now + 1)
                mask[row, : now + 1] = 0
        on_tokens(rows)
    for row, writer in enumerate(writers):
        del writer.tokens[length - writer.start :], writer.answer[length - writer.start :]
        finish(row, length)
    return texts


class _Writer:
    """A text on its way through its script; `tokens` ends with the one to run next."""

    def __init__(self, script: Script, start: int) -> None:
        self.start = start
        self.tokens: list[int] = []
        self.answer: list[bool] = []
        self._parts = iter(script)
        self._part: Given | Written | None = None
        self._count = 0
        self._next_part()
        assert isinstance(self._part, Given)
        self.go_on(0)

    @property
    def temperature(self) -> float:
        """Of the token that comes next, where the target is to choose it."""
        return self._part.temperature if isinstance(self._part, Written) else 0.0

    def go_on(self, chosen: int) -> bool:
        """Add the next token: a given one, or what the target has chosen. False where the text has ended."""
        if self._part is None:
            return False
        given = isinstance(self._part, Given)
        self.tokens.append(self._queue.pop(0) if given else chosen)
        self.answer.append(isinstance(self._part, Written) and self._part.answer)
        self._count += 1
        # At once, so that `temperature` is that of the part which the next token belongs to.
        while self._is_over():
            self._next_part()
        return True

    def _is_over(self) -> bool:
        if isinstance(self._part, Written):
            return self._count >= self._part.most or self._has_end()
        return self._part is not None and not self._queue

    def _has_end(self) -> bool:
        ends = self._part.ends if isinstance(self._part, Written) else ()
        return self._count > 0 and self.tokens[-1] in ends

    def _next_part(self) -> None:
        end = self.tokens[-1] if self._has_end() else -1
        self._part, self._count = next(self._parts, None), 0
        self._queue = list(self._part.tokens) if isinstance(self._part, Given) else []
        if end in self._queue:
            del self._queue[: self._queue.index(end) + 1]


def _sample(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """(rows,) tokens of (rows, vocabulary) logits, each at its own temperature; 0 takes the most probable."""
    best = logits.max(-1)
    if not torch.isfinite(best.values).all():
        raise SequoiaError(
            "the target's logits are not numbers", hint="its weights may be damaged, or try --dtype float32"
        )
    scaled = (logits - best.values[:, None]).float() / temperatures.clamp(min=1e-3)[:, None]
    return torch.where(temperatures > 0, draw_rows(scaled.softmax(-1), uniforms), best.indices)
