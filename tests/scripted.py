"""Models without weights: what follows a token is a row of a table, so that laws are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

from sequoia_cli.engine.model import Output
from sequoia_cli.engine.warp import probabilities

Table = Sequence[Sequence[float]]


class ScriptedTarget:
    """A target whose law behind a token is that token's row of `table`, whatever came before."""

    device, dtype = torch.device("cpu"), torch.float64
    recorder = None

    def __init__(self, table: Table, context_limit: int = 1000) -> None:
        self._logits = torch.tensor(table, dtype=torch.float64).log()
        self.vocabulary = len(table)
        self.context_limit = context_limit

    def new_cache(self, capacity):
        cache = SimpleNamespace(length=0)
        cache.keep = lambda prefix, path: setattr(cache, "length", prefix + len(path))
        cache.forget = lambda prefix: setattr(cache, "length", prefix)
        return cache

    def masks(self, block, capacity):
        return None

    def prefill(self, tokens, cache, *, hidden=False):
        cache.length += len(tokens)
        return _states(tokens) if hidden and len(tokens) else None

    def forward(self, tokens, positions, cache, masks, *, hidden=False):
        cache.length += len(tokens)
        return Output(self._logits[tokens], _states(tokens) if hidden else None)


def _states(tokens: Tensor) -> Tensor:
    """What stands for a last hidden state: the token it is behind."""
    return tokens[:, None].to(torch.float64)


class ScriptedDraft:
    """A draft that proposes behind a token from that token's row of `table`."""

    reads_hidden = False
    ids = None
    dtype = torch.float64

    def __init__(self, table: Table, context_limit: int = 1000) -> None:
        self._logits = torch.tensor(table, dtype=torch.float64).log()
        self.context_limit = context_limit

    def start(self, prompt, capacity, hidden):
        pass

    def expand(self, layout, level, tokens, sampling) -> Tensor:
        return probabilities(self._logits[tokens], sampling)

    def commit(self, layout, path, tokens, hidden):
        pass


class LeveledDraft(ScriptedDraft):
    """A draft with a table for each level (the last for all deeper ones), which counts on what it is given.

    With `reads_hidden` those are the target's states behind the prompt and behind each accepted token.
    """

    def __init__(self, tables: Sequence[Table], *, reads_hidden: bool = True) -> None:
        super().__init__(tables[0])
        self._levels = [ScriptedDraft(table) for table in tables]
        self.reads_hidden = reads_hidden

    def start(self, prompt, capacity, hidden):
        self._root, self._next_level = int(prompt[-1]), 0
        self._check(hidden, prompt[:-1].tolist())

    def expand(self, layout, level, tokens, sampling) -> Tensor:
        assert level == self._next_level and len(tokens) == len(layout.expanded[level])
        assert level > 0 or tokens.tolist() == [self._root]
        self._next_level += 1
        return self._levels[min(level, len(self._levels) - 1)].expand(layout, level, tokens, sampling)

    def commit(self, layout, path, tokens, hidden):
        self._check(hidden, [self._root, *tokens[:-1]])
        self._root, self._next_level = tokens[-1], 0

    def _check(self, hidden, behind):
        if self.reads_hidden and behind:
            assert hidden[:, 0].tolist() == behind


def counting_up(size: int) -> list[list[float]]:
    """The table of a target that writes 1, 2, 3, ... behind 0, and the last id for ever."""
    return [[float(column == min(row + 1, size - 1)) for column in range(size)] for row in range(size)]


def ranking(size: int, places: Sequence[int | None], ranks: int) -> list[list[float]]:
    """The table of a draft for `counting_up` that ranks the right token at `places[token]`, from 0.

    None leaves it out of the first `ranks`, and so does a token without a place.
    """
    table = []
    for token in range(size):
        right = min(token + 1, size - 1)
        others = [other for other in range(size) if other != right]
        place = places[token] if token < len(places) else None
        others.insert(ranks if place is None else place, right)
        weights = {other: 2.0 ** -(position + 1) for position, other in enumerate(others)}
        table.append([weights[other] / sum(weights.values()) for other in range(size)])
    return table
