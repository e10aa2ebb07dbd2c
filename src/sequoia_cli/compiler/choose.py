"""The choice of the tree with the least seconds per token under the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sequoia_cli.compiler import shapes
from sequoia_cli.compiler.best import BestTrees
from sequoia_cli.compiler.cost import CostTable, check_first_times, widest_level
from sequoia_cli.compiler.families import Family, prefix_family
from sequoia_cli.compiler.result import Candidate, Choice, CurvePoint, slower_than_plain
from sequoia_cli.compiler.search import fastest_trees
from sequoia_cli.compiler.tables import MAX_SIZE
from sequoia_cli.compiler.value import Rows
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.errors import BadInput

#: How many best trees of other sizes stand among the runners-up.
OTHER_SIZES = 3

#: More independent chains than this are not looked at: the next one is a rank hardly ever accepted.
MAX_CHAINS = 64


@dataclass(frozen=True)
class Limits:
    """What trees are looked at: nodes and layers (both with the root), children of a node."""

    budget: int = 64
    max_depth: int = 32
    max_branch: int = 32


def choose(profile: HardwareProfile, rows: Rows, limits: Limits, size: int | None = None) -> Choice:
    """Choose among the best trees of all sizes and depths within the limits, chains and plain decoding too.

    `rows` are marginal rates as in `AcceptanceRates.p`. `size` asks for a tree of exactly so many nodes,
    which may be slower than plain decoding; the choice warns of it. Raises `BadInput` where the profile lacks
    a time that every choice needs, or any for the size asked for.
    """
    check_first_times(profile)
    asked = limits.budget if size is None else size
    most = min(asked, profile.costs.target.end or MAX_SIZE)
    table = CostTable.of(profile.costs, most)
    best = fastest_trees(BestTrees(rows, most, limits.max_depth, limits.max_branch), table, size or 1)
    search = _Search(profile, rows, limits, table, best)
    plain = search.candidate(ROOT_ONLY)
    chosen = search.fastest(size)
    not_considered = []
    if most < asked:
        not_considered.append(f"sizes above {most}: the profile's times end there")
    if table.widest < widest_level(most):
        not_considered.append(
            f"levels of more than {table.widest} nodes to expand: its draft times end there"
        )
    runners_up = _distinct([plain, *search.shapes(), *search.other_sizes(chosen.tree.size)], chosen)
    return Choice(
        chosen,
        plain,
        runners_up,
        _curve(best),
        tuple(not_considered),
        slower_than_plain(chosen, plain),
        profile.costs.up_to(most),
    )


@dataclass(frozen=True)
class _Search:
    """The inputs of a choice, and the best trees of all sizes."""

    profile: HardwareProfile
    rows: Rows
    limits: Limits
    table: CostTable
    best: Family

    def candidate(self, tree: TokenTree, shape: str | None = None) -> Candidate:
        """`tree`, which the profile must cover, with its value and cost."""
        found = Candidate.of(tree, self.profile, self.rows, shape)
        assert found is not None
        return found

    def fastest(self, size: int | None) -> Candidate:
        """The fastest tree, of exactly `size` nodes where given: no family then has a larger one."""
        first = 1 if size is None else size
        found = [
            self.candidate(family.tree(number))
            for family in (self.best, self.chains(1))
            if (number := family.fastest(first)) is not None
        ]
        if not found:
            raise BadInput(
                f"the profile's times do not cover any tree of {size} nodes within the limits",
                hint="profile more tokens and wider levels, or ask for a smaller tree",
            )
        return min(found, key=_by_speed)

    def chains(self, count: int) -> Family:
        """`count` chains under one root, of all sizes within the limits."""
        size = min(self.best.size, 1 + count * (self.limits.max_depth - 1))
        return prefix_family(shapes.chains(count, size), self.rows, self.table)

    def shapes(self) -> Iterator[Candidate]:
        """The best chain, the best k chains and the best binary tree."""
        ranks = min(self.limits.max_branch, max(map(len, self.rows)))
        several = {count: self.chains(count) for count in range(2, min(ranks, MAX_CHAINS) + 1)}
        best = [
            (family.seconds[size] / family.tokens[size], size, count)
            for count, family in several.items()
            if (size := family.fastest(count + 1)) is not None
        ]
        if best:
            _, size, count = min(best)
            yield self.candidate(several[count].tree(size), f"{count} chains")
        families = [("chain", self.chains(1), 2)]
        if self.limits.max_branch >= 2:
            size = min(self.best.size, 2 ** min(self.limits.max_depth, MAX_SIZE.bit_length()) - 1)
            binary = prefix_family(shapes.k_ary(2, size), self.rows, self.table)
            families.append(("binary tree", binary, 3))
        for shape, family, first in families:
            if (number := family.fastest(first)) is not None:
                yield self.candidate(family.tree(number), shape)

    def other_sizes(self, size: int) -> Iterator[Candidate]:
        """The fastest best trees of sizes that differ from `size` and each other by a tenth or more."""
        near: set[int] = set()
        for _ in range(OTHER_SIZES):
            near |= {other for other in range(2, self.best.size + 1) if abs(other - size) * 10 < size}
            found = self.best.fastest(2, without=sorted(near))
            if found is None:
                return
            yield self.candidate(self.best.tree(found))
            size = found


def _by_speed(candidate: Candidate) -> tuple[float, int]:
    """Fastest first; of equals, to nine digits, the smaller."""
    return float(f"{candidate.seconds_per_token:.9e}"), candidate.tree.size


def _distinct(candidates: list[Candidate], chosen: Candidate) -> tuple[Candidate, ...]:
    """Each tree once, without the chosen one, fastest first."""
    seen = {chosen.tree.parents}
    kept = []
    for candidate in candidates:
        if candidate.tree.parents not in seen:
            seen.add(candidate.tree.parents)
            kept.append(candidate)
    return tuple(sorted(kept, key=_by_speed))


def _curve(best: Family) -> tuple[CurvePoint, ...]:
    """The best tree of each power of two, as far as there is one."""
    sizes = [1 << power for power in range(best.size.bit_length())]
    return tuple(
        CurvePoint(size, int(best.depths[size]), float(best.tokens[size]), float(best.seconds[size]))
        for size in sizes
        if best.depths[size]
    )
