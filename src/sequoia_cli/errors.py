"""The errors a user can cause, each with the exit code that `sequoia` ends with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

#: Most characters of a message; data that it shows can be longer than anybody reads.
LONGEST_MESSAGE = 800

#: What a `RuntimeError` of torch says where memory ran out on the CPU, on a GPU, and in a library there.
_ALLOCATORS_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",
)


class SequoiaError(Exception):
    """A failure to report in words, without a traceback.

    `message` says what was found and what was expected; `hint` names the flag or command to try next.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        message = bounded(message)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else bounded(hint)


def bounded(text: str, most: int = LONGEST_MESSAGE) -> str:
    """The text, or its beginning and its end where it is longer than `most` characters."""
    if len(text) <= most:
        return text
    tail = most // 4
    return f"{text[: most - tail - 5]} ... {text[-tail:]}"


def out_of_memory(error: BaseException) -> str | None:
    """What to say where memory ran out, None for any other error.

    Torch says so in a `RuntimeError` of its own, or in its text. Whoever turns any error into words asks
    here first.
    """
    if not (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and any(words in str(error) for words in _ALLOCATORS_WORDS))
    ):
        return None
    first = (str(error).strip().splitlines() or [""])[0][:160]
    return f"out of memory: {first}"


class OutOfMemory(SequoiaError):
    """Memory ran out in work that can be named."""


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Name the work within if memory runs out there: raises `OutOfMemory` then."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        message = out_of_memory(error)
        if message is None:
            raise
        raise OutOfMemory(f"{message} (for {what})") from error


class BadInput(SequoiaError):
    """A wrong option value or a file that cannot be used as it is."""

    exit_code = 2


class CheckFailed(SequoiaError):
    """A result was produced, but a check on it failed."""

    exit_code = 3
