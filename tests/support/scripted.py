"""Models without weights: what follows a token is a row of a table, so distributions are known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sequoia_cli.engine.proposals import Proposals
from sequoia_cli.engine.target import LAST, Output

Table = Sequence[Sequence[float]]


class ScriptedTarget:
    """A target whose distribution after a token is that token's row of `table`, whatever came before."""

    device, dtype = torch.device("cpu"), torch.float64
    recorder = None

    def __init__(self, table: Table, context_limit: int = 1000) -> None:
        self.logits = torch.tensor(table, dtype=torch.float64).log()
        self.vocabulary = len(table)
        self.context_limit = context_limit

    def open(self, prompt, capacity, taps=()):
        return ScriptedText(self, len(prompt)), _states(prompt, taps) if len(prompt) else ()


class ScriptedText:
    """A text of it, which checks that nodes come after their parents."""

    def __init__(self, target: ScriptedTarget, length: int) -> None:
        self._target, self.length, self._nodes = target, length, 0

    def run(self, parents, tokens, *, taps=()):
        assert len(parents) == len(tokens)
        assert all(-1 <= parent < self._nodes + row for row, parent in enumerate(parents))
        self._nodes += len(parents)
        return Output(self._target.logits[tokens], _states(tokens, taps))

    def rewind(self, length):
        self.length, self._nodes = length, 0

    def keep(self, path):
        assert all(node < self._nodes for node in path)
        self.length, self._nodes = self.length + len(path), 0


def _states(tokens: Tensor, taps: Sequence[int]) -> tuple[Tensor, ...]:
    """What stands for hidden states: the token that they follow."""
    return tuple(tokens[:, None].to(torch.float64) for _ in taps)


class ScriptedDraft:
    """A draft that proposes after a token from that token's row of `table`."""

    taps: tuple[int, ...] = ()
    dtype = torch.float64

    def __init__(self, table: Table, context_limit: int = 1000, ids: Tensor | None = None) -> None:
        """`ids` are the target's ids of the columns of the table."""
        self.logits = torch.tensor(table, dtype=torch.float64).log()
        self.context_limit, self.ids = context_limit, ids

    def start(self, prompt, capacity, hidden):
        pass

    def extend(self, parents, tokens) -> Proposals:
        return Proposals(self.logits[tokens], self.ids)

    def commit(self, path, tokens, hidden):
        pass


class LeveledDraft(ScriptedDraft):
    """A draft with a table for each level (the last for all deeper ones), which counts on what it is given.

    With taps those are the target's states after the prompt and after each accepted token.
    """

    def __init__(self, tables: Sequence[Table], *, taps: tuple[int, ...] = LAST) -> None:
        super().__init__(tables[0])
        self._levels = [ScriptedDraft(table) for table in tables]
        self.taps = taps

    def start(self, prompt, capacity, hidden):
        self._root, self._depths = int(prompt[-1]), []
        self._check(hidden, prompt[:-1].tolist())

    def extend(self, parents, tokens) -> Proposals:
        assert len(parents) == len(tokens)
        depths = [self._depths[parent] + 1 if parent >= 0 else 0 for parent in parents]
        assert len(set(depths)) == 1  # level by level
        assert depths[0] > 0 or (tokens.tolist() == [self._root] and not self._depths)
        self._depths += depths
        return self._levels[min(depths[0], len(self._levels) - 1)].extend(parents, tokens)

    def commit(self, path, tokens, hidden):
        assert all(node < len(self._depths) for node in path)
        self._check(hidden, [self._root, *tokens[:-1]])
        self._root, self._depths = tokens[-1], []

    def _check(self, hidden, before):
        if self.taps and before:
            (states,) = hidden
            assert states[:, 0].tolist() == before


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
