"""The state of a training that is not finished: tensors and a few numbers in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from sequoia_cli.engine.loading.tensors import save_tensors
from sequoia_cli.errors import BadInput


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
    """Write both to `path`, whole or not at all. Raises `SequoiaError` where that fails."""
    save_tensors(path, tensors, {"notes": json.dumps(notes)})


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and notes of `save_checkpoint`. Raises `BadInput` for a damaged file."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = json.loads((file.metadata() or {})["notes"])
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadInput(f"{path} is damaged: {error}", hint="remove it, and training begins anew") from None
