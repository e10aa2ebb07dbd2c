"""The weights of a model folder: which files hold them, what they name, and loading them without a gap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from sequoia_cli.engine.loading.checkpoint import CONTENTS, Checkpoint
from sequoia_cli.engine.loading.completeness import require_complete
from sequoia_cli.engine.loading.foreign import read_json, refusing
from sequoia_cli.engine.loading.generation_settings import not_applied
from sequoia_cli.engine.loading.sources import Announce, Source, fetch_weights
from sequoia_cli.errors import BadInput

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


def weight_files(source: Source, folder: Path) -> list[str]:
    """Names of the safetensors files that hold the model: those of its index, else the single one."""
    if not (folder / _INDEX).is_file():
        return [_SINGLE]
    weight_map = read_json(source, folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadInput(f"{source}: {folder / _INDEX} has no weight_map")
    return sorted({str(name) for name in weight_map.values()})


def stored_names(checkpoint: Checkpoint, announce: Announce) -> frozenset[str]:
    """`weight_names` of a model, whose weights are fetched first where they are not here."""
    source, folder = checkpoint.source, checkpoint.folder
    fetch_weights(source, weight_files(source, folder), announce)
    return weight_names(source, folder)


def weight_names(source: Source, folder: Path) -> frozenset[str]:
    """Names of all weights in the files; reads their headers only.

    Raises `BadInput` for weights that are missing, pickled, cut short or not downloaded.
    """
    names: set[str] = set()
    for file in weight_files(source, folder):
        path = folder / file
        if not path.is_file():
            raise _missing(source, path)
        try:
            with safe_open(path, framework="pt") as opened:
                names.update(opened.keys())
        except SafetensorError as error:
            with path.open("rb") as raw:
                pointer = raw.read(16).startswith(b"version https:")
            what = "a Git LFS pointer, not the weights" if pointer else f"damaged or cut short ({error})"
            how = "run `git lfs pull` in its folder" if pointer else "download or copy it again"
            if source.kind == "alias":
                how = f"remove {folder} and it is made again"
            raise BadInput(f"{source}: {path} is {what}", hint=how) from None
    return frozenset(names)


def _missing(source: Source, path: Path) -> BadInput:
    if path.name != _SINGLE:
        return BadInput(
            f"{source}: {path} is missing, though {_INDEX} names it", hint="download or copy the folder again"
        )
    if any(path.parent.glob("*.bin")):
        return BadInput(
            f"{source}: {path.parent} has only pickled .bin weights, which can run code and are not loaded",
            hint="convert them: load the model in transformers and save it with save_pretrained",
        )
    return BadInput(f"{source}: {path.parent} has no {_SINGLE}", hint=CONTENTS)


def load_model(
    checkpoint: Checkpoint, dtype: torch.dtype, state: dict[str, Tensor] | None = None
) -> tuple[PreTrainedModel, list[str]]:
    """The model on the CPU, at rest, and notes on what of it is not used.

    With `state` the weights are those tensors, used in place, instead of the files'. Raises `BadInput` as
    `require_complete` does: nothing is ever filled in at random.
    """
    with refusing(f"{checkpoint.source} cannot be loaded"):
        model, report = type(checkpoint.skeleton).from_pretrained(
            checkpoint.folder if state is None else None,
            # That of the text model, where the folder's has others beside it.
            config=checkpoint.skeleton.config,
            state_dict=state,
            dtype=dtype,
            attn_implementation=checkpoint.skeleton.config._attn_implementation,
            local_files_only=True,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # so that they are reported, and refused below by name
            output_loading_info=True,
        )
    notes = require_complete(checkpoint.source, model, report)
    model.eval()
    model.requires_grad_(False)
    generation = model.generation_config
    if generation is not None and (kind := generation.cache_implementation):
        generation.cache_implementation = None
        notes.append(f"{checkpoint.source} asks for a {kind} cache; the tree cache is used instead")
    # What a draft's own generate would do changes nothing: the text is the target's.
    if checkpoint.source.role == "target" and (asked := not_applied(_settings(checkpoint, model))):
        notes.append(
            f"{checkpoint.source} asks for {asked} in its generation_config.json, which is not applied here: "
            "its own generate may give another text"
        )
    return model, notes


def _settings(checkpoint: Checkpoint, model: PreTrainedModel) -> dict[str, Any]:
    """What is set for generating: as transformers has it, and keys of the file that it does not know."""
    path = checkpoint.folder / "generation_config.json"
    known = vars(model.generation_config) if model.generation_config is not None else {}
    return {**known, **(read_json(checkpoint.source, path) if path.is_file() else {})}
