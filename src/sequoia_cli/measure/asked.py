"""Prompts as they are measured or decoded: with their ids, and a seed for each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.journal import Journal
from sequoia_cli.core.seeds import prompt_seeds
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import Prompt


@dataclass(frozen=True)
class Asked:
    """A prompt to measure on, its ids, and the seed of its text."""

    prompt: Prompt
    ids: Sequence[int]
    seed: int

    def labelled(self, counts: PromptCounts, number: int, greedy: bool) -> PromptCounts:
        """The counts of this prompt, which is the one of this `number`, so that they can be recognised."""
        return replace(
            counts,
            prompt=number,
            id=self.prompt.id,
            digest=self.prompt.digest,
            seed=None if greedy else self.seed,
        )

    def is_of(self, counts: PromptCounts) -> bool:
        """Whether these are the counts of this prompt's text."""
        return (counts.digest, counts.seed) in ((self.prompt.digest, self.seed), (self.prompt.digest, None))


def seeded(encoded: Sequence[tuple[Prompt, Sequence[int]]], seed: int) -> list[Asked]:
    """Prompts with their ids, each with its seed: see `prompt_seeds`."""
    seeds = prompt_seeds(seed, [ids for _, ids in encoded])
    return [Asked(prompt, ids, own) for (prompt, ids), own in zip(encoded, seeds, strict=True)]


def finished(prompts: Sequence[Asked], journal: Journal, *, drop_others: bool) -> dict[int, PromptCounts]:
    """What the journal has of these prompts, by number. Raises `BadInput` for others unless `drop_others`."""
    kept = [PromptCounts.from_entry(entry) for entry in journal.entries]
    found: dict[int, PromptCounts] = {}
    for number, asked in enumerate(prompts):
        if (same := next((counts for counts in kept if asked.is_of(counts)), None)) is not None:
            kept.remove(same)
            found[number] = asked.labelled(same, number, same.seed is None)
    if kept and not drop_others:
        raise BadInput(
            f"{journal.path} holds {len(kept)} finished prompts that are not among those asked for"
        )
    return found
