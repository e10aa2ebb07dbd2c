"""What a target wrote, on disk: token ids and the target's hidden state behind each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sequoia_cli.core.artifact import read_document, render, write_atomically
from sequoia_cli.engine.loading.tensors import save_tensors
from sequoia_cli.errors import BadInput, SequoiaError

_CONDITIONS = "corpus.json"


@dataclass(frozen=True)
class Text:
    """One text: `tokens` (n,), the target's last `hidden` states (n, width) behind them, and which of the
    tokens are `answer` (n,), the target's own where it is to be drafted for.
    """

    tokens: Tensor
    hidden: Tensor
    answer: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class Corpus:
    """A folder of texts in shards, added to as they are written.

    A corpus of the same `conditions` goes on where it stopped. Raises `BadInput` for a folder that holds
    anything else, `SequoiaError` where it cannot be written.
    """

    def __init__(self, folder: Path, conditions: Mapping[str, Any]) -> None:
        self.folder = folder
        self.tokens = 0
        noted = folder / _CONDITIONS
        expected = json.loads(json.dumps(conditions))
        if noted.exists():
            found = read_document(noted).data
            if found != expected:
                raise BadInput(
                    f"{folder} holds a corpus made under other conditions: {_difference(found, expected)}",
                    hint="choose another folder with --corpus, or remove this one",
                )
        elif folder.is_file() or (folder.exists() and any(folder.iterdir())):
            raise BadInput(f"{folder} exists and is no corpus", hint="choose another folder with --corpus")
        else:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SequoiaError(f"{folder} could not be made: {error.strerror}") from None
            write_atomically(noted, render(expected, "json"))
        self._shards = [_load(path) for path in self._paths()]
        self.tokens = sum(len(shard["tokens"]) for shard in self._shards)

    @property
    def shards(self) -> int:
        """Shards written so far."""
        return len(self._shards)

    def add(self, texts: Sequence[Text]) -> None:
        """Write texts as one more shard, whole or not at all."""
        shard = {
            "tokens": torch.cat([text.tokens for text in texts]).to(torch.int32),
            "hidden": torch.cat([text.hidden for text in texts]),
            "answer": torch.cat([text.answer for text in texts]),
            "lengths": torch.tensor([len(text) for text in texts]),
        }
        path = self.folder / _name(self.shards)
        save_tensors(path, shard)
        self._shards.append(_load(path))
        self.tokens += len(shard["tokens"])

    def texts(self) -> list[Text]:
        """All texts, in the order they were written; their states stay on disk until they are used."""
        return [
            Text(*columns)
            for shard in self._shards
            for columns in zip(
                *(shard[key].split(shard["lengths"].tolist()) for key in ("tokens", "hidden", "answer")),
                strict=True,
            )
        ]

    @property
    def digest(self) -> str:
        """Identity of the texts: their ids, in order."""
        digest = hashlib.sha256()
        for shard in self._shards:
            digest.update(shard["tokens"].numpy().tobytes())
        return "sha256:" + digest.hexdigest()

    def _paths(self) -> list[Path]:
        paths = sorted(self.folder.glob("[0-9]*.safetensors"))
        for number, path in enumerate(paths):
            if path.name != _name(number):
                raise BadInput(
                    f"{self.folder} has {path.name} and no {_name(number)}",
                    hint="remove the shards behind the gap; the same command goes on",
                )
        return paths


def _name(shard: int) -> str:
    return f"{shard:05d}.safetensors"


def _load(path: Path) -> dict[str, Tensor]:
    try:
        shard = load_file(path)
        rows = int(shard["lengths"].sum())
        if any(len(shard[key]) != rows for key in ("tokens", "hidden", "answer")):
            raise ValueError("its parts differ in length")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise BadInput(
            f"{path} is damaged: {error}", hint="remove it and the shards after it; the same command goes on"
        ) from None
    return shard


def _difference(found: Any, expected: Mapping[str, Any]) -> str:
    if not isinstance(found, dict):
        return f"{_CONDITIONS} is no object"
    keys = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
    return "; ".join(f"{key} {found.get(key)} there, {expected.get(key)} now" for key in keys)
