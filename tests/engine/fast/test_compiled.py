"""Layers compiled ahead of time against their slow twin, the same layers operation by operation."""

import os
import shutil
import zipfile

import pytest
import torch

from decoding import PROMPT, TREE, tree_logits
from exhaustive import few
from features import feature_draft
from models import tiny_model
from sequoia_cli.core.paths import cache_dir
from sequoia_cli.core.tree import chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast import compiled, layer_function, packages
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.model import LanguageModel

#: Families that differ in what a layer consists of, and the dtypes whose products differ: biases and
#: products as they are; another activation and norm, and packed ones.
KINDS = {
    "qwen2": (torch.float32, 1e-5),
    "gemma": (torch.bfloat16, 0.02),
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache for all tests here, in which each kind of layer is compiled once; no layer is too small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQUOIA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(compiled, "_WORTH_IT", 0)
        yield


def fast(family, dtype=torch.float32):
    model = LanguageModel(tiny_model(family).to(dtype))
    model.make_fast()
    return model


def blocks(model):
    return [module for module in model.model.modules() if isinstance(module, FastBlock)]


@pytest.fixture(scope="module")
def compiler():
    """What torch compiles with."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("needs a C++ compiler")


@pytest.fixture(scope="module", params=few(KINDS, "gemma"))
def twins(request, cache, compiler):
    dtype, tolerance = KINDS[request.param]
    slow, quick = (fast(request.param, dtype) for _ in range(2))
    said = []
    assert quick.compile(said.append), said
    assert all(block.compiled for block in blocks(quick))
    assert not any(block.compiled for block in blocks(slow))
    return slow, quick, tolerance


@pytest.mark.parametrize("tree", [TREE, chain(2), chain(9)], ids=["tree", "chain of 2", "chain of 9"])
def test_logits_and_hidden_states_of_a_tree_are_those_of_the_slow_twin(twins, tree):
    slow, quick, tolerance = twins
    for found, expected in zip(tree_logits(quick, tree), tree_logits(slow, tree), strict=True):
        assert (found - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.mark.parametrize("twins", ["qwen2"], indirect=True)  # bfloat16 rounds near-ties either way
def test_decoding_runs_them_at_every_step_and_gives_the_slow_twins_greedy_text(twins, monkeypatch):
    slow, quick, _ = twins
    runs, run = [], FastBlock._run_compiled
    monkeypatch.setattr(
        FastBlock, "_run_compiled", lambda block, *call: runs.append(call) or run(block, *call)
    )
    texts = []
    for model, tree in ((slow, TREE), (quick, TREE), (quick, chain(1))):
        draft = IndependentDraft(slow, slow.vocabulary)
        steps = list(Decoder(model, [draft] if tree.size > 1 else [], tree).decode(PROMPT, 24))
        texts.append([token for step in steps for token in step.tokens])
        expected = 0 if model is slow else len(blocks(quick)) * len(steps)
        assert len(runs) == expected
        runs.clear()
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 24


def test_a_kind_of_layer_is_compiled_once_and_kept(twins, monkeypatch):
    def make(block, place):
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiled, "_make", make)
    said = []
    _, quick, _ = twins
    for block in blocks(quick):
        block.compiled = None
    assert quick.compile(said.append)
    assert not said
    assert all(block.compiled for block in blocks(quick))


@pytest.mark.parametrize("twins", ["qwen2"], indirect=True)
def test_a_damaged_package_is_made_anew(twins):
    _, quick, _ = twins
    for package in (cache_dir() / "compiled").iterdir():
        package.write_bytes(package.read_bytes()[:1000])
    said = []
    assert quick.compile(said.append)
    assert "is damaged and made again" in said[0]
    assert said[1:] == ["compiling the layers for this processor (once; about half a minute)"]


def test_an_interrupt_within_compiled_code_is_an_interrupt():
    def interrupted(tensors):
        raise RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")

    model = fast("llama")
    for block in blocks(model):
        block.compiled = interrupted
    with pytest.raises(KeyboardInterrupt):
        list(Decoder(model).decode(PROMPT, 4))


def test_a_feature_drafts_layer_is_compiled_too(compiler):
    target = LanguageModel(tiny_model("llama"))
    drafts = [feature_draft(target, layers=2) for _ in range(2)]
    for draft in drafts:
        draft.make_fast()
    said = []
    assert drafts[1].compile(said.append), said
    texts = [[step.ranks for step in Decoder(target, [draft], TREE).decode(PROMPT, 24)] for draft in drafts]
    assert texts[0] == texts[1]


def test_without_a_compiler_the_layers_run_as_they_are_and_the_user_is_told(monkeypatch):
    monkeypatch.setattr(compiled, "compiler", lambda: None)
    monkeypatch.setattr(compiled, "_kind", lambda block: "new")
    model, said = fast("llama"), []
    assert not model.compile(said.append)
    assert said[0].startswith("no C++ compiler was found: the layers run uncompiled")
    assert not any(block.compiled for block in blocks(model))


def test_what_a_compiler_fails_with_is_told_and_nothing_is_left(monkeypatch, tmp_path, compiler):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    monkeypatch.setattr(
        torch._inductor, "aoti_compile_and_package", lambda *_, **__: (_ for _ in ()).throw(OSError("no g++"))
    )
    model, said = fast("llama"), []
    assert not model.compile(said.append)
    assert said[-1] == "the layers run uncompiled, which is slower: OSError: no g++"
    assert not any(block.compiled for block in blocks(model))
    assert not list(tmp_path.rglob("*.pt2"))


def test_a_package_that_gives_other_states_is_not_used(compiler, monkeypatch):
    plain = layer_function._normed
    monkeypatch.setattr(
        layer_function, "_normed", lambda states, weight, eps: 1.01 * plain(states, weight, eps)
    )
    monkeypatch.setattr(compiled, "_kind", lambda block: "wrong")
    model, said = fast("llama"), []
    assert not model.compile(said.append)
    assert said[-1] == "a compiled layer returns wrong states: it is not used"
    assert not any(block.compiled for block in blocks(model))


def test_a_package_that_loads_and_fails_is_not_used(monkeypatch):
    def fails(tensors):
        raise RuntimeError("undefined symbol: no_such_kernel")

    monkeypatch.setattr(compiled, "_compiled", lambda *_: fails)
    model, said = fast("llama"), []
    assert not model.compile(said.append)
    assert set(said) == {
        "a compiled layer fails, so it is not used: RuntimeError: undefined symbol: no_such_kernel"
    }
    assert not any(block.compiled for block in blocks(model))


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A package that is in order, which nobody may make anew."""
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_kind", lambda block: "kept")
    monkeypatch.setattr(compiled, "_make", lambda *_: pytest.fail("compiled again"))
    place = tmp_path / "compiled" / "kept.pt2"
    place.parent.mkdir(mode=0o700)
    with zipfile.ZipFile(place, "w") as package:
        package.writestr("data", "library")
    place.chmod(0o600)
    return place


def test_a_package_that_cannot_be_loaded_here_is_kept_and_the_reason_told_every_time(kept, monkeypatch):
    def refused(place):
        raise RuntimeError("version `GLIBC_2.99' not found")

    monkeypatch.setattr(compiled, "_loaded", refused)
    before = kept.read_bytes()
    for _ in range(2):
        said = []
        assert not fast("llama").compile(said.append)
        assert said == [
            "the layers run uncompiled, which is slower: RuntimeError: version `GLIBC_2.99' not found"
        ]
    assert kept.read_bytes() == before


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_package_that_others_may_write_to_is_not_loaded(kept, mode, monkeypatch):
    monkeypatch.setattr(compiled, "_loaded", lambda place: pytest.fail("loaded"))
    kept.chmod(mode)
    said = []
    assert not fast("llama").compile(said.append)
    assert said == [
        f"the layers run uncompiled, which is slower: others may write to {kept} (chmod go-w, or delete it)"
    ]


def test_a_package_of_another_user_is_not_loaded(kept, monkeypatch):
    monkeypatch.setattr(compiled, "_loaded", lambda place: pytest.fail("loaded"))
    found = os.stat_result((*kept.stat()[:4], os.getuid() + 1, *kept.stat()[5:]))
    monkeypatch.setattr(type(kept), "stat", lambda self, **_: found)
    with pytest.raises(packages.Unusable, match=r"kept\.pt2 belongs to another user"):
        packages.require_own(kept)


def test_where_no_folder_can_hold_libraries_one_line_says_so_and_nothing_is_compiled(kept, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(kept.parent.parent))
    monkeypatch.setattr(packages.mmap, "mmap", _refused)
    said = []
    assert not fast("llama").compile(said.append)
    assert said == [
        f"the layers run uncompiled, which is slower: {kept.parent.parent} is noexec "
        "(set TMPDIR to a folder that libraries can be loaded from)"
    ]


def _refused(*_, **__):
    raise PermissionError("Operation not permitted")


def test_libraries_are_unpacked_beside_the_packages_where_the_usual_folder_cannot_hold_them(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    with packages.unpacking(tmp_path):
        assert os.environ["TMPDIR"] == str(tmp_path)
    assert os.environ["TMPDIR"] == str(tmp_path / "gone")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with packages.unpacking(tmp_path / "other"):
        assert os.environ["TMPDIR"] == str(tmp_path)


def test_the_key_of_a_package_holds_versions_compiler_flags_and_capability(monkeypatch):
    (block, *_) = blocks(fast("llama"))
    block.constants = tuple(compiled._constants(block))
    keys = {compiled._kind(block)}
    for change in (
        lambda: monkeypatch.setattr(compiled, "compiler", lambda: ("/usr/bin/g++", "g++ 99.1")),
        lambda: monkeypatch.setattr(compiled.transformers, "__version__", "0.0"),
        lambda: monkeypatch.setenv("CXXFLAGS", "-O1"),
        lambda: monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default"),
        lambda: monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "SVE256"),
    ):
        assert compiled._kind(block) in keys
        change()
        assert compiled._kind(block) not in keys
        keys.add(compiled._kind(block))


def test_small_layers_are_not_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "_WORTH_IT", 1_000_000)
    model, said = fast("llama"), []
    assert not model.compile(said.append)
    assert not said
