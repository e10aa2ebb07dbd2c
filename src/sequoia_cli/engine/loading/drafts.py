"""The two kinds of draft as folders: what each needs of its target, and how it is loaded beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from sequoia_cli.engine.feature_model import FeatureModel
from sequoia_cli.engine.loading.checkpoint import Checkpoint, describe, tokenizer_of
from sequoia_cli.engine.loading.feature import (
    FeatureFolder,
    describe_feature,
    is_feature_folder,
    load_feature,
)
from sequoia_cli.engine.loading.fingerprint import fingerprint
from sequoia_cli.engine.loading.published_heads import refuse_by_look, refuse_by_weights
from sequoia_cli.engine.loading.sharing import end_width, lacks_embeddings, load_sharing, require_fit
from sequoia_cli.engine.loading.sources import (
    DRAFT_ALIAS,
    Announce,
    Source,
    fetch_description,
    fetch_weights,
    plain_name,
)
from sequoia_cli.engine.loading.tokenizers import described, require_same_tokenizer, tokenizer_digest
from sequoia_cli.engine.loading.vocabulary import cut_head, read_vocabulary, require_head
from sequoia_cli.engine.loading.weights import load_model, stored_names
from sequoia_cli.errors import BadInput


@dataclass(frozen=True)
class LoadedDraft:
    """A draft's network on the CPU, and the rising `ids` that its output is for (None: for all).

    A `FeatureModel` has no embedding and head: those of the target are meant. `notes` say what was changed.
    """

    model: PreTrainedModel | FeatureModel
    ids: Tensor | None
    source: Source
    notes: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """Tells these weights from those of another training of the same draft."""
        return fingerprint(self.model, self.ids)


class DraftFolder(Protocol):
    """A draft whose folder was read and whose weights were not."""

    def require_fit(self, target: Checkpoint) -> None:
        """Raise `BadInput` where it cannot be a draft of this target."""

    def preload(self, dtype: torch.dtype) -> None:
        """Load what can be loaded without the target: a gap in it then shows before the target is read."""

    def load(self, dtype: torch.dtype, target: PreTrainedModel) -> LoadedDraft:
        """Load the rest."""


def describe_draft(source: Source, trust_remote_code: bool, announce: Announce) -> DraftFolder:
    """Read what a draft's folder says of it. Raises `BadInput` as `describe` does."""
    folder = fetch_description(source, announce)
    if is_feature_folder(folder):
        return _FeatureFolder(describe_feature(source, folder), announce)
    return _ModelFolder(describe(source, folder, trust_remote_code), announce)


class _ModelFolder:
    """A causal language model of its own; without embedding and output head it uses the target's."""

    def __init__(self, checkpoint: Checkpoint, announce: Announce) -> None:
        self.checkpoint, self._announce = checkpoint, announce
        self._alone: tuple[PreTrainedModel, list[str]] | None = None

    def require_fit(self, target: Checkpoint) -> None:
        draft = self.checkpoint
        renamed = require_same_tokenizer(target, draft)
        if draft.tokenizer is None:
            refuse_by_look(draft.source, draft.folder, getattr(draft.config, "num_hidden_layers", None))
        stored = stored_names(draft, self._announce)
        refuse_by_weights(draft.source, stored)
        self._shares = lacks_embeddings(draft, stored)
        if self._shares:
            require_fit(draft, target)
        else:
            tokenizer_of(draft)
        common = min(target.vocabulary, draft.vocabulary)
        self._ids = read_vocabulary(draft.source, draft.folder, common)
        self._notes = [*draft.notes]
        if renamed:
            known = torch.arange(common) if self._ids is None else self._ids
            self._ids = known[torch.isin(known, torch.tensor([each.id for each in renamed]), invert=True)]
            self._notes.append(
                f"{draft.source} does not propose special tokens that it has under other names: "
                f"{described(renamed)}"
            )
        if self._ids is not None:
            require_head(draft.source, draft.skeleton)
        if target.vocabulary != draft.vocabulary:
            self._notes.append(
                f"{target.source} has {target.vocabulary} vocabulary rows and {draft.source} "
                f"{draft.vocabulary}; the rows that only one has are padding or its own, the others mean the "
                "same tokens"
            )

    def preload(self, dtype: torch.dtype) -> None:
        if not self._shares:
            self._alone = load_model(self.checkpoint, dtype)

    def load(self, dtype: torch.dtype, target: PreTrainedModel) -> LoadedDraft:
        model, changes = self._alone or load_sharing(self.checkpoint, dtype, target)
        if self._ids is not None:
            cut_head(model, self._ids)
        return LoadedDraft(model, self._ids, self.checkpoint.source, (*self._notes, *changes))


class _FeatureFolder:
    """Layers over the target's hidden states, with the target's embedding and output head."""

    def __init__(self, found: FeatureFolder, announce: Announce) -> None:
        self._found, self._announce = found, announce

    def require_fit(self, target: Checkpoint) -> None:
        found = self._found
        width = end_width(target.skeleton)
        if (width, target.vocabulary) != (found.config.width, found.vocabulary):
            if found.source.name == DRAFT_ALIAS:
                raise BadInput(
                    f"{target.source} has no draft: the default one is for '{found.target}' alone",
                    hint="name one by --draft: `sequoia distill` makes it, and a small model of the target's "
                    "family is one; generate --plain needs none",
                )
            raise BadInput(
                f"{found.source} was made for '{found.target}', with {found.vocabulary} ids and width "
                f"{found.config.width}; {target.source} has {target.vocabulary} and {width}",
                hint="use it with the target that it was made for",
            )
        self._notes = [f"{found.source} reads the hidden states of its target"]
        if unlike := self._unlike(target):
            self._notes.append(f"{found.source} was made for '{found.target}': {unlike}")
        self._ids = read_vocabulary(found.source, found.folder, found.vocabulary)
        fetch_weights(found.source, ["model.safetensors"], self._announce)

    def _unlike(self, target: Checkpoint) -> str | None:
        """What to expect of a target of the same shape that is another."""
        digest = tokenizer_digest(target.tokenizer) if target.tokenizer is not None else None
        if self._found.tokenizer is not None and self._found.tokenizer != digest:
            return f"ids mean other tokens to {target.source}, so few of its proposals can be right"
        if self._found.target != plain_name(target.source.name):
            return f"{target.source} may accept fewer of its proposals"
        return None

    def preload(self, dtype: torch.dtype) -> None:
        self._model = load_feature(self._found, dtype)

    def load(self, dtype: torch.dtype, target: PreTrainedModel) -> LoadedDraft:
        return LoadedDraft(self._model, self._ids, self._found.source, tuple(self._notes))
