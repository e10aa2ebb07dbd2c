"""Writing files: whole or not at all, where they were promised, and never over somebody else's work."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import weakref
from contextlib import suppress
from pathlib import Path

from sequoia_cli.core.locks import Reservation, Taken
from sequoia_cli.errors import BadInput, SequoiaError

#: Names of stdout. Opening one of the last three again can fail or truncate what is there.
_STDOUT = ("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


class Output:
    """A file to be written at the end of a command, checked and reserved at its start.

    The path is refused at once where it cannot be written, already exists (unless `force`), or is being
    written by another command, so that no long work is lost to a bad path. `write` replaces it in one step;
    of a symbolic link, what it points to. `-` is stdout. Pipes and character devices are written to as they
    are (`is_stream`). `release` gives up the reservation; so does the end of the process.
    """

    def __init__(self, path: Path | str, *, force: bool = False, allow_same: bool = False) -> None:
        self.path = Path(path)
        self.is_stdout = str(path) in _STDOUT
        self.is_stream = self.is_stdout
        self._allow_same = allow_same
        self._force = force
        self._place = self.path
        self._descriptor: int | None = None
        self._reservation: Reservation | None = None
        if self.is_stdout:
            if sys.stdout is None or not sys.stdout.writable():
                raise BadInput("stdout is closed; it was to be written to", hint="name a file with -o")
            return
        try:
            self._open()
        except OSError as error:
            raise BadInput(
                f"{self.path} cannot be written: {error.strerror}", hint="choose another path with -o"
            ) from None
        except ValueError as error:  # a path with a null character
            raise BadInput(f"{str(path)!r} cannot be written: {error}") from None

    def _open(self) -> None:
        mode = _mode(self.path)
        if mode is None or stat.S_ISREG(mode):
            if mode is not None and not self._force and not self._allow_same:
                raise self._exists()
            if self.path.is_symlink():
                self._place = Path(os.path.realpath(self.path))
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._reservation = reserve(self._place, self.path, self)
        elif stat.S_ISDIR(mode):
            raise BadInput(f"{self.path} is a directory; a file name is expected")
        elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            self.is_stream = True
            self._descriptor = _open_stream(self.path)
            weakref.finalize(self, _close, self._descriptor)
        else:
            raise BadInput(
                f"{self.path} is no ordinary file, pipe or character device", hint="use -o - and a pipe"
            )

    @property
    def partial(self) -> Path:
        """Where unfinished work on this file is kept."""
        return self._place.with_name(self._place.name + ".partial")

    @property
    def journal(self) -> Path | None:
        """Where a long measurement may keep what it has so far; nowhere for a stream."""
        return None if self.is_stream else self.partial

    def _exists(self) -> BadInput:
        return BadInput(f"{self.path} exists", hint="choose another path with -o, or replace it with --force")

    def write(self, text: str) -> bool:
        """Write the whole file at once; False where it held exactly this already."""
        if self.is_stdout:
            sys.stdout.write(text)
            sys.stdout.flush()
            return True
        if self._descriptor is not None:
            _write_stream(self._descriptor, text, self.path)
            return True
        if self._allow_same and not self._force and self._place.exists():
            if self._place.read_bytes() == text.encode():
                return False
            raise self._exists()
        write_atomically(self._place, text)
        self.partial.unlink(missing_ok=True)
        self.release()
        return True

    def release(self) -> None:
        """Give up the reservation; a second call does nothing."""
        if self._reservation is not None:
            self._reservation.release()


def reserve(place: Path, named: Path, owner: object) -> Reservation:
    """Reserve a file or folder until its release or the end of `owner`. Raises `BadInput` where it is taken.

    `named` is its path as the user gave it.
    """
    try:
        reservation = Reservation(place)
    except Taken:
        raise BadInput(
            f"{named} is being written by another command",
            hint="wait for that one, or choose another path with -o",
        ) from None
    weakref.finalize(owner, reservation.release)
    return reservation


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it there, so that readers see the old file or the new one.

    An existing file keeps its mode and owner; of a symbolic link, what it points to is replaced.
    """
    raw = text.encode()
    place = Path(os.path.realpath(path))
    scratch = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        try:
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
                _take_over(place, file.fileno())
                file.write(raw)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(place)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SequoiaError(f"{path} could not be written: {error.strerror}") from None


def _take_over(path: Path, descriptor: int) -> None:
    """Give the new file the owner and the mode of the one that it replaces; without one the umask decides."""
    with suppress(FileNotFoundError):
        old = path.stat()
        with suppress(PermissionError):  # only root can give files away
            os.fchown(descriptor, old.st_uid, old.st_gid)
        with suppress(PermissionError):
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _open_stream(path: Path) -> int:
    """A pipe or device, opened for writing. A pipe that nobody reads is refused: opening it would wait."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise BadInput(
                f"{path} is a pipe that nobody reads", hint="start its reader first, or use -o - and a pipe"
            ) from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def _write_stream(descriptor: int, text: str, path: Path) -> None:
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(text.encode())
    except OSError as error:
        raise SequoiaError(f"{path} could not be written: {error.strerror}") from None


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)
