"""Models whose linear layers are `IntegerLinear`.

A quantised model is then the model: what is decoded from it, with speculation or without, is its own text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sequoia_cli.engine.fast.matrix import Matrix, matrix_of
from sequoia_cli.engine.integer import gguf_blocks
from sequoia_cli.engine.integer.linear import IntegerEmbedding, IntegerLinear
from sequoia_cli.engine.integer.weights import ByOutput, BySpan


@torch.no_grad()
def quantise(
    *models: nn.Module,
    bits: Mapping[nn.Module, int] | int = 8,
    known: Mapping[nn.Module, BySpan] | None = None,
) -> None:
    """Replace the linear layers of `models` by rounded ones, and embeddings tied to one by it.

    `bits`, 8 or 4, are of all models, or by model; with 4, an output head and what shares its weights have 8.
    `known` has the integers of layers that came as such.

    Layers that share weights share what becomes of them, within a model and between models. An embedding
    that does more than look up stays a module of its own, with the rounded weights. Layers that are not plain
    linear ones stay as they are, such as experts in one tensor.

    Raises `ValueError` for weights that cannot be rounded, which are beyond float16.
    """
    width = {model: bits if isinstance(bits, int) else bits[model] for model in models}
    narrow = {module for model in models if width[model] == 4 for module in model.modules()}
    heads = {model.get_output_embeddings() for model in models if isinstance(model, PreTrainedModel)}
    known = known or {}
    places = [place for model in models for place in _children(model)]
    matrices = [matrix for place in places if isinstance(matrix := matrix_of(_at(place)), Matrix)]
    embeddings = [place for place in places if isinstance(_at(place), nn.Embedding)]
    uses = Counter(_key(*matrix) for matrix in matrices)
    uses.update(_key(_at(place).weight, None) for place in embeddings)  # type: ignore[arg-type]
    del matrices
    #: Shared ones, with the weight they were made of, whose place in memory nothing else may take meanwhile.
    shared: dict[tuple[int, ...], tuple[IntegerLinear, Tensor]] = {}
    for parent, name in places:
        matrix = matrix_of(_at((parent, name)))
        if not isinstance(matrix, Matrix):
            continue
        key = _key(*matrix)
        module = _at((parent, name))
        if key in shared:
            made = shared[key][0]
        elif module in known:
            made = IntegerLinear(known[module], matrix.bias)
        elif module in narrow:
            kind = gguf_blocks.Q8_0 if module in heads else gguf_blocks.Q4_1
            made = IntegerLinear(gguf_blocks.rounded(matrix.weight, kind), matrix.bias)
        else:
            made = IntegerLinear(ByOutput.of(matrix.weight), matrix.bias)
        if uses[key] > 1:
            shared[key] = made, matrix.weight
        setattr(parent, name, made)
    for parent, name in embeddings:
        embedding = _at((parent, name))
        assert isinstance(embedding, nn.Embedding)
        head, _ = shared.get(_key(embedding.weight, None), (None, None))
        if head is None:
            continue
        if type(embedding) is nn.Embedding:
            setattr(parent, name, IntegerEmbedding(head, embedding.weight.dtype))
        else:
            embedding.weight.copy_(head.weight)


def is_quantised(model: nn.Module) -> bool:
    """Whether a model has layers of rounded weights."""
    return any(isinstance(module, IntegerLinear) for module in model.modules())


def share_left(model: nn.Module) -> float:
    """The share of a model's matrices that `quantise` has left as they are, embeddings aside."""
    rounded, left = 0, 0
    for module in model.modules():
        if isinstance(module, IntegerLinear):
            rounded += module.out_features * module.in_features
        elif not isinstance(module, nn.Embedding):
            left += sum(part.numel() for part in module.parameters(recurse=False) if part.ndim > 1)
    return left / max(1, rounded + left)


#: A module by its parent and its name there, which do not keep it alive.
_Place = tuple[nn.Module, str]


def _children(model: nn.Module) -> Iterator[_Place]:
    return ((parent, name) for parent in list(model.modules()) for name, _ in parent.named_children())


def _at(place: _Place) -> nn.Module:
    return place[0].get_submodule(place[1])


def _key(weight: Tensor, bias: Tensor | None) -> tuple[int, ...]:
    """Tells the weights and the bias that layers may share."""
    return (weight.data_ptr(), *weight.shape, *weight.stride(), 0 if bias is None else bias.data_ptr())
