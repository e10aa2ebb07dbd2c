"""Texts written by a target, on disk: token ids and the target's hidden state after each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sequoia_cli.core.artifact import read_document, render
from sequoia_cli.core.locks import Reservation, Taken
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.engine.loading.tensors import save_tensors
from sequoia_cli.errors import BadInput, SequoiaError

_CONDITIONS = "corpus.json"
#: Keys that older versions stored though they do not affect the texts: ignored.
_IGNORED = ("rows",)
#: Keys that older versions did not store: compared only if present.
_OPTIONAL = ("target_weights",)


@dataclass(frozen=True)
class Text:
    """One text of n tokens.

    `tokens` (n,); `hidden` (n, width), the target's last hidden state after each token; `answer` (n,), true
    for the tokens that a draft is trained to predict.
    """

    tokens: Tensor
    hidden: Tensor
    answer: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class Texts:
    """Texts in the order they were written, stored in shards."""

    def __init__(self, shards: Sequence[Mapping[str, Tensor]]) -> None:
        self._shards = list(shards)

    @property
    def tokens(self) -> int:
        """The number of tokens in all texts."""
        return sum(len(shard["tokens"]) for shard in self._shards)

    @property
    def count(self) -> int:
        """The number of texts."""
        return sum(len(shard["lengths"]) for shard in self._shards)

    @property
    def digest(self) -> str:
        """A hash of the token ids, in order."""
        digest = hashlib.sha256()
        for shard in self._shards:
            digest.update(shard["tokens"].numpy().tobytes())
        return "sha256:" + digest.hexdigest()

    def texts(self) -> list[Text]:
        """All texts, in the order they were written; hidden states are read from disk when used."""
        return [
            Text(*columns)
            for shard in self._shards
            for columns in zip(
                *(shard[key].split(shard["lengths"].tolist()) for key in ("tokens", "hidden", "answer")),
                strict=True,
            )
        ]

    def first(self, tokens: int) -> Texts:
        """The shortest run of first texts that has at least `tokens` tokens; all texts if they have fewer."""
        shards: list[Mapping[str, Tensor]] = []
        left = tokens
        for shard in self._shards:
            if left <= 0:
                break
            ends = shard["lengths"].cumsum(0)
            count = min(int((ends < left).sum()) + 1, len(ends))
            rows = int(ends[count - 1])
            shards.append({key: value[: count if key == "lengths" else rows] for key, value in shard.items()})
            left -= rows
        return Texts(shards)


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Lock a corpus folder for writing. Raises `BadInput` if another command holds the lock."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        reservation = Reservation(folder)
    except Taken:
        raise BadInput(
            f"{folder} is being written to by another command",
            hint="wait for that one, or choose another folder with --corpus",
        ) from None
    except OSError as error:
        raise SequoiaError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        reservation.release()


class Corpus(Texts):
    """A folder of texts that grows by one shard at a time.

    Opening a folder of the same `conditions` continues it; one without texts takes the new conditions. Raises
    `BadInput` if the folder holds anything else, `SequoiaError` if it cannot be written.
    """

    def __init__(self, folder: Path, conditions: Mapping[str, Any]) -> None:
        self.folder = folder
        noted = folder / _CONDITIONS
        expected = json.loads(json.dumps(conditions, allow_nan=False))
        if noted.exists():
            found = read_document(noted).data
            comparable = expected
            if isinstance(found, dict):
                found = {key: value for key, value in found.items() if key not in _IGNORED}
                unstated = [key for key in _OPTIONAL if key not in found]
                comparable = {key: value for key, value in expected.items() if key not in unstated}
            if found != comparable:
                # Other keys: the file is from another program or version, and is not overwritten.
                if not isinstance(found, dict) or found.keys() != comparable.keys() or self._paths():
                    raise BadInput(
                        f"{folder} holds a corpus made under other conditions: "
                        f"{_difference(found, comparable)}",
                        hint="choose another folder with --corpus, or remove this one",
                    )
                write_atomically(noted, render(expected, "json"))
        elif folder.is_file() or (folder.exists() and any(folder.iterdir())):
            raise BadInput(f"{folder} exists and is no corpus", hint="choose another folder with --corpus")
        else:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SequoiaError(f"{folder} could not be made: {error.strerror}") from None
            write_atomically(noted, render(expected, "json"))
        super().__init__([_load(path) for path in self._paths()])

    @staticmethod
    def holds_texts(folder: Path) -> bool:
        """Whether a folder has texts. Opening such a folder writes nothing."""
        return (folder / _name(0)).exists()

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self._shards)

    def add(self, texts: Sequence[Text]) -> None:
        """Write texts as one more shard, atomically."""
        shard = {
            "tokens": torch.cat([text.tokens for text in texts]).to(torch.int32),
            "hidden": torch.cat([text.hidden for text in texts]),
            "answer": torch.cat([text.answer for text in texts]),
            "lengths": torch.tensor([len(text) for text in texts]),
        }
        path = self.folder / _name(self.shards)
        save_tensors(path, shard)
        self._shards.append(_load(path))

    def _paths(self) -> list[Path]:
        paths = sorted(self.folder.glob("[0-9]*.safetensors"))
        for number, path in enumerate(paths):
            if path.name != _name(number):
                raise BadInput(
                    f"{self.folder} has {path.name} and no {_name(number)}",
                    hint="remove the shards after the gap; the same command then resumes",
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
            f"{path} is damaged: {error}",
            hint="remove it and the shards after it; the same command then resumes",
        ) from None
    return shard


def _difference(found: Any, expected: Mapping[str, Any]) -> str:
    if not isinstance(found, dict):
        return f"{_CONDITIONS} is no object"
    keys = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
    return "; ".join(f"{key} {found.get(key)} there, {expected.get(key)} now" for key in keys)
