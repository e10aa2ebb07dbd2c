"""Layers compiled ahead of time against their slow twin, the same layers operation by operation."""

import os
import shutil

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
from sequoia_cli.engine.fast import compiled, layer_function
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.quantise import quantise

#: Families that differ in what a layer consists of, and the dtypes whose products differ: biases and
#: products as they are; another activation and norm, and packed ones; 8-bit numbers.
KINDS = {
    "qwen2": (torch.float32, False, 1e-5),
    "gemma": (torch.bfloat16, False, 0.02),
    "llama": (torch.bfloat16, True, 0.02),
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """One cache for all tests here, in which each kind of layer is compiled once; no layer is too small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEQUOIA_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(compiled, "_WORTH_IT", 0)
        yield


def fast(family, dtype=torch.float32, quantised=False):
    model = LanguageModel(tiny_model(family).to(dtype))
    if quantised:
        quantise(model.model)
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
    dtype, quantised, tolerance = KINDS[request.param]
    slow, quick = (fast(request.param, dtype, quantised) for _ in range(2))
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
    assert "is damaged and made anew" in said[0]
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
    monkeypatch.setattr(compiled, "_COMPILERS", ["no-such-compiler"])
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
    assert said[-1] == "a compiled layer gives other states than it should: it is not used"
    assert not any(block.compiled for block in blocks(model))


def test_small_layers_are_not_compiled(monkeypatch):
    monkeypatch.setattr(compiled, "_WORTH_IT", 1_000_000)
    model, said = fast("llama"), []
    assert not model.compile(said.append)
    assert not said
