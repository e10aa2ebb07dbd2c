"""How an engine's time and memory grow with the prompt and with the tree.

Each point has a process of its own, as the most memory that a process ever had does not go down again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sequoia_cli.bench.runner import Outcome, compare
from sequoia_cli.bench.work import Work
from sequoia_cli.measure.latency import timing_tree

LENGTHS = (128, 256, 512, 1024, 2048, 4000)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

#: Tokens of the prompt where the tree grows, and new ones everywhere.
CONTEXT, NEW_TOKENS = 128, 32


@dataclass(frozen=True)
class Point:
    """The outcome of an engine after so many tokens, with a tree of so many nodes."""

    prompt_tokens: int
    tree_nodes: int
    outcome: Outcome


def points(
    engines: Sequence[str],
    work: Work,
    text: Sequence[int],
    rounds: int,
    on_progress: Callable[[str], None] = lambda what: None,
    pythons: Mapping[str, str] | None = None,
) -> Iterator[Point]:
    """Each engine after the first tokens of `text`, as far as it goes; then this one's trees of all sizes.

    The prompts and the length of `work` are not used. A text does not end before its budget.
    """

    def measured(names: Sequence[str], tokens: int, tree: tuple[int, ...]) -> Iterator[Point]:
        given = replace(
            work, prompts=(tuple(text[:tokens]),), tree=tree, eos_ids=(), max_new_tokens=NEW_TOKENS
        )
        nodes = {"tree": len(tree), "chain": work.chain}
        for outcome in compare(names, given, rounds, on_progress, pythons):
            yield Point(tokens, nodes.get(outcome.engine, 1), outcome)

    for tokens in LENGTHS:
        if tokens <= len(text):
            yield from measured(engines, tokens, work.tree)
    if "tree" in engines:
        for size in SIZES:
            yield from measured(["tree" if size > 1 else "plain"], CONTEXT, timing_tree(size).parents)
