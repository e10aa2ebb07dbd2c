"""What `sequoia compile` tells a person about its choice."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from sequoia_cli.cli.render import plain_table
from sequoia_cli.compiler.confidence import LEVEL
from sequoia_cli.compiler.result import Candidate, Choice, Confidence, Lead
from sequoia_cli.compiler.value import Rows, node_scores

_UNKNOWN = Confidence()


def summary(choice: Choice, confidence: Confidence = _UNKNOWN) -> str:
    """The verdict in one line."""
    chosen = choice.chosen
    if len(choice.curve) == 1:
        return "plain decoding: no tree of two nodes or more was to be considered"
    if chosen.tree.size == 1:
        return "do not speculate: plain decoding is faster than every tree considered"
    trusted = f"; {_ends(confidence.speedup)} at {LEVEL:.0%}" if confidence.speedup else ""
    return (
        f"{chosen.shape} of {chosen.tree.size} nodes in {chosen.tree.depth} layers: "
        f"{chosen.tokens_per_step:.2f} tokens per step of {_milliseconds(chosen.seconds)} ms, "
        f"{choice.speedup(chosen):.2f} times plain decoding (predicted{trusted})"
    )


def _ends(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.2f} to {interval[1]:.2f}"


def explanation(choice: Choice, confidence: Confidence, rows: Rows) -> Iterator[Table | str]:
    """The tree by layer, its step by part, what it was chosen over by how much, how far the counts carry, and
    the best tree of each size where one was searched for."""
    yield _layers(choice.chosen, rows)
    yield _parts(choice)
    yield _comparison(choice, confidence)
    for lead in confidence.leads:
        yield _lead(lead)
    if choice.chosen.tree.is_chains:
        yield "the chosen tree is itself a chain, or several chains"
    yield from _trust(choice, confidence)
    if choice.curve:
        yield _curve(choice)
    for reason in choice.not_considered:
        yield f"not considered: {reason}"


def _lead(lead: Lead) -> str:
    """How far the chosen tree leads a simple shape."""
    name = "the best chain" if lead.shape == "chain" else f"the best k chains ({lead.shape})"
    text = f"lead over {name}: {lead.share:.1%}"
    if lead.interval:
        text += f" ({lead.interval[0]:.1%} to {lead.interval[1]:.1%} at {LEVEL:.0%})"
    return text + (", within the noise of the counts" if lead.within_noise else "")


def _trust(choice: Choice, confidence: Confidence) -> Iterator[str]:
    """What the intervals are of."""
    if confidence.tokens_per_step and confidence.optimism is not None:
        yield (
            f"tokens per step: {choice.chosen.tokens_per_step:.2f}, {_ends(confidence.tokens_per_step)} at "
            f"{LEVEL:.0%}"
        )
        over = f"{confidence.prompts} prompts" if confidence.prompts else "trials taken as independent"
        yield (
            f"the intervals are of the acceptance counts alone ({over}), and lower by the "
            f"{confidence.optimism:.1%} that choosing the best by these counts flatters it"
        )
    elif choice.chosen.tree.size > 1:
        yield "no intervals: the acceptance rates have no counts"


def _layers(chosen: Candidate, rows: Rows) -> Table:
    table = plain_table(
        "the tree, by layer", "layer", "nodes", "expanded", "most children", "expected tokens"
    )
    tree, scores = chosen.tree, node_scores(chosen.tree, rows)
    for layer, nodes in enumerate(tree.levels):
        children = [len(tree.children[node]) for node in nodes]
        tokens = sum(scores[node] for node in nodes)
        table.add_row(
            f"{layer + 1}",
            f"{len(nodes)}",
            f"{sum(count > 0 for count in children)}",
            f"{max(children)}",
            f"{tokens:.3f}",
        )
    table.add_section()
    table.add_row("all", f"{tree.size}", "", "", f"{chosen.tokens_per_step:.3f}")
    return table


def _parts(choice: Choice) -> Table:
    table = plain_table("predicted ms per step", "part", "chosen", "plain decoding")
    chosen, plain = choice.chosen, choice.plain
    for part, seconds in chosen.parts.items():
        table.add_row(part, _milliseconds(seconds), _milliseconds(plain.parts[part]))
    table.add_row("total", _milliseconds(chosen.seconds), _milliseconds(plain.seconds))
    return table


def _comparison(choice: Choice, confidence: Confidence) -> Table:
    interval = f" ({_ends(confidence.speedup)} times at {LEVEL:.0%})" if confidence.speedup else ""
    table = plain_table(f"chosen{interval}, and the runners-up", "shape", *_COLUMNS)
    for candidate in (choice.chosen, *choice.runners_up):
        table.add_row(
            candidate.shape + (" (chosen)" if candidate is choice.chosen else ""),
            f"{candidate.tree.size}",
            f"{candidate.tree.depth}",
            *_figures(choice, candidate.tokens_per_step, candidate.seconds),
        )
    return table


def _curve(choice: Choice) -> Table:
    table = plain_table("the best tree by size", *_COLUMNS)
    for point in choice.curve:
        table.add_row(
            f"{point.size}",
            f"{point.depth}",
            *_figures(choice, point.tokens_per_step, point.seconds_per_step),
        )
    return table


_COLUMNS = ("nodes", "layers", "tokens/step", "ms/step", "ms/token", "speedup")


def _figures(choice: Choice, tokens: float, seconds: float) -> tuple[str, ...]:
    speedup = choice.plain.seconds_per_token * tokens / seconds
    return f"{tokens:.3f}", _milliseconds(seconds), _milliseconds(seconds / tokens), f"{speedup:.2f}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
