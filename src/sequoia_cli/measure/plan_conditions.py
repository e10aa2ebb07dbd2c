"""Whether a run is what its tree was compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sequoia_cli.core.rates import UNSTATED

_MODELS = ("target", "draft", "dtype", "quantize", "quantize_draft")
#: What shapes a sample, and nothing for a greedy target.
_SHAPES = ("top_k", "top_p", "draft_temperature", "verifier")

#: Below so many tokens, attention to the text is little beside the weights, and its length does not matter.
_LONG = 1024
#: Above it, lengths that differ by this factor have other times.
_FACTOR = 4


def differing_conditions(inputs: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What a plan's `inputs` state and is different `here`: name -> (there, here). What is not stated agrees.

    `context` is the mean number of tokens before the tree.
    """
    times, rates = _stated(inputs, "profile"), _stated(inputs, "acceptance")
    keys: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        (times, (*_MODELS, "device", "forward")),
        (rates, (*_MODELS, "target_weights", "draft_weights", "temperature")),
    ]
    if here["temperature"] and rates.get("temperature"):
        keys.append(({**UNSTATED, **rates}, _SHAPES))
    found = {
        key: (stated[key], here[key])
        for stated, names in keys
        for key in names
        if stated.get(key) is not None and here.get(key) is not None and stated[key] != here[key]
    }
    # Times depend on whether a temperature is 0, when nothing is drawn, and not on which it is.
    sampled = times.get("temperature")
    if sampled is not None and bool(sampled) != bool(here["temperature"]):
        found.setdefault("temperature", (sampled, here["temperature"]))
    if _other_length(times.get("context"), here["context"]):
        found["context"] = (times["context"], here["context"])
    # Another model has other weights, and so has the same one in another dtype.
    for model in ("target", "draft"):
        if model in found or "dtype" in found:
            found.pop(f"{model}_weights", None)
    return found


def _stated(inputs: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The conditions of a part of the inputs, with the device that a profile names beside them."""
    stated = inputs.get(part)
    if not isinstance(stated, Mapping):
        return {}
    conditions = stated.get("conditions")
    device = {"device": stated["device"]} if stated.get("device") not in (None, "unknown") else {}
    return device | (dict(conditions) if isinstance(conditions, Mapping) else {})


def _other_length(there: Any, here: int) -> bool:
    if isinstance(there, bool) or not isinstance(there, int | float) or there <= 0:
        return False
    short, long = sorted((there, here))
    return long >= _LONG and long > _FACTOR * short
