"""A model whose linear layers are `IntegerLinear`.

The quantised model is then the model: what is decoded from it, with speculation or without, is its own text.
"""

from __future__ import annotations

import torch
from torch import nn

from sequoia_cli.engine.fast.matrix import Matrix, matrix_of
from sequoia_cli.engine.integer.linear import IntegerEmbedding, IntegerLinear

#: Layers already made, by where their weight lies: models may share them.
Made = dict[tuple[int, tuple[int, ...]], IntegerLinear]


@torch.no_grad()
def quantise(model: nn.Module, made: Made | None = None) -> None:
    """Replace all linear layers of `model` by rounded ones, and embeddings tied to one by it.

    An embedding that does more than look up stays a module of its own, with the rounded weights. What is
    `made` is noted there, and what is there already is used.
    """
    known: Made = {} if made is None else made
    embeddings = [
        (parent, name, child) for parent, name, child in _children(model) if isinstance(child, nn.Embedding)
    ]
    for parent, name, child in _children(model):
        matrix = matrix_of(child)
        if not isinstance(matrix, Matrix):
            continue
        key = matrix.weight.data_ptr(), tuple(matrix.weight.shape)
        if key not in known:
            known[key] = IntegerLinear.of(matrix.weight, matrix.bias)
        setattr(parent, name, known[key])
    for parent, name, child in embeddings:
        head = known.get((child.weight.data_ptr(), tuple(child.weight.shape)))
        if head is None or head.bias is not None:
            continue
        if type(child) is nn.Embedding:
            setattr(parent, name, IntegerEmbedding(head, child.weight.dtype))
        else:
            child.weight.copy_(head.weight)


def is_quantised(model: nn.Module) -> bool:
    """Whether a model has layers of rounded weights."""
    return any(isinstance(module, IntegerLinear) for module in model.modules())


def _children(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    return [
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in list(parent.named_children())
    ]
