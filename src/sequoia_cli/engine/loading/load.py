"""Models and tokenizers, loaded by name; every cheap check comes before the first weight is read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sequoia_cli.engine.loading.checkpoint import CONTENTS, Checkpoint, describe
from sequoia_cli.engine.loading.ending import end_of_text_ids
from sequoia_cli.engine.loading.sharing import lacks_embeddings, load_sharing, require_fit
from sequoia_cli.engine.loading.sources import Announce, Source, fetch_description, fetch_weights, locate
from sequoia_cli.engine.loading.tokenizers import first_difference
from sequoia_cli.engine.loading.weights import load_model, weight_files, weight_names
from sequoia_cli.errors import BadInput, SequoiaError


@dataclass(frozen=True)
class Target:
    """A model to decode with, alone. `eos_ids` end its text; `notes` say what was changed or ignored."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    name: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A target and its drafts, which read ids as it does. Tokenizer and ends of text are the target's."""

    target: PreTrainedModel
    drafts: tuple[PreTrainedModel, ...]
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    target_name: str
    draft_names: tuple[str, ...]
    notes: tuple[str, ...]


def load_target(
    name: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool = False,
    announce: Announce = lambda line: None,
) -> Target:
    """Load a model to decode with plainly. `name` is an alias, a folder or a hub id, as in `load_pair`.

    `announce` is told of what takes long. Raises `BadInput` for a model that cannot be used, `SequoiaError`
    where one cannot be fetched or does not fit the device.
    """
    checkpoint = _describe(locate("target", name), trust_remote_code, announce)
    tokenizer = _tokenizer_of(checkpoint)
    _require_embeddings(checkpoint, _stored_names(checkpoint, announce))
    announce(f"loading {checkpoint.source}")
    model, changes = load_model(checkpoint, dtype)
    eos_ids, ignored = end_of_text_ids(checkpoint, tokenizer)
    notes = (*checkpoint.notes, *changes, *ignored)
    return Target(_placed(model, checkpoint.source, device), tokenizer, eos_ids, name, notes)


def load_pair(
    target: str,
    *drafts: str,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool = False,
    announce: Announce = lambda line: None,
) -> Pair:
    """Load a target and its draft, or several, each named by an alias, a local folder or a hub id.

    A draft must read every id that it shares with the target as the same token. One without embedding and
    output head uses the target's. All of that is checked before weights load. `announce` is told of what
    takes long. Raises `BadInput` for a model that cannot be used or a draft that does not fit,
    `SequoiaError` where one cannot be fetched or does not fit the device.
    """
    named = [locate("target", target), *(locate("draft", name) for name in drafts)]
    # Folders first: a mistake in one is found before anything is fetched for the others.
    order = sorted(named, key=lambda source: source.kind != "folder")
    described = {source: _describe(source, trust_remote_code, announce) for source in order}
    big, *smalls = (described[source] for source in named)
    tokenizer = _tokenizer_of(big)
    shares = [_fits(small, big, announce) for small in smalls]
    _require_embeddings(big, _stored_names(big, announce))

    announce(f"loading {' and '.join(map(str, named))}")
    # The small ones first where they can be: a gap in their weights shows before the big one is read.
    alone = [
        None if shared else load_model(small, dtype) for small, shared in zip(smalls, shares, strict=True)
    ]
    model, target_changes = load_model(big, dtype)
    loaded = [own or load_sharing(small, dtype, model) for small, own in zip(smalls, alone, strict=True)]
    eos_ids, ignored = end_of_text_ids(big, tokenizer)
    notes = [*big.notes]
    for small in smalls:
        notes += [*small.notes, *_vocabulary_notes(big, small)]
    for changes in (target_changes, *(changes for _, changes in loaded), ignored):
        notes += changes
    return Pair(
        target=_placed(model, big.source, device),
        drafts=tuple(
            _placed(draft, small.source, device) for (draft, _), small in zip(loaded, smalls, strict=True)
        ),
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        target_name=target,
        draft_names=drafts,
        notes=tuple(notes),
    )


def _fits(draft: Checkpoint, target: Checkpoint, announce: Announce) -> bool:
    """Refuse a draft that does not fit its target; whether it uses the target's embedding and head."""
    _compare_tokenizers(target, draft)
    if lacks_embeddings(draft, _stored_names(draft, announce)):
        require_fit(draft, target)
        return True
    _tokenizer_of(draft)
    return False


def _describe(source: Source, trust_remote_code: bool, announce: Announce) -> Checkpoint:
    return describe(source, fetch_description(source, announce), trust_remote_code)


def _tokenizer_of(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    if checkpoint.tokenizer is None:
        raise BadInput(f"{checkpoint.source}: {checkpoint.folder} has no tokenizer", hint=CONTENTS)
    return checkpoint.tokenizer


def _stored_names(checkpoint: Checkpoint, announce: Announce) -> frozenset[str]:
    source, folder = checkpoint.source, checkpoint.folder
    fetch_weights(source, weight_files(source, folder), announce)
    return weight_names(source, folder)


def _require_embeddings(target: Checkpoint, stored: frozenset[str]) -> None:
    if lacks_embeddings(target, stored):
        raise BadInput(
            f"{target.source} has no embedding and output head of its own: it can only be a draft",
            hint="give it as --draft, with the target that it was made for as --target",
        )


def _compare_tokenizers(target: Checkpoint, draft: Checkpoint) -> None:
    if target.tokenizer is not None and draft.tokenizer is not None:
        difference = first_difference(target.tokenizer, draft.tokenizer)
        if difference:
            raise BadInput(
                f"{target.source} and {draft.source} have different tokenizers: id {difference.id} is "
                f"{difference.target!r} in the target and {difference.draft!r} in the draft",
                hint="choose a draft of the target's own family",
            )


def _vocabulary_notes(target: Checkpoint, draft: Checkpoint) -> list[str]:
    """The note for vocabularies of which one is padded further."""
    if target.vocabulary == draft.vocabulary:
        return []
    return [
        f"{target.source} has {target.vocabulary} vocabulary rows and {draft.source} {draft.vocabulary}; "
        "the rows that only one has are padding or its own, the others mean the same tokens"
    ]


def _placed(model: PreTrainedModel, source: Source, device: torch.device) -> PreTrainedModel:
    try:
        return model.to(device)
    except torch.OutOfMemoryError:
        raise SequoiaError(
            f"{source} does not fit into the memory of {device}",
            hint="use a smaller model or --dtype bfloat16, or run on the CPU with --device cpu",
        ) from None
