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
    """A target and a draft that read ids alike. The tokenizer and the ends of text are the target's."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    target_name: str
    draft_name: str
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
    draft: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool = False,
    announce: Announce = lambda line: None,
) -> Pair:
    """Load a target and its draft, each named by an alias, a local folder or a hub id.

    Both must read every id that they share as the same token. A draft without embedding and output head
    uses the target's. All of that is checked before weights load. `announce` is told of what takes long.
    Raises `BadInput` for a model that cannot be used or a draft that does not fit, `SequoiaError` where one
    cannot be fetched or does not fit the device.
    """
    sources = [locate("target", target), locate("draft", draft)]
    # Folders first: a mistake in one is found before anything is fetched for the other.
    sources.sort(key=lambda source: source.kind != "folder")
    described = {source.role: _describe(source, trust_remote_code, announce) for source in sources}
    big, small = described["target"], described["draft"]
    tokenizer = _tokenizer_of(big)
    notes = [*big.notes, *small.notes, *_compare_vocabularies(big, small)]
    shares = lacks_embeddings(small, _stored_names(small, announce))
    if shares:
        require_fit(small, big)
    else:
        _tokenizer_of(small)
    _require_embeddings(big, _stored_names(big, announce))

    announce(f"loading {big.source} and {small.source}")
    # The small one first where it can be: a gap in its weights shows before the big one is read.
    standalone = None if shares else load_model(small, dtype)
    target_model, target_changes = load_model(big, dtype)
    draft_model, draft_changes = standalone or load_sharing(small, dtype, target_model)
    eos_ids, ignored = end_of_text_ids(big, tokenizer)
    return Pair(
        target=_placed(target_model, big.source, device),
        draft=_placed(draft_model, small.source, device),
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        target_name=target,
        draft_name=draft,
        notes=(*notes, *target_changes, *draft_changes, *ignored),
    )


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


def _compare_vocabularies(target: Checkpoint, draft: Checkpoint) -> list[str]:
    """Refuse tokenizers that differ; the note for vocabularies of which one is padded further."""
    if target.tokenizer is not None and draft.tokenizer is not None:
        difference = first_difference(target.tokenizer, draft.tokenizer)
        if difference:
            raise BadInput(
                f"{target.source} and {draft.source} have different tokenizers: id {difference.id} is "
                f"{difference.target!r} in the target and {difference.draft!r} in the draft",
                hint="choose a draft of the target's own family",
            )
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
