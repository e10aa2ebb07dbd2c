"""The prediction for one given tree, such as a baseline of the papers: nothing is searched."""

from __future__ import annotations

from sequoia_cli.compiler.cost import check_first_times
from sequoia_cli.compiler.result import Candidate, Choice, slower_than_plain
from sequoia_cli.compiler.value import Rows
from sequoia_cli.core.hardware import HardwareProfile
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.errors import BadInput


def weigh(profile: HardwareProfile, rows: Rows, tree: TokenTree, shape: str) -> Choice:
    """`tree`, named `shape`, beside plain decoding; a warning where that is faster.

    `rows` are marginal rates as in `AcceptanceRates.p`; a child of a rank beyond its row counts 0, and that
    is warned of too. Raises `BadInput` where the profile does not cover the tree.
    """
    check_first_times(profile)
    plain = Candidate.of(ROOT_ONLY, profile, rows)
    given = Candidate.of(tree, profile, rows, shape)
    if plain is None or given is None:
        raise _not_covered(profile, tree, shape)
    warnings = list(slower_than_plain(given, plain))
    ranks = max(map(len, rows))
    if tree.max_branch > ranks:
        warnings.append(
            f"{shape} has up to {tree.max_branch} children of a node, the acceptance rates {ranks} ranks: "
            "children of later ranks count as never accepted"
        )
    return Choice(given, plain, (plain,), (), (), tuple(warnings), profile.costs.up_to(tree.size))


def _not_covered(profile: HardwareProfile, tree: TokenTree, shape: str) -> BadInput:
    covered = profile.costs.target.end
    if covered is not None and tree.size > covered:
        found, end = f"{tree.size} nodes", f"times end at {covered} tokens"
    else:
        widest = max(map(len, tree.expanded))
        found = f"a level of {widest} nodes to expand"
        end = f"draft times end at {profile.draft_seconds[-1][0]}"
    return BadInput(
        f"{shape} has {found}, beyond the profile, whose {end}",
        hint="profile more tokens and wider levels, or ask for a smaller tree",
    )
