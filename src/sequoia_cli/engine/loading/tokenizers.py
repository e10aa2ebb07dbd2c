"""Whether two tokenizers mean the same text by the same id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from sequoia_cli.core.parsing import shown
from sequoia_cli.engine.loading.checkpoint import Checkpoint
from sequoia_cli.errors import BadInput


class Difference(NamedTuple):
    """An id that two tokenizers read differently, and what each reads."""

    id: int
    target: str
    draft: str


#: Ids that a message names.
_MOST = 3


def require_same_tokenizer(target: Checkpoint, draft: Checkpoint) -> list[Difference]:
    """The ids that the draft has to leave out, in order: special tokens that have other names in the target.

    Families rename special tokens that they kept in reserve. What the draft takes such an id for does not
    matter as long as it never proposes it. Raises `BadInput` where other tokens differ. Without two
    tokenizers there is nothing to compare.
    """
    if target.tokenizer is None or draft.tokenizer is None:
        return []
    found = differences(target.tokenizer, draft.tokenizer)
    special = _special_ids(target.tokenizer) & _special_ids(draft.tokenizer)
    if any(each.id not in special for each in found):
        raise BadInput(
            f"{target.source} and {draft.source} have different tokenizers: {described(found)}",
            hint="choose a draft of the target's own family",
        )
    return found


def differences(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> list[Difference]:
    """The ids that both tokenizers have and name differently, in order; added tokens count too.

    Ids that only one has are no difference: a vocabulary may be padded, or have tokens added after it.
    """
    ours, theirs = _token_by_id(target), _token_by_id(draft)
    both = sorted(ours.keys() & theirs.keys())
    return [Difference(id, ours[id], theirs[id]) for id in both if ours[id] != theirs[id]]


def described(found: Sequence[Difference]) -> str:
    """The first of some differences in words, and how many there are."""
    named = [
        f"id {each.id} is {shown(each.target)} in the target and {shown(each.draft)} in the draft"
        for each in found[:_MOST]
    ]
    return "; ".join(named) + (f"; {len(found)} ids differ" if len(found) > 1 else "")


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Identity of what each id means."""
    tokens = sorted(_token_by_id(tokenizer).items())
    return "sha256:" + hashlib.sha256(json.dumps(tokens, allow_nan=False).encode()).hexdigest()


def _token_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    return {id: token for token, id in tokenizer.get_vocab().items()}


def _special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {id for id, token in added.items() if token.special}
