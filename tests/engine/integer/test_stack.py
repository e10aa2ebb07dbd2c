"""All layers as one call of the kernel: the bits of single layers, and the states between them."""

import pytest
import torch
from test_quantise import IN_KERNEL

from decoding import PROMPT, TREE
from models import tiny_model
from sequoia_cli.engine.integer.kernel import LayersCall
from sequoia_cli.engine.integer.quantise import quantise
from sequoia_cli.engine.integer.stack import StackedLayers
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.target import LAST


def stacked(family, **options):
    model = tiny_model(family, **{**IN_KERNEL[family], **options})
    quantise(model)
    model = LanguageModel(model)
    model.make_fast()
    assert model.compile(lambda line: pytest.fail(line))
    return model


def stacks(model):
    return [module for module in model.model.modules() if isinstance(module, StackedLayers)]


def outputs(model, taps=LAST):
    """Of two trees, each after the path of the one before, and a token."""
    text, _ = model.open(torch.tensor(PROMPT), 60)
    found = []
    for seed in range(2):
        tokens = torch.randint(0, 64, (TREE.size,), generator=torch.Generator().manual_seed(seed))
        found.append(text.run(TREE.parents, tokens, taps=taps))
        text.keep(TREE.path(TREE.size - 1))
    return [*found, text.run((-1,), torch.tensor([7]), taps=taps)]


@pytest.mark.parametrize("family", IN_KERNEL)
def test_all_layers_at_once_give_the_bits_of_single_layers(family, compiler, monkeypatch):
    model, calls, right = stacked(family), [], LayersCall.__call__
    assert len(stacks(model)) == 1
    monkeypatch.setattr(
        LayersCall, "__call__", lambda call, *given: calls.append(len(call.layers)) or right(call, *given)
    )
    layers = model.config.num_hidden_layers
    found = [outputs(model, taps) for taps in ((), LAST, (0, -1))]
    assert calls == [layers] * 3 + [layers - 1, 1] * 3 + [1] * 3 * layers
    for at_once, but_last, singly in zip(*found, strict=True):
        assert torch.equal(at_once.logits, singly.logits)
        assert torch.equal(but_last.logits, singly.logits)
        assert torch.equal(but_last.hidden[0], singly.hidden[1])


def test_states_between_layers_are_there_for_who_asks(compiler):
    model = stacked("llama", num_hidden_layers=3)
    found, expected = outputs(model, (0, 2, -1)), outputs(model, (0, 1, 2, 3))
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one.hidden[i], other.hidden[j]) for i, j in enumerate((0, 2, 3)))
        assert not torch.equal(other.hidden[0], other.hidden[1])


def test_each_layer_is_still_there_by_its_number(compiler):
    (layers,) = stacks(stacked("llama"))
    assert len(layers) == len(list(layers.children())) == 2
    assert layers[1] is list(layers.children())[1]
    assert [type(layers[0])] == [type(layer) for layer in layers[:1]]
    assert len(list(layers)) == len(layers[:2]) == 1
