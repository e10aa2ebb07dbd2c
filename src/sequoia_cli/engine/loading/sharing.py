"""Drafts without an embedding and an output head of their own, which use those of their target.

A draft distilled from its target often keeps both unchanged. Left out of the file and shared in memory they
cost nothing: for a small draft they are most of its weights.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from sequoia_cli.engine.loading.checkpoint import Checkpoint
from sequoia_cli.engine.loading.weights import load_model, weight_files
from sequoia_cli.errors import BadInput


def lacks_embeddings(checkpoint: Checkpoint, stored: frozenset[str]) -> bool:
    """Whether neither the embedding nor the output head is among the `stored` weights."""
    modules = [module for module in _ends(checkpoint.skeleton) if module is not None]
    # By the modules' own names, since prefixes differ between a file and the model made of it.
    own = {
        name.rpartition(".")[2] for name, module in checkpoint.skeleton.named_modules() if module in modules
    }
    if not own or any(own.intersection(name.split(".")) for name in stored):
        return False
    # Some families store them under other names than the modules', and then nothing is missing.
    return len(stored) < len(list(checkpoint.skeleton.parameters()))


def require_fit(draft: Checkpoint, target: Checkpoint) -> None:
    """Raise `BadInput` unless the target's embedding and head have the shapes that the draft needs."""
    for mine, theirs in zip(_ends(draft.skeleton), _ends(target.skeleton), strict=True):
        if mine is None or theirs is None:
            raise BadInput(
                f"{draft.source} has no embedding and head of its own and cannot share those of "
                f"{target.source}: their classes do not expose them"
            )
        (rows, width), (their_rows, their_width) = _shape(mine), _shape(theirs)
        if (rows, width) != (their_rows, their_width):
            raise BadInput(
                f"{draft.source} has no embedding and head of its own, and those of {target.source} do not "
                f"fit: vocabulary {their_rows} and width {their_width}, where it needs {rows} and {width}",
                hint="use it with the target that it was made for",
            )


def load_sharing(
    draft: Checkpoint, dtype: torch.dtype, target: PreTrainedModel
) -> tuple[PreTrainedModel, list[str]]:
    """Load a draft whose embedding and head are the target's parameters: the same objects, no copy.

    The draft keeps its own modules around them, since some families scale or offset inside these.
    Raises `BadInput` as `load_model` does, for every other weight.
    """
    state: dict[str, Tensor] = dict(_shared_weights(draft.skeleton, target))
    for file in weight_files(draft.source, draft.folder):
        state.update(load_file(draft.folder / file))
    model, notes = load_model(draft, dtype, state)
    share_ends(model, target)
    return model, [*notes, f"{draft.source} shares the embedding and output head of its target"]


def share_ends(model: PreTrainedModel, target: PreTrainedModel) -> None:
    """Make the target's embedding and head parameters those of `model`: the same objects, no copy."""
    for mine, theirs in _pairs(model, target):
        for name, parameter in _parameters(mine, theirs):
            setattr(mine, name, parameter)


def share_whole_head(model: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give a model whose head was cut to some ids a whole one again: the target's."""
    small, theirs = _ends(model)[1], _ends(target)[1]
    assert isinstance(small, nn.Linear)
    assert theirs is not None
    rows, width = _shape(theirs)
    whole = nn.Linear(width, rows, bias=small.bias is not None, device="meta")
    model.set_output_embeddings(whole)
    share_ends(model, target)


def end_names(model: PreTrainedModel) -> frozenset[str]:
    """Names of the embedding's and the head's parameters, which a draft that shares them leaves out."""
    names = {module: name for name, module in model.named_modules()}
    ends = [module for module in _ends(model) if module is not None]
    return frozenset(
        f"{names[module]}.{name}" for module in ends for name, _ in module.named_parameters(recurse=False)
    )


def end_width(model: PreTrainedModel) -> int | None:
    """The one width of embedding and head, which may be narrower than the layers; else None."""
    widths = {_shape(module)[1] if module is not None else None for module in _ends(model)}
    return widths.pop() if len(widths) == 1 else None


def _shared_weights(draft: PreTrainedModel, target: PreTrainedModel) -> Iterator[tuple[str, nn.Parameter]]:
    """The target's embedding and head weights, under the names that they have in the draft."""
    names = {module: name for name, module in draft.named_modules()}
    for mine, theirs in _pairs(draft, target):
        for name, parameter in _parameters(mine, theirs):
            yield f"{names[mine]}.{name}", parameter


def _parameters(mine: nn.Module, theirs: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, found) for name, found in theirs.named_parameters(recurse=False) if hasattr(mine, name))


def _ends(model: PreTrainedModel) -> tuple[nn.Module | None, nn.Module | None]:
    try:
        return model.get_input_embeddings(), model.get_output_embeddings()
    except NotImplementedError:  # a class of someone's own that does not say
        return None, None


def _pairs(draft: PreTrainedModel, target: PreTrainedModel) -> Iterator[tuple[nn.Module, nn.Module]]:
    for mine, theirs in zip(_ends(draft), _ends(target), strict=True):
        if mine is not None and theirs is not None:
            yield mine, theirs


def _shape(module: nn.Module) -> tuple[int, int]:
    rows, width = module.get_parameter("weight").shape
    return rows, width
