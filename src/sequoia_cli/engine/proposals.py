"""What a draft proposes after some nodes, and children drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.draw import Noise, draw_children, draw_independently, top_children
from sequoia_cli.engine.finite import finite_rows
from sequoia_cli.engine.warp import probabilities

#: Children of each of (rows, columns) probabilities, by counts and noise: a function of `engine/draw.py`.
Draw = Callable[[Tensor, Sequence[int], Noise], list[Tensor]]

#: Mass that drawing has to leave among a draft's own columns; with less, all ids of the target take part.
_LEFT = 1e-6


class Proposals(NamedTuple):
    """Logits (nodes, columns) after each node, and the target's ids of the columns.

    `ids` is None where they are the ids from 0, (columns,) where all nodes have the same, and (nodes,
    columns) where each has its own. What has no column is never proposed.
    """

    logits: Tensor
    ids: Tensor | None = None

    @property
    def finite(self) -> Tensor:
        """(nodes,) booleans: false where the largest logit is not finite."""
        return self.logits.amax(-1).isfinite()

    def probabilities(self, sampling: Sampling) -> Proposed:
        """The distributions to draw from."""
        return Proposed(probabilities(self.logits, sampling), self.ids)

    def largest(self, most: int) -> Tensor:
        """(nodes, most) largest probabilities after each node, falling; at most one for each column."""
        logits = self.logits.float()
        return (logits.topk(min(most, logits.shape[-1])).values - logits.logsumexp(-1, keepdim=True)).exp()

    def top(self, counts: Sequence[int], vocabulary: int) -> list[Tensor]:
        """The most probable ids after each node, in order.

        Where more are asked for than there are columns, other ids of the target's `vocabulary` follow.
        """
        if max(counts) > self.logits.shape[-1]:
            return top_children(self.probabilities(Sampling(1.0)).over(vocabulary), counts)
        return _named(top_children(self.logits, counts), self.ids)


class Proposed(NamedTuple):
    """Probabilities (nodes, columns), float32 or wider, with the ids of `Proposals`."""

    probs: Tensor
    ids: Tensor | None = None

    @property
    def finite(self) -> Tensor:
        """(nodes,) booleans: false where the logits were not finite."""
        return finite_rows(self.probs)

    def largest(self, most: int) -> Tensor:
        """(nodes, most) largest of the probabilities, falling; at most one for each column."""
        return self.probs.topk(min(most, self.probs.shape[-1])).values

    def over(self, vocabulary: int, rows: slice | int = slice(None)) -> Tensor:
        """The probabilities of all the target's ids: (nodes, vocabulary), or of one node (vocabulary,)."""
        one = isinstance(rows, int)
        probs = self.probs[rows][None] if one else self.probs[rows]
        ids = self.ids[rows] if self.ids is not None and self.ids.ndim > 1 else self.ids
        if ids is None:
            missing = vocabulary - probs.shape[-1]
            found = pad(probs, (0, missing)) if missing > 0 else probs
        else:
            ids = ids.expand(probs.shape) if ids.ndim > 1 or one else ids.expand(len(probs), -1)
            found = probs.new_zeros(len(probs), vocabulary).scatter_(1, ids, probs)
        return found[0] if one else found

    def children(self, counts: Sequence[int], noise: Noise, vocabulary: int, draw: Draw) -> list[Tensor]:
        """Ids drawn after each node, (count,) each.

        Drawn among the draft's own columns where that is the same, which is less work than over the target's
        whole vocabulary: columns in the order of their ids, and mass left for each child.
        """
        most = max(counts)
        whole = self.ids is None and self.probs.shape[-1] == vocabulary
        if not whole and draw in _OWN_COLUMNS and isinstance(noise, Tensor) and most <= self.probs.shape[-1]:
            drawn = draw(self.probs, counts, noise)
            if draw is not draw_children or _mass_left(self.probs, drawn):
                return _named(drawn, self.ids)
        return draw(self.over(vocabulary), counts, noise)


#: Ways of drawing that need no more than the draft's own columns.
_OWN_COLUMNS = (draw_children, draw_independently, top_children)


def _named(picked: Sequence[Tensor], ids: Tensor | None) -> list[Tensor]:
    """The ids of columns, (count,) for each node."""
    if ids is None:
        return list(picked)
    if ids.ndim == 1:
        return [ids[columns] for columns in picked]
    return [own[columns] for own, columns in zip(ids, picked, strict=True)]


def _mass_left(probs: Tensor, drawn: Sequence[Tensor]) -> bool:
    """Whether each row had mass left when its last child was drawn."""
    return all(
        float(row.sum() - row[columns[:-1]].sum()) > _LEFT for row, columns in zip(probs, drawn, strict=True)
    )
