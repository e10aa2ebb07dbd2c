"""Prompts with their token ids and the seed of their text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sequoia_cli.core.counts import PromptCounts
from sequoia_cli.core.journal import Journal
from sequoia_cli.core.seeds import prompt_seeds
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import Prompt


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt, its ids, and the seed of its text."""

    prompt: Prompt
    ids: Sequence[int]
    seed: int

    def labelled(self, counts: PromptCounts, number: int, greedy: bool) -> PromptCounts:
        """`counts` labelled as those of this prompt and its `number`; `matches` recognises them."""
        return replace(
            counts,
            prompt=number,
            id=self.prompt.id,
            digest=self.prompt.digest,
            seed=None if greedy else self.seed,
        )

    def matches(self, counts: PromptCounts) -> bool:
        """Whether `counts` are of this prompt's text."""
        return (counts.digest, counts.seed) in ((self.prompt.digest, self.seed), (self.prompt.digest, None))


def with_seeds(encoded: Sequence[tuple[Prompt, Sequence[int]]], seed: int) -> list[EncodedPrompt]:
    """Give each prompt its seed (see `prompt_seeds`)."""
    seeds = prompt_seeds(seed, [ids for _, ids in encoded])
    return [EncodedPrompt(prompt, ids, own) for (prompt, ids), own in zip(encoded, seeds, strict=True)]


def finished(
    prompts: Sequence[EncodedPrompt], journal: Journal, *, drop_others: bool
) -> dict[int, PromptCounts]:
    """The journal's counts of these prompts, by number. Raises `BadInput` for others unless `drop_others`."""
    known = [PromptCounts.from_entry(entry) for entry in journal.entries]
    found: dict[int, PromptCounts] = {}
    for number, prompt in enumerate(prompts):
        if (same := next((counts for counts in known if prompt.matches(counts)), None)) is not None:
            known.remove(same)
            found[number] = prompt.labelled(same, number, same.seed is None)
    if known and not drop_others:
        raise BadInput(
            f"{journal.path} holds {len(known)} finished prompts that are not among those asked for"
        )
    return found
