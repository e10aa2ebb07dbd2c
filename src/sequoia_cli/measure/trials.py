"""What is tried along a text, and how tries become counts: values and sums only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sequoia_cli.core.calibration import Cells, bin_of
from sequoia_cli.core.counts import Rows
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.verification.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.warp import Sampling


@dataclass(frozen=True)
class Trials:
    """What is measured: children of `ranks` ranks, `depths` levels down, on texts of `new_tokens` tokens."""

    sampling: Sampling
    draft_sampling: Sampling
    ranks: int
    depths: int
    new_tokens: int
    verifier: Verifier = SEQUOIA

    @property
    def tree(self) -> TokenTree:
        """The tree whose steps are counted: one level of all ranks."""
        return TokenTree((-1, *[0] * self.ranks))


@dataclass(frozen=True)
class Try:
    """Children tried where one token of a text was to come.

    `chances` has for each rank the chance that its child is the one accepted, whatever token comes. `hit` is
    the chance that a child was accepted, given the token that came. `largest` are the draft's largest
    probabilities, one for each rank at most.
    """

    chances: tuple[float, ...]
    hit: float
    largest: tuple[float, ...] = ()


#: What a step finds: the try behind its root, then those behind the text's next tokens, its levels.
StepTries = tuple[Try, ...]


def windows(tries: Sequence[Try], depths: int) -> list[StepTries]:
    """The steps along a text where a try is the same from wherever the step began: one for each place."""
    return [tuple(tries[start : start + depths]) for start in range(len(tries))]


def weigh(steps: Sequence[StepTries], trials: Trials) -> tuple[tuple[float, ...], Rows, Cells]:
    """Trials by depth, acceptances by depth and rank, and both by `Cells`, expected given the text.

    Entry i of `steps` is what a step finds that begins at the text's place i. Not every place begins one:
    behind an accepted child the bonus token follows, and the next step begins behind that, so places where
    the draft does badly begin more steps than their share. Depth d of a step is tried if all its levels
    before were hits.

    The chances of successive hits multiply because, given the text, the children of one try say nothing about
    those of another; and no product has the same try twice, since a step begins behind the places it depends
    on.
    """
    begins = [1.0, *[0.0] * (len(steps) + 1)]
    weights = [0.0] * trials.depths
    accepted = [[0.0] * trials.ranks for _ in range(trials.depths)]
    cells: dict[tuple[int, int, int], tuple[float, float]] = {}
    for place, levels in enumerate(steps):
        reached = begins[place]
        begins[place + 1] += reached * (1 - levels[0].hit)
        begins[place + 2] += reached * levels[0].hit
        for depth, tried in enumerate(levels):
            weights[depth] += reached
            for rank, chance in enumerate(tried.chances):
                accepted[depth][rank] += reached * chance
            for rank, (largest, chance) in enumerate(zip(tried.largest, tried.chances, strict=False)):
                key = depth, rank, bin_of(largest)
                tries, hits = cells.get(key, (0.0, 0.0))
                cells[key] = tries + reached, hits + reached * chance
            reached *= tried.hit
    return tuple(weights), tuple(map(tuple, accepted)), dict(sorted(cells.items()))
