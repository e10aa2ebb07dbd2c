"""Blocks of GGUF as the kernel's numbers: the values are those that the `gguf` package gives."""

import numpy as np
import pytest
import torch
from gguf import quants

from sequoia_cli.engine.integer.gguf_blocks import KINDS, Q4_1, of_blocks, rounded


@pytest.mark.parametrize("kind", KINDS)
def test_a_blocks_values_are_those_of_the_gguf_package(kind):
    weight = torch.randn(20, 96)
    blocks = quants.quantize(weight.numpy(), kind)
    found = of_blocks(blocks, kind, 96).rows()
    assert np.array_equal(found.numpy(), quants.dequantize(blocks, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_within_half_a_step_of_what_they_were(kind, dtype):
    weight = torch.randn(20, 70).to(dtype)
    found = rounded(weight, kind)
    assert (found.outputs, found.width) == (20, 70)
    values = torch.nn.functional.pad(weight.float(), (0, 26)).view(20, 3, 32)
    spread = values.amax(-1) - values.amin(-1) if kind == Q4_1 else 2 * values.abs().amax(-1)
    step = (spread / (15 if kind == Q4_1 else 254)).repeat_interleave(32, 1)[:, :70]
    # The scale and the offset themselves have 11 bits.
    assert ((found.rows() - weight.float()).abs() <= 0.5 * step + 2**-10 * weight.float().abs().amax()).all()


def test_a_scale_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        rounded(torch.tensor([[-1e6, 1e6] * 16]), Q4_1)
