"""Cache rows: as many as a text needs, and each layer's on its own device."""

import pytest
import torch

from decoding import decoder, new_ids, own_greedy
from models import near, tiny_model
from sequoia_cli.engine import cache as caches
from sequoia_cli.engine.cache import TreeCache


def written(cache, rows, first=0):
    """Write rows of rising numbers into every layer."""
    states = torch.arange(first, first + rows, dtype=torch.float32)[None, None, :, None].expand(1, 2, rows, 4)
    for layer in cache.layers:
        layer.update(states, states)


def test_a_large_budget_takes_no_memory_before_the_text_does():
    cache = TreeCache(2, 1 << 40)
    written(cache, 5)
    assert cache.layers[0].keys.shape[2] < 10_000
    assert cache.capacity == cache.layers[0].get_max_length() == 1 << 40


@pytest.mark.parametrize("pieces", [[3, 1, 1, 9, 2], [20, 1]])
def test_rows_are_kept_when_more_are_needed(pieces, monkeypatch):
    monkeypatch.setattr(caches, "_FIRST_ROWS", 2)
    cache, first = TreeCache(2, 24), 0
    for rows in pieces:
        written(cache, rows, first)
        first += rows
        for layer in cache.layers:
            for states in (layer.keys, layer.values):
                assert states.shape[2] <= 24
                assert states[0, 0, :first, 0].tolist() == list(range(first))
    with pytest.raises(ValueError, match="do not fit"):
        written(cache, 24)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("fast", [False, True])
def test_texts_whose_cache_grows_are_the_targets_own(family, fast, monkeypatch):
    monkeypatch.setattr(caches, "_FIRST_ROWS", 3)
    target = tiny_model(family)
    expected, decoding = own_greedy(target), decoder(target, near(target, 0.02))
    if fast:
        decoding.target.make_fast()
    assert new_ids(decoding) == expected


def test_rows_are_kept_on_the_device_of_each_layer():
    cache = TreeCache(2, 8)
    written(cache, 5)
    for name in ("keys", "values"):
        setattr(cache.layers[1], name, getattr(cache.layers[1], name).to("meta"))
    cache.keep(1, [1, 3])
    assert cache.layers[0].keys[0, 0, :3, 0].tolist() == [0, 2, 4]
    assert cache.layers[1].length == 3


def test_all_layers_of_one_shape_lie_in_one_tensor_and_others_beside_it():
    cache = TreeCache(3, 8)
    states = torch.arange(6.0)[None, None, :, None].expand(1, 2, 6, 4)
    for layer, given in zip(cache.layers, (states, states[..., :2], states), strict=True):
        layer.update(given, given)
    first, other, last = cache.layers
    assert first.keys.untyped_storage().data_ptr() == last.values.untyped_storage().data_ptr()
    assert other.keys.untyped_storage().data_ptr() != first.keys.untyped_storage().data_ptr()
    cache.keep(1, [1, 3])
    assert [layer.keys[0, 1, :3, 0].tolist() for layer in cache.layers] == [[0, 2, 4]] * 3


@pytest.mark.parametrize("rows", [5, 30])
def test_a_path_is_kept_in_two_operations(rows, monkeypatch):
    monkeypatch.setattr(caches, "_FIRST_ROWS", 8)
    cache = TreeCache(20, 40)
    written(cache, rows)
    calls, right = [], torch.Tensor.index_select
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *given: calls.append(1) or right(*given))
    cache.keep(1, [0, 2, 3])
    assert len(calls) == 1
    for layer in cache.layers:
        for states in (layer.keys, layer.values):
            assert states[0, 1, :4, 0].tolist() == [0, 1, 3, 4]
    written(cache, 3, 90)
    assert cache.layers[19].values[0, 0, :7, 3].tolist() == [0, 1, 3, 4, 90, 91, 92]
