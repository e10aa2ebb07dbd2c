"""Growth of an engine's time and memory with the length of the prompt and the size of the tree.

Each point runs in its own process, because peak memory is per process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sequoia_cli.bench.runner import Outcome, compare
from sequoia_cli.bench.workload import Workload
from sequoia_cli.measure.latency import timing_tree

LENGTHS = (128, 256, 512, 1024, 2048, 4000)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

#: Tokens of the prompt when the tree grows, and new tokens at every point.
CONTEXT, NEW_TOKENS = 128, 32


@dataclass(frozen=True)
class Point:
    """The outcome of an engine for one prompt length and tree size."""

    prompt_tokens: int
    tree_nodes: int
    outcome: Outcome


def points(
    engines: Sequence[str],
    work: Workload,
    text: Sequence[int],
    rounds: int,
    on_progress: Callable[[str], None] = lambda what: None,
    pythons: Mapping[str, str] | None = None,
) -> Iterator[Point]:
    """Measure each engine on prompts of growing length, then this engine with trees of growing size.

    The prompts are the first tokens of `text`. The prompts, ends of text and budget of `work` are not used.
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
