"""Masks written into buffers are the masks that an ordinary forward gets, and forbid what lies behind."""

import pytest
import torch

from decoding import TREE
from models import tiny_model
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.nodes import tree_block

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
