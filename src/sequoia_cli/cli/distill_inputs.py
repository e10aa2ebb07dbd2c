"""What `sequoia distill` was asked for, and the folder that it writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sequoia_cli.core.writing import reserve
from sequoia_cli.errors import BadInput, SequoiaError

#: Sizes of the draft's vocabulary that `--draft-vocab auto` measures; None is all.
CANDIDATES = (4096, 8192, 16384, None)
#: What `auto` trains on: more cost time, and hardly ever come up.
TRAINED = 8192


@dataclass(frozen=True)
class Inputs:
    """The options of the command, checked one by one."""

    target: str
    output: str | None
    kind: str
    layers: int
    config: Any
    vocabulary: str
    start: str | None
    count: int
    tokens: int
    dataset: str | None
    column: str | None
    limit: int | None
    skip_bad: bool
    temperatures: tuple[float, ...]
    new_tokens: int
    length: int
    rows: int
    corpus: str | None
    epochs: int
    batch_tokens: int
    learning_rate: float
    passes: int
    raw: bool
    seed: int
    device: str
    dtype: str
    forward: str
    threads: int | None
    trust_remote_code: bool
    force: bool

    def trained_vocabulary(self, vocabulary: int) -> int | None:
        """Ids that the draft is trained on; None for all. Raises `BadInput` for what is no number of ids."""
        if self.vocabulary == "all":
            return None
        if self.vocabulary == "auto":
            return TRAINED if vocabulary > TRAINED else None
        try:
            size = int(self.vocabulary)
        except ValueError:
            size = 0
        if not 2 <= size <= vocabulary:
            raise BadInput(
                f"--draft-vocab is '{self.vocabulary}'; expected 2 to {vocabulary} (the ids that "
                "target and draft share), all or auto"
            )
        return size

    def candidates(self, vocabulary: int) -> tuple[int | None, ...]:
        """Sizes of the draft's vocabulary to choose from once it is trained."""
        if self.vocabulary != "auto":
            return (self.trained_vocabulary(vocabulary),)
        return tuple(size for size in CANDIDATES if size is None or size < vocabulary)


def read_config(path: str | None, trust_remote_code: bool) -> Any:
    """The transformers configuration in `path`, None where there is none. Raises `BadInput`."""
    if path is None:
        return None
    from transformers import AutoConfig

    from sequoia_cli.engine.loading.foreign import refusing

    with refusing(f"--config {path} cannot be used"):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)


class DraftFolder:
    """The draft's folder, refused at once where it cannot be written; unfinished work is kept beside it."""

    def __init__(self, path: Path, *, force: bool, corpus: str | None = None) -> None:
        if str(path) == "-":
            raise BadInput("a draft is a folder, which stdout cannot take", hint="name one with -o")
        if path.name in ("", ".."):
            raise BadInput(f"{path} cannot be a draft's folder", hint="name another with -o")
        self.path = path
        self.work = path.with_name(path.name + ".partial")
        if path.is_file():
            raise BadInput(f"{path} is a file; a draft is a folder")
        if path.is_dir() and any(path.iterdir()):
            if not force:
                raise BadInput(
                    f"{path} exists", hint="choose another folder with -o, or replace it with --force"
                )
            if not all(_is_draft(each) for each in _drafts(path)):
                raise BadInput(f"{path} is not a draft made by distill; --force does not remove it")
        self._found = frozenset(path.rglob("*"))
        if corpus is not None:
            self._require_apart(Path(corpus))
        try:
            self.begin()
            if not any(self.work.iterdir()):
                self.work.rmdir()  # made again once there is something to keep
            place = Path(os.path.realpath(path))
            self._reservation = reserve(place, path, self)
        except OSError as error:
            raise BadInput(
                f"{self.work} cannot be written: {error.strerror}", hint="choose another folder with -o"
            ) from None

    def _require_apart(self, corpus: Path) -> None:
        """Raise `BadInput` for texts where they would be removed with a draft, or a draft among texts."""
        if _within(corpus, self.work):
            raise BadInput(
                f"--corpus {corpus} lies in {self.work}, which is removed once the draft is finished",
                hint="leave --corpus out to go on from texts there, or choose another folder",
            )
        if _within(corpus, self.path) or _within(self.path, corpus):
            raise BadInput(
                f"--corpus {corpus} and the draft's folder {self.path} are one, or one lies in the other",
                hint="choose another folder with -o or --corpus",
            )

    def begin(self) -> None:
        """Make the folder of unfinished work."""
        self.work.mkdir(parents=True, exist_ok=True)

    def release(self) -> None:
        """Let other commands have the folder."""
        self._reservation.release()

    def publish(self, finished: Mapping[str, Path]) -> None:
        """Put finished folders in place, by their names below this one (an empty name is this one itself).

        Of what is there, only the drafts that were there from the start make way. Raises `SequoiaError`.
        """
        if new := sorted(set(self.path.rglob("*")) - self._found):
            raise SequoiaError(
                f"{new[0]} was put there while the draft was made, so that {self.path} is not replaced",
                hint=f"move it away and run the same command again; the draft is kept in {self.work}",
            )
        try:
            if self.path.exists():
                shutil.rmtree(self.path)
            for name, folder in finished.items():
                place = self.path / name if name else self.path
                place.parent.mkdir(parents=True, exist_ok=True)
                folder.rename(place)
            shutil.rmtree(self.work)
        except OSError as error:
            raise SequoiaError(f"{self.path} could not be written: {error.strerror or error}") from None


def _drafts(path: Path) -> list[Path]:
    """The folder itself, or those in it where it holds the drafts 1, 2, ... of one command alone."""
    inside = list(path.iterdir())
    return inside if all(each.is_dir() and each.name.isdecimal() for each in inside) else [path]


def _within(inner: Path, outer: Path) -> bool:
    """Whether a path is another, or lies below it."""
    return inner.resolve().is_relative_to(outer.resolve())


def _is_draft(path: Path) -> bool:
    return (path / "distillation.json").is_file()
