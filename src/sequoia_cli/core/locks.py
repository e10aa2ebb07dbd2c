"""Locks between processes that meet at one file; the system drops them when a process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: What a file system answers that has no locks, as some network ones: work goes on without.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class Taken(Exception):
    """Another process, or another part of this one, holds the lock."""


class Reservation:
    """The right to write a file, held from the start of a command; a hidden file beside it carries the lock.

    Raises `Taken` where somebody else holds it, `OSError` where nothing can be written there.
    """

    def __init__(self, path: Path) -> None:
        self._lock = path.with_name(f".{path.name}.reserved")
        self._descriptor: int | None = None
        while self._descriptor is None:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last holder may have removed the file between our opening and locking it.
                if _is_at(descriptor, self._lock):
                    self._descriptor = descriptor
            except BlockingIOError:
                raise Taken from None
            finally:
                if self._descriptor is None:
                    os.close(descriptor)

    def release(self) -> None:
        """Let others have the file; a second call does nothing."""
        if self._descriptor is not None:
            with suppress(OSError):
                self._lock.unlink()
            os.close(self._descriptor)
            self._descriptor = None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait for the lock of a file that is read and written again within; `OSError` where there is none."""
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _flock(descriptor: int, how: int) -> None:
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
