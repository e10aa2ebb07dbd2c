"""A draft's reduced vocabulary: the ids that its output head is kept for, noted in the draft's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sequoia_cli.core.artifact import render
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.engine.loading.foreign import read_json
from sequoia_cli.engine.loading.sources import Source
from sequoia_cli.errors import BadInput

FILE = "draft_vocabulary.json"
_SCHEMA = "sequoia-draft-vocabulary/1"


def write_vocabulary(folder: Path, ids: Sequence[int], counted: Mapping[str, Any]) -> None:
    """Note the `ids` of a draft's head; `counted` says on what they were counted."""
    write_atomically(folder / FILE, render({"schema": _SCHEMA, **counted, "ids": list(ids)}, "json"))


def read_vocabulary(source: Source, folder: Path, vocabulary: int) -> Tensor | None:
    """The rising ids of a draft's head, all below `vocabulary`; None where the folder keeps them all.

    Raises `BadInput` for a file that is not such a list.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    found = read_json(source, path)
    if found.get("schema") != _SCHEMA:
        raise BadInput(f"{source}: {path} has schema {found.get('schema')!r}; expected '{_SCHEMA}'")
    ids = found.get("ids")
    if not isinstance(ids, list) or not ids or not all(type(id) is int for id in ids):
        raise BadInput(f"{source}: 'ids' of {path} is no list of whole numbers")
    if ids != sorted(set(ids)):
        raise BadInput(f"{source}: 'ids' of {path} must rise, each once")
    if ids[0] < 0 or ids[-1] >= vocabulary:
        raise BadInput(
            f"{source}: 'ids' of {path} reach from {ids[0]} to {ids[-1]}; target and draft share 0 to "
            f"{vocabulary - 1}",
            hint="use the draft with the target that it was made for",
        )
    return torch.tensor(ids)


def require_head(source: Source, model: PreTrainedModel) -> None:
    """Raise `BadInput` where a draft has ids and its model, which may be without storage, no head to cut."""
    if _head(model) is None:
        family = model.config.model_type
        raise BadInput(f"{source}: the output head of family {family} cannot be cut to the ids of {FILE}")


def cut_head(model: PreTrainedModel, ids: Tensor) -> None:
    """Leave a model's output head the rows of `ids` alone. Raises `BadInput` where it has no such head."""
    head = _head(model)
    if head is None:
        raise BadInput(f"the output head of family {model.config.model_type} cannot be cut to fewer ids")
    small = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
    small.weight = nn.Parameter(head.weight.detach()[ids].contiguous(), requires_grad=False)
    if head.bias is not None:
        small.bias = nn.Parameter(head.bias.detach()[ids].contiguous(), requires_grad=False)
    model.set_output_embeddings(small)


def _head(model: PreTrainedModel) -> nn.Linear | None:
    try:
        head = model.get_output_embeddings()
    except NotImplementedError:  # a class of someone's own that does not say
        return None
    return head if isinstance(head, nn.Linear) else None
