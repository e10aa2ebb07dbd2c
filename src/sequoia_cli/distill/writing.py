"""The target writes texts, many side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from sequoia_cli.core.seeds import mixed
from sequoia_cli.distill.corpus import Corpus, Text
from sequoia_cli.distill.scripts import Given, Script, Written
from sequoia_cli.engine.draw import draw_rows
from sequoia_cli.engine.finite import not_finite
from sequoia_cli.engine.model import LanguageModel


def write_corpus(
    target: LanguageModel,
    scripts: Callable[[int], Iterator[Script]],
    corpus: Corpus,
    tokens: int,
    *,
    rows: int,
    length: int,
    seed: int,
    on_tokens: Callable[[int], None] = lambda count: None,
    on_shard: Callable[[], None] = lambda: None,
) -> None:
    """Add texts to `corpus` until it has `tokens` tokens or there are no more scripts.

    `scripts` gives those that come behind a number of texts. `rows` texts are written at a time, fewer where
    that is enough, none above `length` tokens. Each shard holds what one pass over an empty cache wrote; its
    scripts and random numbers follow from what was written before it, so a run that was interrupted loses the
    last pass only and goes on to the texts of a whole one. `on_tokens` is told how many tokens came, as they
    come, and `on_shard` that a shard is on disk.
    """
    while corpus.tokens < tokens:
        generator = torch.Generator().manual_seed(mixed(seed, corpus.shards))
        enough = min(rows, -(-(tokens - corpus.tokens) // length))
        texts = write(target, scripts(corpus.count), enough, length, generator, on_tokens)
        if not texts:
            return
        corpus.add(texts)
        on_shard()


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
    Texts that the end of the pass cuts short count too; those of one token, which are the last to begin, do
    not. They come in the order they began in, so that the first are as long as any; none where there are no
    scripts. Raises `SequoiaError` for logits that are not finite.
    """
    writers: list[_Writer | None] = [_Writer(script, start=0) for script in islice(scripts, rows)]
    rows = len(writers)
    device = target.device
    cache = target.new_cache(length)
    mask = torch.ones(rows, length, dtype=torch.long, device=device)
    states: Tensor | None = None
    texts: list[tuple[int, Text]] = []

    def finish(row: int, writer: _Writer, end: int) -> None:
        assert states is not None
        if end - writer.start > 1:  # one token alone has nothing to learn from
            hidden = states[row, writer.start : end].cpu()
            text = Text(torch.tensor(writer.tokens), hidden, torch.tensor(writer.answer))
            texts.append((writer.start, text))

    for now in range(length):
        if not any(writers):
            break
        # A row that has no more scripts runs a token that nothing looks at.
        tokens = torch.tensor([writer.tokens[-1] if writer else 0 for writer in writers], device=device)
        positions = torch.tensor([now - writer.start if writer else 0 for writer in writers], device=device)
        output = target.forward_rows(tokens, positions, cache, mask[:, : now + 1])
        (last,) = output.hidden
        if states is None:
            states = last.new_empty(rows, length, last.shape[-1])
        states[:, now] = last
        temperatures = torch.tensor([w.temperature if w else 0.0 for w in writers], device=device)
        uniforms = torch.rand(rows, generator=generator, dtype=torch.float64).to(device)
        chosen = _sample(output.logits, temperatures, uniforms).tolist()
        on_tokens(sum(writer is not None for writer in writers))
        for row, writer in enumerate(writers):
            if writer and not writer.go_on(chosen[row]):
                finish(row, writer, now + 1)
                script = next(scripts, None)
                writers[row] = _Writer(script, start=now + 1) if script is not None else None
                mask[row, : now + 1] = 0
    for row, writer in enumerate(writers):
        if writer:
            del writer.tokens[length - writer.start :], writer.answer[length - writer.start :]
            finish(row, writer, length)
    return [text for _, text in sorted(texts, key=lambda pair: pair[0])]


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
        raise not_finite("target", logits.dtype, "a token that it writes")
    scaled = (logits - best.values[:, None]).float() / temperatures.clamp(min=1e-3)[:, None]
    return torch.where(temperatures > 0, draw_rows(scaled.softmax(-1), uniforms), best.indices)
