"""Whether the weights of a checkpoint are those of the model that its config describes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from sequoia_cli.engine.loading.sources import Source
from sequoia_cli.errors import BadInput

#: A name up to its first number, which is that of a layer, and the rest.
_IN_LAYER = re.compile(r"(.*?\.\d+)\.(.+)")

#: Weights that a message names.
_MOST = 3

_COMPLAINTS = {
    "missing_keys": "its files lack",
    "mismatched_keys": "its config.json asks for other shapes of",
    "error_msgs": "errors on loading:",
}


def require_complete(source: Source, model: nn.Module, report: Mapping[str, Any]) -> list[str]:
    """Notes on weights that the model does not use; `report` is transformers' own on loading it.

    Checkpoints carry weights of more than the model: layers that predict further tokens, a value head. Raises
    `BadInput` where a weight is missing or of another shape, and where an unused one belongs to the model, so
    that its config.json must be another's.
    """
    for key, complaint in _COMPLAINTS.items():
        if found := _names(report[key]):
            raise BadInput(f"{source}: {complaint} {_listed(found)}", hint=_hint(key))
    unused = _names(report["unexpected_keys"])
    if own := [name for name in unused if _beside_used(name, model)] or _further_layers(unused, model):
        raise BadInput(
            f"{source}: its files hold weights that its config.json has no place for: {_listed(own)}",
            hint="config.json and weights are not of the same model",
        )
    if not unused:
        return []
    return [f"{source}: its files hold weights that the model does not use: {_listed(unused)}"]


def _beside_used(name: str, model: nn.Module) -> bool:
    """Whether the model has a layer of that name, and that layer other weights: a bias that it leaves out."""
    modules = dict(model.named_modules())
    parent = modules.get(name.rpartition(".")[0])
    return parent is not None and next(parent.parameters(recurse=False), None) is not None


def _further_layers(unused: Iterable[str], model: nn.Module) -> list[str]:
    """Weights of layers that have what the model's own have, and no more: the config counts too few."""
    own = set(_by_layer(model.state_dict()).values())
    return sorted(
        f"{layer}.{rest}" for layer, names in _by_layer(unused).items() if names in own for rest in names
    )


def _by_layer(names: Iterable[str]) -> dict[str, frozenset[str]]:
    layers: dict[str, set[str]] = {}
    for name in names:
        if match := _IN_LAYER.fullmatch(name):
            layers.setdefault(match[1], set()).add(match[2])
    return {layer: frozenset(rest) for layer, rest in layers.items()}


def _names(entries: Iterable[Any]) -> list[str]:
    return sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in entries)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _hint(key: str) -> str | None:
    if key == "missing_keys":
        return "download or copy the folder again; only a draft may leave out both embedding and output head"
    return "config.json and weights are not of the same model" if key != "error_msgs" else None
