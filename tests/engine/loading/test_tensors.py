"""Tensors are on the disk whole before they have their name, and nothing else is left behind."""

import os

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from sequoia_cli.engine.loading import tensors
from sequoia_cli.engine.loading.tensors import save_tensors
from sequoia_cli.errors import SequoiaError


class Copies(TorchDispatchMode):
    """Counts the copies made of tensors."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function in (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default):
            self.count += 1
        return function(*arguments, **(options or {}))


def test_what_shares_memory_or_stands_in_another_order_comes_back_as_it_was(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    given = {"whole": whole, "same": whole, "part": whole[1:, 1:], "turned": whole.T, "number": whole.sum()}
    save_tensors(tmp_path / "t.safetensors", given, {"a": "b"})
    found = load_file(tmp_path / "t.safetensors")
    assert found.keys() == given.keys()
    assert all(torch.equal(found[name], given[name]) for name in given)


@pytest.mark.parametrize("turned", [False, True])
def test_a_tensor_is_copied_once(tmp_path, turned):
    whole = torch.arange(12.0).view(3, 4)
    with Copies() as copies:
        save_tensors(tmp_path / "t.safetensors", {"a": whole.T if turned else whole})
    assert copies.count == 1


def test_the_contents_are_on_the_disk_before_the_file_has_its_name(tmp_path, monkeypatch):
    path, right, seen = tmp_path / "t.safetensors", os.fsync, []

    def noting(descriptor):
        seen.append((os.fstat(descriptor).st_size, path.exists()))
        right(descriptor)

    monkeypatch.setattr(tensors.os, "fsync", noting)
    save_tensors(path, {"a": torch.zeros(3)})
    assert seen == [(path.stat().st_size, False)]


@pytest.mark.parametrize(
    ("raised", "expected"), [(KeyboardInterrupt, KeyboardInterrupt), (OSError(28, "full"), SequoiaError)]
)
def test_what_ends_the_writing_leaves_the_file_before_and_nothing_beside_it(
    tmp_path, monkeypatch, raised, expected
):
    path = tmp_path / "t.safetensors"
    save_tensors(path, {"a": torch.zeros(3)})
    before = path.read_bytes()

    def ending(contents, place, **options):
        place.write_bytes(b"half")
        raise raised

    monkeypatch.setattr(tensors, "save_file", ending)
    with pytest.raises(expected):
        save_tensors(path, {"a": torch.ones(3)})
    assert [each.name for each in tmp_path.iterdir()] == ["t.safetensors"]
    assert path.read_bytes() == before
