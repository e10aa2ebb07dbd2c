"""Masks written into buffers, and over the window alone, say what the mask of an ordinary forward says."""

import pytest
import torch

from decoding import TREE
from models import tiny_model
from sequoia_cli.engine.masks import TreeMask
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.nodes import node_block, tree_block

MODELS = {
    "one kind": ("llama", {}),
    "all slide": ("mistral", {"sliding_window": 5}),
    "both kinds": ("gemma2", {"sliding_window": 5}),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [11, 17, 32])
def test_a_filled_buffer_is_the_mask_and_forbids_the_rows_behind(name, length):
    family, options = MODELS[name]
    masks = LanguageModel(tiny_model(family, **options)).masks(tree_block(TREE), 60)
    buffers, expected = masks.buffers(32), masks.over(length)
    for _ in range(2):  # what a longer text has left there must go
        masks.fill(buffers, 32)
        masks.fill(buffers, length)
    assert masks.kinds == (tuple(expected) if isinstance(expected, dict) else ())
    assert len(masks.kinds) == (2 if name == "both kinds" else 0)
    for kind in masks.kinds or (None,):
        buffer, mask = (found[kind] if kind else found for found in (buffers, expected))
        assert torch.equal(buffer[..., :length], mask)
        assert bool((buffer[..., length:] == torch.finfo(buffer.dtype).min).all())
        assert buffer.shape[-1] == 32


@pytest.mark.parametrize("first", [0, 2, 5])
@pytest.mark.parametrize("window", [1, 2, 3, 6, 30])
@pytest.mark.parametrize("length", [TREE.size, 14, 30])
def test_a_narrow_mask_leaves_out_what_no_row_sees(first, window, length):
    block = node_block(TREE.parents, first)
    mask = TreeMask(block, capacity=30, dtype=torch.float32, device=torch.device("cpu"), window=window)
    whole, narrow = mask.over(length), mask.over(length, narrow=True)
    left = length - narrow.shape[-1]
    assert torch.equal(whole[..., left:], narrow)
    assert not (whole[..., :left] == 0).any()
    # Of the prefix nothing more is read than the nearest row sees.
    seen = (whole == 0).any(-2)[0, 0].nonzero()[0]
    assert left == seen or narrow.shape[-1] == block.allowed.shape[1]
