"""Models and tokenizers, loaded by name; every cheap check comes before the first weight is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from sequoia_cli.engine.loading.checkpoint import Checkpoint, describe, tokenizer_of
from sequoia_cli.engine.loading.drafts import DraftFolder, LoadedDraft, describe_draft
from sequoia_cli.engine.loading.end_of_text import end_of_text_ids
from sequoia_cli.engine.loading.feature import describe_feature, is_feature_folder
from sequoia_cli.engine.loading.sharing import lacks_embeddings
from sequoia_cli.engine.loading.sources import Announce, Source, fetch_description, locate
from sequoia_cli.engine.loading.weights import load_model, stored_names
from sequoia_cli.errors import BadInput, SequoiaError

M = TypeVar("M", bound=nn.Module)


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
    drafts: tuple[LoadedDraft, ...]
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
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
    tokenizer = tokenizer_of(checkpoint)
    _require_embeddings(checkpoint, stored_names(checkpoint, announce))
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
    source = locate("target", target)
    sources = [locate("draft", name) for name in drafts]
    # Folders first: a mistake in one is found before anything is fetched for the others.
    big: Checkpoint | None = None
    found: dict[Source, DraftFolder] = {}
    for each in sorted([source, *sources], key=lambda each: each.kind != "folder"):
        if each is source:
            big = _describe(source, trust_remote_code, announce)
        else:
            found[each] = describe_draft(each, trust_remote_code, announce)
    assert big is not None
    smalls = [found[each] for each in sources]
    tokenizer = tokenizer_of(big)
    for small in smalls:
        small.require_fit(big)
    _require_embeddings(big, stored_names(big, announce))

    announce(f"loading {' and '.join(map(str, (source, *sources)))}")
    for small in smalls:
        small.preload(dtype)
    model, changes = load_model(big, dtype)
    loaded = [small.load(dtype, model) for small in smalls]
    eos_ids, ignored = end_of_text_ids(big, tokenizer)
    notes = [*big.notes, *changes, *(note for draft in loaded for note in draft.notes), *ignored]
    return Pair(
        target=_placed(model, big.source, device),
        drafts=tuple(_placed_draft(draft, device) for draft in loaded),
        tokenizer=tokenizer,
        eos_ids=eos_ids,
        notes=tuple(notes),
    )


def _describe(source: Source, trust_remote_code: bool, announce: Announce) -> Checkpoint:
    folder = fetch_description(source, announce)
    if is_feature_folder(folder):
        made_for = describe_feature(source, folder).target
        raise BadInput(
            f"{source} reads the hidden states of a target: it can only be a draft",
            hint=f"give it as --draft, with --target {made_for}",
        )
    return describe(source, folder, trust_remote_code)


def _require_embeddings(target: Checkpoint, stored: frozenset[str]) -> None:
    if lacks_embeddings(target, stored):
        raise BadInput(
            f"{target.source} has no embedding and output head of its own: it can only be a draft",
            hint="give it as --draft, with the target that it was made for as --target",
        )


def _placed_draft(draft: LoadedDraft, device: torch.device) -> LoadedDraft:
    ids = draft.ids.to(device) if draft.ids is not None else None
    return replace(draft, model=_placed(draft.model, draft.source, device), ids=ids)


def _placed(model: M, source: Source, device: torch.device) -> M:
    try:
        return model.to(device)
    except torch.OutOfMemoryError:
        raise SequoiaError(
            f"{source} does not fit into the memory of {device}",
            hint="use a smaller model or --dtype bfloat16, or run on the CPU with --device cpu",
        ) from None
