"""Texts that a target has written, and what its draft proposes along them.

Trees of the draft's most probable tokens, and a token accepted where the target's own is among them: that is
the greedy rule, and above temperature 0 the `naive` one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.target import Target
from sequoia_cli.engine.warp import Sampling, probabilities


class Written:
    """The target's own text after a prompt, with the states that the draft asks for."""

    def __init__(
        self,
        target: Target,
        draft: Draft,
        prompt: Sequence[int],
        tokens: int,
        eos_ids: Sequence[int],
        temperature: float = 0.0,
        category: str | None = None,
    ) -> None:
        self.category = category
        sampling, generator = Sampling(temperature), torch.Generator().manual_seed(len(prompt))
        self.prompt, self.ids = torch.tensor(prompt), [prompt[-1]]
        text, self.before = target.open(self.prompt[:-1], len(prompt) + tokens + 1, draft.taps)
        rows: list[tuple[Tensor, ...]] = []
        for _ in range(tokens):
            output = text.run((-1,), torch.tensor([self.ids[-1]]), taps=draft.taps)
            text.keep((0,))
            rows.append(tuple(states.clone() for states in output.hidden))
            chances = probabilities(output.logits[:1], sampling)[0]
            self.ids.append(int(torch.multinomial(chances, 1, generator=generator)))
            if self.ids[-1] in eos_ids:
                break
        self.states = [torch.cat(states) for states in zip(*rows, strict=True)]


class ReplayedText:
    """See `Text`: the draft's proposals of `ranks` children along a written text."""

    def __init__(self, draft: Draft, written: Written, ranks: int) -> None:
        self.draft, self.written, self.ranks, self.place = draft, written, ranks, 0
        self._forget()

    def _begin(self) -> None:
        # Here, not where it is made: one draft goes along many texts, one after the other.
        if self.place == 0 and not self._tokens:
            written = self.written
            self.draft.start(written.prompt, len(written.prompt) + len(written.ids) + 512, written.before)

    def _forget(self) -> None:
        self._tokens: list[list[int]] = []  # of the children of each node that was run
        self._depths: list[int | None] = []  # None off the text

    @property
    def left(self) -> int:
        """See `Text`."""
        return len(self.written.ids) - 1 - self.place

    @torch.inference_mode()
    def extend(self, nodes: Sequence[tuple[int, int]]) -> tuple[list[list[float]], list[int | None]]:
        """See `Text`."""
        self._begin()
        ids = self.written.ids
        tokens, winners = [], []
        for parent, rank in nodes:
            token = self._tokens[parent][rank] if parent >= 0 else ids[self.place]
            above = self._depths[parent] if parent >= 0 else -1
            place = self.place + (above or 0) + 1
            on_text = parent < 0 or (above is not None and place < len(ids) and token == ids[place])
            self._depths.append(above + 1 if on_text and above is not None else None)
            tokens.append(token)
        proposals = self.draft.extend([parent for parent, _ in nodes], torch.tensor(tokens))
        children = proposals.top([self.ranks] * len(nodes), int(1e9))
        for depth, row in zip(self._depths[-len(nodes) :], children, strict=True):
            self._tokens.append(row.tolist())
            place = self.place + (depth or 0) + 1
            right = ids[place] if depth is not None and place < len(ids) else None
            winners.append(self._tokens[-1].index(right) if right in self._tokens[-1] else None)
        return proposals.largest(self.ranks).tolist(), winners

    @torch.inference_mode()
    def commit(self, ranks: Sequence[int]) -> None:
        """See `Text`."""
        self._begin()
        ids, first = self.written.ids, self.place
        new = ids[first + 1 : first + len(ranks) + 2]
        # The nodes that were run on the text, in order of depth.
        path = [node for node, depth in enumerate(self._depths) if depth is not None and depth <= len(ranks)]
        states = [rows[first : first + len(new)] for rows in self.written.states]
        self.draft.commit(path, new, states)
        self.place += len(new)
        self._forget()
