"""Whether two tokenizers mean the same text by the same id."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from sequoia_cli.engine.loading.checkpoint import Checkpoint
from sequoia_cli.errors import BadInput


class Difference(NamedTuple):
    """The first id that two tokenizers read differently, and what each reads."""

    id: int
    target: str
    draft: str


def first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> Difference | None:
    """The lowest id that both tokenizers have and name differently, or None; added tokens count too.

    Ids that only one has are no difference: a vocabulary may be padded, or have tokens added behind.
    """
    ours, theirs = _token_by_id(target), _token_by_id(draft)
    for id in sorted(ours.keys() & theirs.keys()):
        if ours[id] != theirs[id]:
            return Difference(id, ours[id], theirs[id])
    return None


def _token_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {id: token for token, id in tokenizer.get_vocab().items()}


def require_same_tokenizer(target: Checkpoint, draft: Checkpoint) -> None:
    """Raise `BadInput` where both have a tokenizer and these differ."""
    if target.tokenizer is None or draft.tokenizer is None:
        return
    if difference := first_difference(target.tokenizer, draft.tokenizer):
        raise BadInput(
            f"{target.source} and {draft.source} have different tokenizers: id {difference.id} is "
            f"{difference.target!r} in the target and {difference.draft!r} in the draft",
            hint="choose a draft of the target's own family",
        )
