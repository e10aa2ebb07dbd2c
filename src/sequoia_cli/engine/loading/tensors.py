"""Tensors into a safetensors file, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from sequoia_cli.errors import SequoiaError

#: What to do about work that could not be saved.
WITH_MORE_ROOM = "what was saved before is kept; with more room the same command resumes"


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write beside `path`, and rename once all is on the disk. Raises `SequoiaError` where that fails."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    # One copy each, since what shares memory cannot be written.
    contents = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    try:
        save_file(contents, scratch, metadata=metadata)
        scratch.chmod(0o644)  # as other files, where the library makes it the owner's alone
        with scratch.open("rb+") as file:
            os.fsync(file.fileno())
        scratch.replace(path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SequoiaError(f"{path} could not be written: {reason}", WITH_MORE_ROOM) from None
    finally:  # an interruption leaves nothing either
        scratch.unlink(missing_ok=True)
