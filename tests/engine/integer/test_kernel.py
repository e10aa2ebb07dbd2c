"""The kernel against its slow twin, with every set of instructions that this processor has."""

import pytest
import torch

from integers import KINDS
from sequoia_cli.engine.fast import packages
from sequoia_cli.engine.fast.packages import Unusable
from sequoia_cli.engine.integer import kernel as module
from sequoia_cli.engine.integer.blocks import require_right_products
from sequoia_cli.engine.integer.kernel import load_kernel
from sequoia_cli.engine.integer.linear import IntegerLinear
from sequoia_cli.engine.integer.weights import ByOutput, BySpan
from sequoia_cli.engine.loading.devices import cpu_features

#: As torch names them; the empty name is for all that the processor has. Laptops of today have "avx_vnni".
INSTRUCTIONS = [
    name
    for name, needed in (("", ""), ("avx2", "avx2"), ("avx_vnni", "avx_vnni"), ("default", ""))
    if not needed or needed in cpu_features()
]
SHAPES = [(48, 64), (5, 3), (100, 130), (576, 576)]


def linear(outputs, width, bias=False, kind="by output"):
    return IntegerLinear(KINDS[kind](torch.randn(outputs, width)), torch.randn(outputs) if bias else None)


def build_for(name, monkeypatch):
    load_kernel.cache_clear()
    if name:
        monkeypatch.setitem(module._INSTRUCTIONS, "avx_vnni", ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"))
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", name)
    return load_kernel()


@pytest.fixture(params=INSTRUCTIONS)
def kernel(request, monkeypatch, compiler):
    return build_for(request.param, monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "width"), SHAPES)
def test_products_are_those_of_the_slow_twin(kernel, outputs, width, bias, kind):
    layer = linear(outputs, width, bias, kind)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 17):
        inputs = torch.randn(rows, width)
        expected, found = layer(inputs), kernel.product(layer, inputs)
        # Each of up to 9 groups is added with or without a rounding of its own.
        assert (found - expected).abs().max() <= 5e-6 * expected.abs().max()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "width"), SHAPES)
def test_a_row_gives_the_same_bits_whatever_stands_beside_it(kernel, outputs, width, kind):
    layer, inputs = linear(outputs, width, kind=kind), torch.randn(17, width)
    together = kernel.product(layer, inputs)
    for first, end in ((0, 1), (3, 5), (4, 12), (16, 17)):
        assert torch.equal(kernel.product(layer, inputs[first:end]), together[first:end])


@pytest.mark.parametrize("kind", KINDS)
def test_all_instructions_give_the_same_bits(monkeypatch, compiler, kind):
    layer, inputs = linear(100, 130, bias=True, kind=kind), torch.randn(9, 130)
    found = []
    for name in INSTRUCTIONS:
        found.append(build_for(name, monkeypatch).product(layer, inputs))
    assert len(found) > 1
    assert all(torch.equal(other, found[0]) for other in found[1:])


def largest(kind):
    """Weights (16, 640) of the largest numbers there are, which are what they stand for."""
    if kind == "by output":
        return ByOutput(torch.full((16, 640), -127, dtype=torch.int8), torch.ones(16))
    ones = torch.ones(16, 20, dtype=torch.float16)
    if kind == "8 bits by span":
        return BySpan(torch.full((16, 640), -127, dtype=torch.int8), ones)
    return BySpan(torch.full((16, 640), 15, dtype=torch.uint8), ones, 0 * ones)


@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_numbers_do_not_overflow(kernel, kind):
    layer = IntegerLinear(largest(kind))
    inputs = torch.full((2, 640), 127.0)
    inputs[1] = -127
    number = float(layer.weight[0, 0])
    assert kernel.product(layer, inputs)[:, 0].tolist() == [number * 127 * 640, -number * 127 * 640]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_not_finite_spoils_its_row_and_no_other(kernel, value, kind):
    layer, inputs = linear(20, 130, kind=kind), torch.randn(2, 130)
    sound = kernel.product(layer, inputs)
    inputs[0, 7] = value
    found = kernel.product(layer, inputs)
    assert not found[0].isfinite().any()
    assert torch.equal(found[1], sound[1])


def test_what_a_mask_leaves_open(kernel):
    mask = torch.full((1, 1, 3, 6), torch.finfo(torch.float32).min)
    for row, columns in enumerate(([0, 1, 3], [0, 1, 2, 3, 4, 5], [4])):
        mask[0, 0, row, columns] = 0
    columns, counts = kernel.seen(mask)
    assert counts.tolist() == [3, 6, 1]
    assert [columns[row, :count].tolist() for row, count in enumerate(counts)] == [
        [0, 1, 3],
        [0, 1, 2, 3, 4, 5],
        [4],
    ]
    part = kernel.seen(mask[..., 1:])  # a view of a wider mask
    assert part[1].tolist() == [2, 5, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("outputs", "width"), SHAPES)
def test_the_weights_of_some_outputs_are_those_of_the_slow_twin(kernel, outputs, width, kind):
    layer = linear(outputs, width, kind=kind)
    ids = torch.tensor([outputs - 1, 0, 3, 3])
    expected = layer.rows(ids)
    assert torch.equal(expected, layer.weight[ids])
    layer.kernel = kernel
    assert torch.equal(layer.rows(ids), expected)
    for wrong in (outputs, -1):
        with pytest.raises(IndexError):
            layer.rows(torch.tensor([0, wrong]))


def test_a_library_is_built_once_and_kept(monkeypatch, compiler):
    load_kernel()
    load_kernel.cache_clear()
    monkeypatch.setattr(module, "_build", lambda *_: pytest.fail("built again"))
    load_kernel()


def test_a_library_that_was_cut_short_is_built_anew(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    load_kernel()
    (place,) = (tmp_path / "compiled").glob("*.so")
    whole = place.read_bytes()
    # A file of its own: this process has the other one mapped.
    place.unlink()
    place.write_bytes(whole[:1000])
    load_kernel.cache_clear()
    load_kernel()
    assert place.read_bytes() == whole


def test_a_library_of_another_users_is_refused(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    load_kernel()
    (place,) = (tmp_path / "compiled").glob("*.so")
    place.chmod(0o666)
    load_kernel.cache_clear()
    with pytest.raises(Unusable, match="others may write to"):
        load_kernel()


def test_what_the_compiler_says_is_told_and_nothing_is_left(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_FLAGS", ("-no-such-flag",))
    with pytest.raises(Unusable, match=r"failed: .*no-such-flag"):
        load_kernel()
    assert not list((tmp_path / "compiled").iterdir())


def test_where_the_cache_is_noexec_the_library_is_built_elsewhere_and_leaves_nothing(
    monkeypatch, tmp_path, compiler
):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    refused = packages._no_libraries
    monkeypatch.setattr(
        packages,
        "_no_libraries",
        lambda folder: "is noexec" if folder.name == "compiled" else refused(folder),
    )
    kernel, layer, inputs = load_kernel(), linear(20, 70), torch.randn(3, 70)
    assert torch.allclose(kernel.product(layer, inputs), layer(inputs), atol=1e-4)
    assert not list(tmp_path.rglob("*.so"))
    assert not list(tmp_path.glob("sequoia-*"))


def test_a_cache_that_cannot_be_written_to_does_not_keep_the_kernel_from_being_used(
    monkeypatch, tmp_path, compiler
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path / "file" / "cache"))
    kernel, layer, inputs = load_kernel(), linear(20, 70), torch.randn(3, 70)
    assert torch.allclose(kernel.product(layer, inputs), layer(inputs), atol=1e-4)


def test_without_a_compiler_there_is_none(monkeypatch):
    monkeypatch.setattr(module, "compiler", lambda: None)
    with pytest.raises(Unusable, match=r"no C\+\+ compiler was found"):
        load_kernel()


@pytest.mark.parametrize("wrong", KINDS)
def test_each_kind_of_weights_is_compared_where_several_have_one_shape(wrong, monkeypatch, compiler):
    kernel, layers = load_kernel(), {kind: linear(20, 70, kind=kind) for kind in KINDS}
    require_right_products(kernel, list(layers.values()))
    right = kernel.product

    def product(layer, inputs):
        return right(layer, inputs) + (layer is layers[wrong])

    monkeypatch.setattr(kernel, "product", product)
    with pytest.raises(Unusable, match="slow twin"):
        require_right_products(kernel, list(layers.values()))
