"""Prepares a loaded model for speed, in place and once, by what its modules compute and not by its family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from sequoia_cli.engine.fast import attention
from sequoia_cli.engine.fast.block import ForwardState
from sequoia_cli.engine.fast.linear import SiblingLinear, Siblings, prepared
from sequoia_cli.engine.fast.matrix import matrix_of
from sequoia_cli.engine.fast.norms import fast_norm
from sequoia_cli.engine.fast.recognise import Call, fast_block


@torch.inference_mode()
def make_fast(model: nn.Module, arguments: Mapping[str, Any] | None = None) -> None:
    """Prepare norms, linear layers and attention of `model`; modules that are not recognised stay.

    A causal language model is run with the `arguments` of a call, to see what its layers compute and which
    share an input. In any other module each layer is prepared alone.
    """
    for parent, name, module in _children(model):
        if (norm := fast_norm(module)) is not None:
            setattr(parent, name, norm)
    if isinstance(model, PreTrainedModel) and model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(attention.NAME)
        if arguments is not None:
            _make_blocks(model, arguments)
    alone = [[(parent, name)] for parent, name, child in _children(model) if matrix_of(child)]
    for group in alone if arguments is None else _siblings(model, arguments):
        _fuse(group)


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, module) of all modules below `model`."""
    return (
        (parent, name, child)
        for parent in list(model.modules())
        for name, child in list(parent.named_children())
    )


def _make_blocks(model: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Replace the forward of each decoder layer of the plan that `fast_block` knows.

    The layer itself stays, for code that looks for it by its class; its parts are removed.
    """
    calls: dict[nn.Module, Call] = {}

    def note(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        calls[module] = Call(arguments, named, output)

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    _run_with([layer.register_forward_hook(note, with_kwargs=True) for layer in layers], model, arguments)
    shared = ForwardState()
    for layer, call in calls.items():
        if (block := fast_block(layer, shared, call)) is not None:
            for name, _ in list(layer.named_children()):
                delattr(layer, name)
            layer.add_module("block", block)
            layer.forward = block.forward


#: (parent, name) of layers that run on the same input, in their order.
_Group = list[tuple[nn.Module, str]]


def _siblings(model: nn.Module, arguments: Mapping[str, Any]) -> list[_Group]:
    """All linear layers, grouped where a module applies several to one input one after the other.

    Layers whose weights another module reads are left out: it would not find them any more.
    """
    places = {child: (parent, name) for parent, name, child in _children(model) if matrix_of(child)}
    groups: list[_Group] = []
    last: tuple[Tensor | None, nn.Module | None] = (None, None)
    calls: dict[nn.Module, int] = {}

    def note(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        nonlocal last
        parent = places[module][0]
        calls[module] = calls.get(module, 0) + 1
        if arguments[0] is last[0] and parent is last[1]:
            groups[-1].append(places[module])
        else:
            groups.append([places[module]])
        last = (arguments[0], parent)

    with _weights_watched(places) as read:
        _run_with([module.register_forward_pre_hook(note) for module in places], model, arguments)

    def movable(module: nn.Module) -> bool:
        # A layer that runs more than once in a forward belongs to no single group.
        return calls[module] == 1 and module not in read

    return [group for group in groups if all(movable(getattr(parent, name)) for parent, name in group)]


@contextmanager
def _weights_watched(modules: Iterable[nn.Module]) -> Iterator[set[nn.Module]]:
    """Collects the modules whose weights are read outside their own forward."""
    kinds = {module: type(module) for module in modules}
    running: set[nn.Module] = set()
    read: set[nn.Module] = set()

    def forward(self: nn.Module, *arguments: Any) -> Any:
        running.add(self)
        try:
            return kinds[self].forward(self, *arguments)
        finally:
            running.discard(self)

    def attribute(self: nn.Module, name: str) -> Any:
        if name in ("weight", "bias") and self not in running:
            read.add(self)
        return object.__getattribute__(self, name)

    watched = {
        kind: type(kind.__name__, (kind,), {"forward": forward, "__getattribute__": attribute})
        for kind in set(kinds.values())
    }
    for module, kind in kinds.items():
        module.__class__ = watched[kind]
    try:
        yield read
    finally:
        for module, kind in kinds.items():
            module.__class__ = kind


def _run_with(hooks: Sequence[RemovableHandle], model: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Run the model once, then remove the hooks."""
    try:
        model(**arguments)
    finally:
        for hook in hooks:
            hook.remove()


def _fuse(group: _Group) -> None:
    found = [matrix for parent, name in group if (matrix := matrix_of(getattr(parent, name)))]
    if len(group) == 1:
        parent, name = group[0]
        setattr(parent, name, prepared(found[0]))
        return
    siblings = Siblings(found)
    for index, ((parent, name), matrix) in enumerate(zip(group, found, strict=True)):
        setattr(parent, name, SiblingLinear(siblings, index, matrix))
