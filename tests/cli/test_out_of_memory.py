"""Memory that runs out, in any command: one line that names the command, and what needs less."""

import pytest
import torch

from sequoia_cli.engine.loading.foreign import refusing
from sequoia_cli.errors import BadInput, out_of_memory

ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"

#: Where a command does its first large work, and what its hint names.
LARGE = {
    "profile": ("measure.session.open_session", "--context"),
    "acceptance": ("measure.session.open_session", "--depths"),
    "compile": ("compiler.choose.choose", "--budget"),
    "distill": ("measure.session.open_session", "--rows"),
    "bench": ("bench.target.describe_target", "--max-new-tokens"),
    "generate": ("measure.session.open_session", "--max-new-tokens"),
    "check": ("measure.session.open_session", "three times"),
}
ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
    RuntimeError(ALLOCATOR),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("command", LARGE)
def test_a_command_that_runs_out_of_memory_says_so_and_what_needs_less(run, monkeypatch, command, error):
    def full(*arguments, **options):
        raise error

    place, less = LARGE[command]
    monkeypatch.setattr(f"sequoia_cli.{place}", full)
    code, out, err = run(command, *(["--prompt", "Hello"] if command == "generate" else []))
    assert (code, out) == (1, "")
    line, hint = err.splitlines()[-2:]
    assert line.startswith("sequoia: out of memory: ")
    assert line.endswith(f" (in sequoia {command})")
    assert less in hint


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_model_that_does_not_fit_is_not_called_a_bad_one(error):
    with pytest.raises(type(error)), refusing("the model cannot be loaded"):
        raise error
    with pytest.raises(BadInput), refusing("the model cannot be loaded"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_an_error_that_only_quotes_such_words_is_another():
    assert out_of_memory(ValueError(ALLOCATOR)) is None
