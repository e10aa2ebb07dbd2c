"""Where compiled packages may be loaded from: their owner, and a folder to unpack their libraries into."""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Variables that torch's loader reads, in this order, for a folder to unpack into; /tmp where none is set.
_NAMED = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")


#: What torch compiles with: `CXX`, else the first of these that is there.
_COMPILERS = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]


class Unusable(Exception):
    """Why a package cannot be loaded here, in words."""


@functools.cache
def compiler() -> tuple[str, str] | None:
    """The path of the C++ compiler, and what it says of its version; None where there is none."""
    found = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if found is None:
        return None
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    return found, said.partition("\n")[0]


def holds_libraries(folder: Path) -> bool:
    """Whether libraries can be written to a folder and loaded from it."""
    return _no_libraries(folder) is None


def folder_for_libraries() -> Path:
    """The usual folder for what is temporary. Raises `Unusable` where libraries cannot be loaded from it."""
    usual = _usual_folder()
    if (why := _no_libraries(usual)) is not None:
        raise Unusable(f"{usual} {why} (set TMPDIR to a folder that libraries can be loaded from)")
    return usual


@contextmanager
def unpacking(beside: Path) -> Iterator[None]:
    """Let libraries be unpacked where they can be loaded: in the usual folder, else in that of the packages.

    Raises `Unusable` where neither can hold them, as on a machine whose /tmp is mounted noexec.
    """
    usual = _usual_folder()
    why = _no_libraries(usual)
    if why is None:
        yield
        return
    if _no_libraries(beside) is not None:
        raise Unusable(f"{usual} {why} (set TMPDIR to a folder that libraries can be loaded from)")
    moved = {"TMPDIR": str(beside), "TORCHINDUCTOR_CACHE_DIR": str(beside / "inductor")}
    before = {name: os.environ.get(name) for name in moved}
    os.environ.update(moved)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _usual_folder() -> Path:
    return Path(next((os.environ[name] for name in _NAMED if os.environ.get(name)), "/tmp"))


def _no_libraries(folder: Path) -> str | None:
    """Why no library can be loaded from a folder; None where one can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(mmap.PAGESIZE))
            file.flush()
            mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
    except PermissionError:
        return "is noexec" if os.access(folder, os.W_OK) else "cannot be written to"
    except OSError:
        return "cannot be written to"
    return None


def require_own(place: Path) -> None:
    """Raise `Unusable` for a package that somebody else could have put there: loading it runs its code."""
    for path in (place, place.parent):
        found = path.stat()
        if found.st_uid not in (os.getuid(), 0):
            raise Unusable(f"{path} belongs to another user (set SEQUOIA_CACHE to a folder of your own)")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise Unusable(f"others may write to {path} (chmod go-w, or delete it)")


def make_folder(folder: Path) -> None:
    """A folder that only its owner writes to, made or set so."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.stat().st_uid == os.getuid():
        folder.chmod(0o700)


def is_damaged(place: Path) -> bool:
    """Whether a package was cut short or changed. Other faults would not go away if it were made again."""
    try:
        with zipfile.ZipFile(place) as package:
            return package.testzip() is not None
    except (zipfile.BadZipFile, EOFError):
        return True
