"""The target writes the texts of a corpus, many side by side in a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor

from sequoia_cli.core.seeds import mixed
from sequoia_cli.distill.corpus import Corpus, Text
from sequoia_cli.distill.scripts import GeneratedPart, GivenPart, Script
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

    `scripts` maps the number of texts written to the scripts that follow. Up to `rows` texts are written at a
    time, each of at most `length` tokens. A shard holds the texts of one pass over an empty cache. Its
    scripts and random numbers depend only on the shards before it, so an interrupted run loses only its last
    pass and, resumed, writes the same texts as an uninterrupted one. `on_tokens` gets the number of new
    tokens; `on_shard` is called when a shard is on disk.
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
    """Write texts in `rows` rows for `length` forwards; when a text ends, the next one starts in its row.

    The mask hides earlier texts of the same row. Texts cut short by the end of the pass are kept, except
    those of one token. The texts are in the order of their starts, so the first ones are not shorter than
    usual. Empty if there are no scripts. Raises `SequoiaError` for logits that are not finite.
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
        if end - writer.start > 1:  # a single token predicts nothing
            hidden = states[row, writer.start : end].cpu()
            text = Text(torch.tensor(writer.tokens), hidden, torch.tensor(writer.answer))
            texts.append((writer.start, text))

    for now in range(length):
        if not any(writers):
            break
        # A row without a script runs a token that is ignored.
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
            if writer and not writer.add_token(chosen[row]):
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
    """A text being written by its script. The last of `tokens` is the one to run next."""

    def __init__(self, script: Script, start: int) -> None:
        self.start = start
        self.tokens: list[int] = []
        self.answer: list[bool] = []
        self._parts = iter(script)
        self._part: GivenPart | GeneratedPart | None = None
        self._count = 0
        self._next_part()
        assert isinstance(self._part, GivenPart)
        self.add_token(0)

    @property
    def temperature(self) -> float:
        """The sampling temperature of the next token; 0 if it is given."""
        return self._part.temperature if isinstance(self._part, GeneratedPart) else 0.0

    def add_token(self, chosen: int) -> bool:
        """Add the next token: the script's if given, else `chosen`. Returns False if the text has ended."""
        if self._part is None:
            return False
        given = isinstance(self._part, GivenPart)
        self.tokens.append(self._queue.pop(0) if given else chosen)
        self.answer.append(isinstance(self._part, GeneratedPart) and self._part.answer)
        self._count += 1
        # Now, so that `temperature` is already the one of the next token's part.
        while self._is_over():
            self._next_part()
        return True

    def _is_over(self) -> bool:
        if isinstance(self._part, GeneratedPart):
            return self._count >= self._part.most or self._has_end()
        return self._part is not None and not self._queue

    def _has_end(self) -> bool:
        ends = self._part.ends if isinstance(self._part, GeneratedPart) else ()
        return self._count > 0 and self.tokens[-1] in ends

    def _next_part(self) -> None:
        end = self.tokens[-1] if self._has_end() else -1
        self._part, self._count = next(self._parts, None), 0
        self._queue = list(self._part.tokens) if isinstance(self._part, GivenPart) else []
        if end in self._queue:
            del self._queue[: self._queue.index(end) + 1]


def _sample(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """Sample (rows,) tokens from (rows, vocabulary) logits, each row at its own temperature; 0 is greedy."""
    best = logits.max(-1)
    if not torch.isfinite(best.values).all():
        raise not_finite("target", logits.dtype, "a token that it writes")
    scaled = (logits - best.values[:, None]).float() / temperatures.clamp(min=1e-3)[:, None]
    return torch.where(temperatures > 0, draw_rows(scaled.softmax(-1), uniforms), best.indices)
