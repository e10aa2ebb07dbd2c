"""Feature drafts as folders: a config.json of ours, and weights that leave out what is the target's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sequoia_cli.core.artifact import is_number, render
from sequoia_cli.core.parsing import shown
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.engine.feature_model import FeatureConfig, FeatureModel
from sequoia_cli.engine.loading.foreign import read_json
from sequoia_cli.engine.loading.sources import Source
from sequoia_cli.engine.loading.tensors import save_tensors
from sequoia_cli.errors import BadInput

MODEL_TYPE = "sequoia_feature_draft"
_SCHEMA = "sequoia-feature-draft/1"
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class FeatureFolder:
    """What the config.json of a feature draft says: its shape, and the target that it was made for.

    `tokenizer` is the digest of that target's; folders of earlier versions have none.
    """

    source: Source
    folder: Path
    config: FeatureConfig
    target: str
    vocabulary: int
    tokenizer: str | None


def save_feature(
    folder: Path, model: FeatureModel, target: str, vocabulary: int, tokenizer: str | None = None
) -> None:
    """Write config.json and weights.

    `vocabulary` is the number of the target's embedding rows, `tokenizer` the digest of what its ids mean.
    """
    config = {
        "schema": _SCHEMA,
        "model_type": MODEL_TYPE,
        "target": target,
        "vocabulary": vocabulary,
        **({"tokenizer": tokenizer} if tokenizer else {}),
        **asdict(model.config),
    }
    write_atomically(folder / "config.json", render(config, "json"))
    save_tensors(folder / _WEIGHTS, model.state_dict())


def is_feature_folder(folder: Path) -> bool:
    """Whether config.json says that this is one of ours; a damaged one is for others to complain of."""
    try:
        return f'"{MODEL_TYPE}"' in (folder / "config.json").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False


def describe_feature(source: Source, folder: Path) -> FeatureFolder:
    """Read config.json. Raises `BadInput` for another version or values that cannot be, or not together."""
    path = folder / "config.json"
    found = read_json(source, path)
    if found.get("schema") != _SCHEMA:
        raise BadInput(f"{source}: {path} has schema {found.get('schema')!r}; expected '{_SCHEMA}'")

    def wrong(key: str, expected: str) -> BadInput:
        return BadInput(f"{source}: '{key}' of {path} is {shown(found.get(key))}; expected {expected}")

    def number(key: str, kind: type, most: int = _MOST) -> Any:
        value = found.get(key)
        if not is_number(value) or value is None or not 0 < value <= most or kind(value) != value:
            raise wrong(key, f"a {'whole ' if kind is int else ''}number above 0, up to {most}")
        return kind(value)

    shape = {
        field.name: number(field.name, int, _MOST_LAYERS if field.name == "layers" else _MOST)
        for field in fields(FeatureConfig)
        if field.name != "rope_theta"
    }
    config = FeatureConfig(**shape, rope_theta=number("rope_theta", float))
    if config.heads % config.kv_heads:
        raise wrong("heads", f"a multiple of 'kv_heads', {config.kv_heads}")
    if config.head_width % 2:
        raise wrong("head_width", "an even number")
    target = found.get("target")
    if not isinstance(target, str) or not target:
        raise wrong("target", "a model's name")
    tokenizer = found.get("tokenizer")
    if not isinstance(tokenizer, str | None):
        raise wrong("tokenizer", "a digest")
    return FeatureFolder(source, folder, config, target, number("vocabulary", int), tokenizer)


#: Numbers beyond these are no draft's, and would take for ever or all memory before a weight is missed.
_MOST, _MOST_LAYERS = 1 << 30, 1000


def load_feature(draft: FeatureFolder, dtype: torch.dtype) -> FeatureModel:
    """The network on the CPU, at rest. Raises `BadInput` for weights that are missing or do not fit."""
    path = draft.folder / _WEIGHTS
    try:
        with torch.device("meta"):
            model = FeatureModel(draft.config)
        weights = load_file(path)
        model.load_state_dict(weights, assign=True)
    except FileNotFoundError:
        raise BadInput(f"{draft.source}: {draft.folder} has no {_WEIGHTS}") from None
    except (OSError, SafetensorError, RuntimeError) as error:
        said = " ".join(str(error).split())[:200]
        raise BadInput(f"{draft.source}: {path} does not hold this draft's weights: {said}") from None
    return model.to(dtype).eval().requires_grad_(False)
