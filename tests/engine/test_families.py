"""Every model type with a causal language model in transformers: right, or refused by name (FAMILIES.md)."""

import copy

import pytest
import torch
from transformers import __version__

from decoding import own_greedy
from exhaustive import few
from families import (
    KINDS,
    NAMES,
    NOT_TRIED,
    TABLE,
    WORKS,
    opened,
    outcome,
    require_equal,
    require_the_context_to_end,
    save,
    stated,
    table,
    with_long_rope,
)
from models import random_model
from sequoia_cli.engine import model as engine_model
from sequoia_cli.engine.masks import Masks
from sequoia_cli.errors import BadInput
from tiny_configs import VOCABULARY, WINDOW, tiny_config

VERSION, STATED = stated(TABLE.read_text(encoding="utf-8"))
#: One of each way to work or to be refused: whole layers, parts of layers, windows, experts, scales by
#: position, ALiBi, recurrent layers, an encoder.
QUICK = ("llama", "gpt2", "gemma3_text", "mixtral", "ministral3", "bloom", "mamba", "bert")
WITH_WINDOW = [
    name
    for name, (kind, _) in STATED.items()
    if kind == WORKS and name in NAMES and name not in KINDS and hasattr(tiny_config(name), "sliding_window")
]


@pytest.mark.parametrize("name", few(sorted({*NAMES, *STATED}), *QUICK))
def test_a_family_is_what_the_table_says_it_is(name, tmp_path):
    if name not in NAMES:
        pytest.skip(f"transformers {__version__} has no '{name}'")
    found = outcome(name, tmp_path)
    assert name in STATED, f"FAMILIES.md lacks it: `make families` ({found.kind}: {found.detail})"
    assert found.kind == STATED[name].kind, found.detail
    if __version__ == VERSION:  # another one may put its layers together in another way
        assert found.detail == STATED[name].detail


def test_the_table_is_read_as_it_is_written():
    assert stated(table(STATED)) == (__version__, STATED)


@pytest.mark.parametrize("name", few(WITH_WINDOW, "gemma3_text", "mistral"))
def test_windows_of_the_tiny_models_are_short_enough_to_show(name):
    ids = torch.randint(0, VOCABULARY, (1, 4 * WINDOW), generator=torch.Generator().manual_seed(0))
    narrow, wide = (
        random_model(tiny_config(name, sliding_window=window))(input_ids=ids, use_cache=False).logits[0]
        for window in (WINDOW, 200)
    )
    assert torch.allclose(narrow[: WINDOW - 1], wide[: WINDOW - 1], atol=1e-4)
    assert (narrow[-1] - wide[-1]).abs().max() > 1e-2 * wide[-1].abs().max()


def test_the_sweep_sees_a_window_that_is_left_out(monkeypatch, tmp_path):
    save("mistral", tmp_path)
    target = opened(tmp_path, torch.float32)
    expected = own_greedy(target.model)
    require_equal(target, expected)
    plain = Masks.__init__

    def without_window(self, config, *arguments):
        config = copy.copy(config)
        config.sliding_window = None
        plain(self, config, *arguments)

    monkeypatch.setattr(Masks, "__init__", without_window)
    with pytest.raises(AssertionError):
        require_equal(target, expected)
    with pytest.raises(BadInput, match="family 'mistral'"):
        opened(tmp_path, torch.float32)


@pytest.mark.parametrize("name", ["phi3", "gemma3_text"])
def test_the_sweep_sees_texts_that_pass_the_original_context(name, monkeypatch):
    config = with_long_rope(name)
    require_the_context_to_end(config)
    monkeypatch.setattr(engine_model, "context_limit", lambda config: config.max_position_embeddings)
    with pytest.raises(AssertionError):
        require_the_context_to_end(config)


def test_types_that_are_not_tried_are_few_and_known():
    assert set(NOT_TRIED) <= set(STATED)
    assert len(NOT_TRIED) < len(STATED) // 20
