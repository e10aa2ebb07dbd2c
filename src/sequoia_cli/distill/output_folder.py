"""The output folder of a draft, and the folder of unfinished work beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from sequoia_cli.core.writing import reserve
from sequoia_cli.errors import BadInput, SequoiaError


class OutputFolder:
    """The draft's folder. `work` beside it holds unfinished work.

    Raises `BadInput` at once if the folder cannot be written or holds anything but drafts.
    """

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
                self.work.rmdir()  # made again when there is something to keep
            place = Path(os.path.realpath(path))
            self._reservation = reserve(place, path, self)
        except OSError as error:
            raise BadInput(
                f"{self.work} cannot be written: {error.strerror}", hint="choose another folder with -o"
            ) from None

    def _require_apart(self, corpus: Path) -> None:
        """Raise `BadInput` if corpus and draft lie in one another: replacing one would remove the other."""
        if _within(corpus, self.work):
            raise BadInput(
                f"--corpus {corpus} lies in {self.work}, which is removed once the draft is finished",
                hint="leave --corpus out to resume from the texts there, or choose another folder",
            )
        if _within(corpus, self.path) or _within(self.path, corpus):
            raise BadInput(
                f"--corpus {corpus} and the draft's folder {self.path} are one, or one lies in the other",
                hint="choose another folder with -o or --corpus",
            )

    def begin(self) -> None:
        """Create the folder of unfinished work."""
        self.work.mkdir(parents=True, exist_ok=True)

    def release(self) -> None:
        """Release the reservation of the folder."""
        self._reservation.release()

    def publish(self, finished: Mapping[str, Path]) -> None:
        """Move `finished` folders into place, by name below this folder ("" for the folder itself).

        Replaces the drafts that were there from the start. Raises `SequoiaError` if there is anything newer,
        or if writing fails.
        """
        if new := sorted(set(self.path.rglob("*")) - self._found):
            raise SequoiaError(
                f"{new[0]} was put there while the draft was being made, so {self.path} is not replaced",
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
    """The folder itself, or its subfolders if they are the drafts 1, 2, ... of one command."""
    inside = list(path.iterdir())
    return inside if all(each.is_dir() and each.name.isdecimal() for each in inside) else [path]


def _within(inner: Path, outer: Path) -> bool:
    """Whether `inner` is `outer` or lies below it."""
    return inner.resolve().is_relative_to(outer.resolve())


def _is_draft(path: Path) -> bool:
    return (path / "distillation.json").is_file()
