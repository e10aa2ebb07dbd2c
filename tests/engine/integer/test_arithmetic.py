"""Weights and inputs as 8-bit numbers: what they are, and that their products are those of integers."""

import numpy as np
import pytest
import torch

from sequoia_cli.engine.integer.arithmetic import GROUP, packed, round_inputs, round_weight, unpacked
from sequoia_cli.engine.integer.weights import ByOutput

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_within_half_a_step_of_what_they_were(dtype):
    weight = (torch.randn(40, 24) * torch.logspace(-3, 3, 40)[:, None]).to(dtype)
    numbers, scales = round_weight(weight)
    assert numbers.dtype == torch.int8
    assert int(numbers.abs().max()) == 127
    step = scales.double()[:, None]
    assert ((numbers * step - weight.double()).abs() <= 0.5 * step * (1 + 1e-5)).all()


def test_rounded_weights_are_rounded_to_themselves():
    numbers, scales = round_weight(torch.randn(300, 64))
    again, _ = round_weight(numbers * scales[:, None])
    assert torch.equal(again, numbers)


def test_a_row_of_zeros_stays_one():
    numbers, scales = round_weight(torch.zeros(2, 4))
    assert not (numbers * scales[:, None]).any()


def test_inputs_are_rounded_as_single_precision_says_to_the_last_bit():
    # 127 / peak and the product each round once. A reciprocal times 127 rounds twice, and sends one value in
    # 100,000 to the other of two numbers.
    inputs = torch.randn(20_000, GROUP, generator=torch.Generator().manual_seed(0))
    numbers, _ = round_inputs(inputs)
    rows = inputs.numpy()
    factors = np.float32(127) / np.abs(rows).max(-1, keepdims=True)
    assert np.array_equal(numbers[:, 0].numpy(), np.rint(rows * factors))


def test_inputs_are_within_half_a_step_of_what_they_were_in_each_group():
    inputs = torch.randn(3, 100) * torch.logspace(-3, 3, 100)
    numbers, scales = round_inputs(inputs)
    assert numbers.shape == (3, 2, GROUP)
    assert torch.equal(numbers.abs().amax(-1), torch.full((3, 2), 127.0))
    meant = (numbers * scales[..., None]).flatten(1)[:, :100]
    steps = scales.repeat_interleave(GROUP, 1)[:, :100]
    assert ((meant - inputs).abs() <= 0.5 * steps * (1 + 1e-5)).all()
    assert not numbers.flatten(1)[:, 100:].any()


def test_inputs_of_zero_are_zero():
    numbers, scales = round_inputs(torch.zeros(1, GROUP))
    assert not numbers.any()
    assert not scales.any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_spoils_its_row_and_no_other(value):
    inputs = torch.randn(2, 3 * GROUP)
    inputs[0, 70] = value
    numbers, scales = round_weight(torch.randn(5, 3 * GROUP))
    found = ByOutput(numbers, scales).product(inputs)
    assert not found[0].isfinite().any()
    assert torch.equal(found[1:], ByOutput(numbers, scales).product(inputs[1:]))


@pytest.mark.parametrize(("outputs", "width"), [(16, 64), (5, 3), (40, 130)])
def test_a_product_is_that_of_the_integers(outputs, width):
    inputs = torch.randn(4, width)
    numbers, scales = round_weight(torch.randn(outputs, width))
    given, given_scales = round_inputs(inputs)
    whole = torch.zeros(outputs, given.shape[1] * GROUP, dtype=torch.int64)
    whole[:, :width] = numbers
    sums = torch.einsum("rgk,ngk->rgn", given.long(), whole.view(outputs, -1, GROUP))
    expected = (sums.double() * given_scales.double()[..., None]).sum(1) * scales.double()
    assert torch.allclose(ByOutput(numbers, scales).product(inputs).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("outputs", "width"), [(16, 64), (5, 3), (40, 130)])
def test_packing_loses_nothing(outputs, width):
    numbers = torch.randint(-127, 128, (outputs, width), dtype=torch.int8)
    laid = packed(numbers)
    assert laid.numel() % (16 * GROUP) == 0
    assert torch.equal(unpacked(laid, outputs, width), numbers)
    ids = torch.tensor([outputs - 1, 0, 2])
    assert torch.equal(unpacked(laid, outputs, width, ids), numbers[ids])
    assert int(laid.long().sum()) == int(numbers.long().sum())
