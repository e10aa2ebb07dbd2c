"""The layout of a weight is the one measured to be faster, once for each shape, and kept."""

import json

import pytest
import torch

from sequoia_cli.engine.fast import layouts
from sequoia_cli.engine.fast.layouts import PACKED, PLAIN, laid_out, multiply

SLOW, FAST = [2.0, 2.0], [1.0, 1.5]


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    monkeypatch.setattr(layouts, "_known", {})


@pytest.fixture
def packs():
    """Whether this torch has another layout at all."""
    return layouts.can_pack(torch.ones(4, 4))


def measured(monkeypatch, plain, packed):
    """Let every measurement give these seconds; returns the weights that were measured."""
    found = []
    monkeypatch.setattr(
        layouts,
        "_measured",
        lambda weight, _: found.append(weight) or {PLAIN: list(plain), PACKED: list(packed)},
    )
    return found


def forget(monkeypatch):
    """As another process would begin."""
    monkeypatch.setattr(layouts, "_known", {})


@pytest.mark.parametrize(("plain", "packed"), [(SLOW, FAST), (FAST, SLOW), ([1.0, 3.0], [1.5, 1.0])])
def test_the_faster_layout_is_taken_over_plain_and_tree_steps_together(monkeypatch, packs, plain, packed):
    measured(monkeypatch, plain, packed)
    found = laid_out(torch.ones(4, 4))
    assert found.is_mkldnn == (packs and sum(packed) < sum(plain))


def test_each_shape_is_measured_once_and_kept_for_the_next_process(monkeypatch, packs):
    found = measured(monkeypatch, SLOW, FAST)
    for _ in range(2):
        for shape in ((4, 4), (8, 4)):
            laid_out(torch.ones(shape))
        forget(monkeypatch)
    assert len(found) == (2 if packs else 0)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"float32 4 x 4": 3}', '{"float32 4 x 4": {"plain": [1.0]}}', "\0"]
)
def test_what_is_damaged_is_measured_again(monkeypatch, packs, content):
    found = measured(monkeypatch, SLOW, FAST)
    laid_out(torch.ones(4, 4))
    if packs:
        (place,) = layouts._place().parent.glob("layouts-*.json")
        place.write_text(content)
        forget(monkeypatch)
        laid_out(torch.ones(4, 4))
        assert len(found) == 2
        assert json.loads(place.read_text())["float32 4 x 4"] == {PLAIN: SLOW, PACKED: FAST}


def test_without_a_cache_to_write_to_a_shape_is_measured_once_in_a_process(monkeypatch, packs, tmp_path):
    (tmp_path / "compiled").write_text("a file where a folder should be")
    found = measured(monkeypatch, SLOW, FAST)
    for _ in range(2):
        laid_out(torch.ones(4, 4))
    assert len(found) == packs


def test_a_measurement_has_seconds_of_both_layouts_for_each_number_of_rows(packs):
    if packs:
        weight = torch.randn(64, 32)
        found = layouts._measured(weight, layouts.pack(weight))
        assert {layout: len(seconds) for layout, seconds in found.items()} == {PLAIN: 2, PACKED: 2}
        assert all(value > 0 for seconds in found.values() for value in seconds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_both_layouts_give_the_same_products(dtype):
    weight, inputs = torch.randn(48, 32).to(dtype), torch.randn(3, 32).to(dtype)
    bias = torch.randn(48).to(dtype)
    if layouts.can_pack(weight):
        with torch.inference_mode():
            found, expected = multiply(inputs, layouts.pack(weight), bias), multiply(inputs, weight, bias)
        assert (found - expected).abs().max() <= 8 * torch.finfo(dtype).eps * expected.abs().max()
