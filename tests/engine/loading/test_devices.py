"""Devices and dtypes as a user writes them."""

import pytest
import torch

from sequoia_cli.engine.loading import devices
from sequoia_cli.engine.loading.devices import parse_device, parse_dtype
from sequoia_cli.errors import BadInput

CPU = torch.device("cpu")


@pytest.fixture
def cuda(monkeypatch):
    """A machine that seems to have this many CUDA devices."""

    def pretend(count: int, capability: tuple[int, int] = (8, 0)) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)

    return pretend


def test_auto_is_the_first_cuda_device_else_the_cpu(cuda):
    cuda(0)
    assert parse_device("auto") == CPU
    cuda(2)
    assert parse_device("auto") == parse_device("cuda") == torch.device("cuda:0")
    assert parse_device("cuda:1") == torch.device("cuda:1")
    assert parse_device("cpu") == CPU


@pytest.mark.parametrize(
    "text", ["gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:0", "CUDA", "", "cuda:0:1", "mps"]
)
def test_an_unknown_device_is_refused(text, cuda):
    cuda(1)
    with pytest.raises(BadInput, match="expected auto, cpu, cuda or cuda:N"):
        parse_device(text)


def test_cuda_that_is_not_there_is_refused_with_a_way_out(cuda):
    cuda(0)
    with pytest.raises(BadInput, match="finds no CUDA device") as caught:
        parse_device("cuda")
    assert "--device cpu" in caught.value.hint
    cuda(1)
    with pytest.raises(BadInput, match="'cuda:3' was asked for, but this machine has cuda:0 only"):
        parse_device("cuda:3")


def test_auto_dtype_is_what_the_device_computes_in(cuda, monkeypatch):
    monkeypatch.setattr(devices, "_cpu_has_bfloat16", lambda: True)
    assert parse_dtype("auto", CPU) == torch.bfloat16
    monkeypatch.setattr(devices, "_cpu_has_bfloat16", lambda: False)
    assert parse_dtype("auto", CPU) == torch.float32
    cuda(1, capability=(9, 0))
    assert parse_dtype("auto", torch.device("cuda:0")) == torch.bfloat16
    cuda(1, capability=(7, 5))
    assert parse_dtype("auto", torch.device("cuda:0")) == torch.float16


def test_this_cpu_says_whether_it_has_bfloat16():
    assert devices._cpu_has_bfloat16() in (True, False)


def test_dtypes_have_their_usual_names():
    assert parse_dtype("bf16", CPU) == parse_dtype("bfloat16", CPU) == torch.bfloat16
    assert parse_dtype("float32", CPU) == torch.float32
    with pytest.raises(BadInput, match="dtype 'int8' is not known; expected auto, float32"):
        parse_dtype("int8", CPU)
