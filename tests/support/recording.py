"""What a CUDA graph does, on the CPU: operations recorded with the tensors they were run on, and run again.

Numbers that Python computed are part of the recording, every result stays where it is, and what a graph
cannot hold (a value read by the host, a shape that depends on values) is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_HOST_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal.default", "_unique2")


def recorded(function):
    """A `Capture`: the function once as it is, which warms it up, and once recorded."""
    function()
    with _Tape() as tape:
        results = function()

    def replay():
        tape.play()
        return results

    return replay


class _Tape(TorchDispatchMode):
    """Everything that is run under it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        options = options or {}
        if any(name in str(operation) for name in _HOST_READS):
            raise RuntimeError(f"operation not permitted when stream is capturing: {operation}")
        results = operation(*arguments, **options)
        self.calls.append((operation, arguments, options, results))
        return results

    def play(self):
        """Run all again; what an operation makes goes to where it went."""
        for operation, arguments, options, results in self.calls:
            given = {_storage(leaf) for leaf in tree_leaves((arguments, options)) if _stored(leaf)}
            before = tree_leaves(results)
            fresh = [_stored(old) and _storage(old) not in given for old in before]
            if not any(fresh) and not operation._schema.is_mutable:
                continue  # a view
            for old, new, is_fresh in zip(
                before, tree_leaves(operation(*arguments, **options)), fresh, strict=True
            ):
                if is_fresh:
                    old.copy_(new)


def _stored(leaf):
    return isinstance(leaf, Tensor) and leaf.numel() > 0


def _storage(tensor):
    return tensor.untyped_storage().data_ptr()


def reading_counted(monkeypatch):
    """A list that grows by the name of every read of a tensor by the host."""
    reads = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__", "__index__", "cpu", "numpy"):
        right = getattr(Tensor, name)

        def counting(tensor, *arguments, name=name, right=right, **options):
            reads.append(name)
            return right(tensor, *arguments, **options)

        monkeypatch.setattr(Tensor, name, counting)
    return reads


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)
