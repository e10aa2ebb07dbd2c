"""Weights of 8 bits: what they are, and that the model made of them is one model however it is run."""

import pytest
import torch
from torch import nn

from decoding import PROMPT, TREE
from features import feature_draft
from models import tiny_model
from sequoia_cli.core.tree import chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast.linear import FastLinear
from sequoia_cli.engine.fast.matrix import Matrix
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.quantise import quantise, quantised

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_within_half_a_step_of_what_they_were(dtype):
    weight = torch.randn(40, 24).to(dtype) * torch.logspace(-3, 3, 40)[:, None].to(dtype)
    found = quantised(weight)
    assert found.numbers.dtype == torch.int8
    assert found.scales.dtype == dtype
    assert int(found.numbers.abs().max()) == 127
    step = found.scales.double()[:, None]
    rounding = torch.finfo(dtype).eps * weight.double().abs()
    assert ((found.weight.double() - weight.double()).abs() <= 0.5 * step + 2 * rounding).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_weights_are_quantised_to_themselves(dtype):
    once = quantised(torch.randn(300, 64).to(dtype)).weight
    assert torch.equal(quantised(once).weight, once)


def test_a_row_of_zeros_stays_one():
    assert torch.equal(quantised(torch.zeros(2, 4)).weight, torch.zeros(2, 4))


def test_all_linear_layers_are_rounded_and_nothing_else():
    model, before = tiny_model("qwen2"), tiny_model("qwen2")
    quantise(model)
    for (name, module), other in zip(model.named_modules(), before.modules(), strict=True):
        for (key, found), expected in zip(
            module.named_parameters(recurse=False), other.parameters(recurse=False), strict=True
        ):
            rounded = isinstance(module, nn.Linear) and key == "weight"
            wanted = quantised(expected).weight if rounded else expected
            assert torch.equal(found, wanted), f"{name}.{key}"


def test_transposed_layers_are_rounded_by_output_too():
    model, before = tiny_model("gpt2"), tiny_model("gpt2")
    quantise(model)
    weight = before.transformer.h[0].mlp.c_fc.weight
    assert torch.equal(model.transformer.h[0].mlp.c_fc.weight, quantised(weight.T).weight.T)


def test_an_embedding_tied_to_the_head_stays_tied_to_it():
    model = tiny_model("llama", tie_word_embeddings=True)
    quantise(model)
    assert model.get_input_embeddings().weight is model.lm_head.weight
    assert torch.equal(quantised(model.lm_head.weight).weight, model.lm_head.weight)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 17])
def test_a_product_is_that_of_the_wide_weights_for_few_rows_and_for_many(rows, bias):
    weight = quantised(torch.randn(48, 64).bfloat16()).weight
    added = torch.randn(48).bfloat16() if bias else None
    inputs, states = torch.randn(1, rows, 64).bfloat16(), torch.randn(1, rows, 48).bfloat16()
    fast = FastLinear(Matrix(weight, added, quantised=True))
    expected = nn.functional.linear(inputs.double(), weight.double(), added.double() if bias else None)
    with torch.inference_mode():
        for found, wanted in ((fast(inputs), expected), (fast.onto(states, inputs), expected + states)):
            assert found.shape == wanted.shape
            assert (found - wanted).abs().max() <= 4 * torch.finfo(torch.bfloat16).eps * wanted.abs().max()


def test_few_rows_read_the_8_bit_numbers():
    weight = quantised(torch.randn(48, 64).bfloat16()).weight
    fast = FastLinear(Matrix(weight, None, quantised=True))
    fast.operands[2].zero_()
    with torch.inference_mode():
        assert not fast(torch.randn(1, 4, 64).bfloat16()).any()


@pytest.mark.parametrize("rows", [1, 4, 5, 17])
def test_the_matrix_is_the_same_for_any_number_of_rows(rows):
    weight = quantised(torch.randn(rows, 64).bfloat16()).weight
    first, second = quantised(weight).numbers[:, :2].bfloat16().unbind(1)
    # Row i is at right angles to row i of the numbers. It is not to the weights rounded after scaling.
    inputs = torch.zeros(rows, 64).bfloat16()
    inputs[:, 0], inputs[:, 1] = second, -first
    fast = FastLinear(Matrix(weight, None, quantised=True))
    with torch.inference_mode():
        assert not fast(inputs).diagonal().any()
        assert not fast.onto(torch.zeros(rows, rows).bfloat16(), inputs).diagonal().any()


def test_rounded_weights_are_another_matrix_so_that_the_test_above_can_fail():
    weight = quantised(torch.randn(17, 64).bfloat16()).weight
    first, second = quantised(weight).numbers[:, :2].double().unbind(1)
    assert (second * weight[:, 0].double() - first * weight[:, 1].double()).any()


def test_rows_give_the_same_together_as_alone():
    fast = FastLinear(Matrix(quantised(torch.randn(48, 64).bfloat16()).weight, None, quantised=True))
    inputs = torch.randn(8, 64).bfloat16()
    with torch.inference_mode():
        alone = torch.cat([fast(row[None]) for row in inputs])
        # Each is rounded once or twice.
        assert (fast(inputs) - alone).abs().max() <= 2 * torch.finfo(torch.bfloat16).eps * alone.abs().max()


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_speculation_gives_the_quantised_models_own_greedy_text(family):
    slow, fast = (LanguageModel(tiny_model(family)) for _ in range(2))
    quantise(slow.model)
    quantise(fast.model)
    fast.make_fast()
    drafts = [IndependentDraft(LanguageModel(tiny_model(family, seed=3)), fast.vocabulary)]
    texts = [
        [token for step in Decoder(*parts).decode(PROMPT, 24) for token in step.tokens]
        for parts in ((slow,), (fast,), (fast, drafts, TREE), (fast, drafts, chain(4)))
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len(texts[0]) == 24


def test_a_draft_that_shares_a_quantised_head_knows_it():
    target = LanguageModel(tiny_model("llama").bfloat16())
    assert not feature_draft(target).head.quantised
    quantise(target.model)
    assert feature_draft(target).head.quantised
