"""Models of rounded weights: what becomes of their parts, and that each is one model however it is run."""

import pytest
import torch
from torch import nn

from decoding import PROMPT, TREE, tree_logits
from features import feature_draft
from models import tiny_model
from sequoia_cli.core.tree import chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.integer import blocks
from sequoia_cli.engine.integer.arithmetic import round_weight
from sequoia_cli.engine.integer.kernel import Kernel
from sequoia_cli.engine.integer.linear import IntegerEmbedding, IntegerLinear
from sequoia_cli.engine.integer.quantise import is_quantised, quantise
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention, check_what_decodes

#: Families whose layers run whole in the kernel: with biases, another activation and norm, a window.
WIDE = {"head_dim": 16}
IN_KERNEL = {"llama": WIDE, "qwen2": WIDE, "gemma": WIDE, "mistral": {**WIDE, "sliding_window": 6}}
OTHERS = ["qwen3", "gpt2"]


def quantised(family, forward="compiled", seed=0, **settings):
    model = tiny_model(family, seed=seed, **settings)
    quantise(model)
    model = LanguageModel(model)
    if forward != "plain":
        model.make_fast()
    if forward == "compiled":
        said = []
        assert model.compile(said.append), said
        assert not said
    return model


def whole(model):
    return [block for block in model.model.modules() if isinstance(block, FastBlock) and block.in_kernel]


def test_all_linear_layers_are_rounded_and_nothing_else():
    model, before = tiny_model("qwen2"), tiny_model("qwen2")
    assert not is_quantised(model)
    quantise(model)
    assert is_quantised(model)
    found = dict(model.named_modules())
    for name, module in before.named_modules():
        if isinstance(module, nn.Linear):
            numbers, scales = round_weight(module.weight)
            assert torch.equal(found[name].weight, numbers * scales[:, None])
            if module.bias is not None:
                assert torch.equal(found[name].bias[: len(module.bias)], module.bias)
        else:
            assert type(found[name]) is type(module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transposed_layers_are_rounded_by_output_too(dtype):
    model, before = tiny_model("gpt2").to(dtype), tiny_model("gpt2").to(dtype)
    quantise(model)
    numbers, scales = round_weight(before.transformer.h[0].mlp.c_fc.weight.T)
    assert torch.equal(model.transformer.h[0].mlp.c_fc.weight, numbers * scales[:, None])
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_an_embedding_tied_to_the_head_reads_its_numbers():
    model = tiny_model("llama", tie_word_embeddings=True)
    before = model.lm_head.weight.detach().clone()
    quantise(model)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, IntegerEmbedding)
    numbers, scales = round_weight(before)
    ids = torch.tensor([[3, 0, 7]])
    assert torch.equal(embedding(ids), (numbers * scales[:, None])[ids])
    assert embedding.to(torch.bfloat16)(ids).dtype == torch.bfloat16
    # Nothing else has the size of the vocabulary.
    large = [part for part in (*model.parameters(), *model.buffers()) if part.numel() >= before.numel()]
    assert [part.dtype for part in large if part.shape[-1] == before.shape[-1]] == []


def test_an_embedding_that_does_more_than_look_up_stays_with_the_rounded_weights():
    model = tiny_model("gemma3", tie_word_embeddings=True)
    quantise(model)
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, nn.Embedding)
    assert torch.equal(embedding.weight, model.lm_head.weight)


def test_models_that_share_a_weight_share_its_numbers():
    first, second = tiny_model("llama"), tiny_model("llama", seed=3)
    second.lm_head.weight = first.lm_head.weight
    made = {}
    quantise(first, made)
    quantise(second, made)
    assert second.lm_head is first.lm_head
    assert second.model.layers[0].mlp.up_proj is not first.model.layers[0].mlp.up_proj


def test_a_layer_for_some_outputs_and_one_of_several_are_parts_of_the_whole():
    layers = [IntegerLinear.of(torch.randn(n, 70), torch.randn(n) if n > 5 else None) for n in (20, 5, 16)]
    inputs = torch.randn(3, 70)
    together = IntegerLinear.stacked(layers)
    assert torch.equal(together(inputs), torch.cat([layer(inputs) for layer in layers], 1))
    ids = torch.tensor([40, 3, 22])
    assert torch.equal(together.only(ids)(inputs), together(inputs)[:, ids])


@pytest.mark.parametrize("family", [*IN_KERNEL, *OTHERS])
def test_the_self_tests_pass_and_whole_layers_run_in_the_kernel_where_it_knows_their_plan(family, compiler):
    model = tiny_model(family, **IN_KERNEL.get(family, {}))
    quantise(model)
    model = LanguageModel(model)
    check_tree_attention(model, "it")
    model.make_fast()
    assert model.compile(lambda line: pytest.fail(line))
    check_what_decodes(model, "it")
    assert len(whole(model)) == (model.config.num_hidden_layers if family in IN_KERNEL else 0)


@pytest.mark.parametrize("family", IN_KERNEL)
def test_a_trees_logits_are_those_of_plain_decoding_bit_for_bit(family, compiler):
    model = quantised(family, **IN_KERNEL[family])
    *nodes, after = tree_logits(model, TREE)[0]
    for node, found in enumerate(nodes):
        assert torch.equal(found, one_by_one(model, TREE.path(node)))
    assert torch.equal(after, one_by_one(model, TREE.path(TREE.size - 1), 7))


def one_by_one(model, path, *after):
    """Logits after a path of the nodes of `tree_logits`, each token in a forward of its own."""
    cache = model.new_cache(len(PROMPT) + TREE.size + 1)
    model.prefill(torch.tensor(PROMPT), cache)
    for token in (*(3 + node for node in path), *after):
        position = torch.tensor([cache.length])
        logits = model.forward(torch.tensor([token]), position, cache, None).logits[-1]
    return logits


@pytest.mark.parametrize("family", IN_KERNEL)
def test_tree_chain_and_plain_text_are_equal(family, compiler):
    model = quantised(family, **IN_KERNEL[family])
    draft = IndependentDraft(quantised(family, seed=3, **IN_KERNEL[family]), model.vocabulary)
    texts = [
        [token for step in Decoder(model, drafts, tree).decode(PROMPT, 64) for token in step.tokens]
        for drafts, tree in (([], chain(1)), ([draft], TREE), ([draft], chain(4)))
    ]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 64


@pytest.mark.parametrize("family", OTHERS)
def test_families_of_other_plans_give_the_quantised_models_own_greedy_text(family, compiler):
    slow, fast = quantised(family, "plain"), quantised(family)
    drafts = [IndependentDraft(LanguageModel(tiny_model(family, seed=3)), fast.vocabulary)]
    texts = [
        [token for step in Decoder(*parts).decode(PROMPT, 24) for token in step.tokens]
        for parts in ((slow,), (fast,), (fast, drafts, TREE), (fast, drafts, chain(4)))
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]


def test_a_feature_draft_runs_in_the_kernel_with_its_part_of_the_targets_head(compiler):
    target = quantised("llama", "plain")
    ids = torch.tensor([1, 5, 9, 30])
    draft = feature_draft(target, ids=ids)
    quantise(draft.model)
    draft.make_fast()
    assert draft.compile(lambda line: pytest.fail(line))
    assert draft.head.product.out_features == len(ids)
    assert all(
        layer.kernel for layer in blocks.integer_layers(nn.ModuleList((draft.model, draft.head.product)))
    )
    steps = list(Decoder(target, [draft], TREE).decode(PROMPT, 24))
    assert [token for step in steps for token in step.tokens] == [
        token for step in Decoder(target).decode(PROMPT, 24) for token in step.tokens
    ]


def test_without_a_kernel_it_is_the_same_model_and_the_user_is_told(monkeypatch):
    def none():
        raise blocks.Unusable("no C++ compiler was found (install g++)")

    monkeypatch.setattr(blocks, "load_kernel", none)
    model, said = quantised("llama", "fast"), []
    assert not model.compile(said.append)
    why = "no C++ compiler was found (install g++)"
    assert said == [f"products of 8-bit integers run without their kernel, which is slow: {why}"]


def test_a_kernel_with_other_products_is_not_used(monkeypatch, compiler):
    model, said = quantised("llama", "fast"), []
    right = Kernel.product
    monkeypatch.setattr(Kernel, "product", lambda self, *given: 1.01 * right(self, *given))
    assert not model.compile(said.append)
    assert "its products are not those of its slow twin" in said[0]


def test_a_layer_that_the_kernel_computes_otherwise_runs_without(monkeypatch, compiler):
    model, said = quantised("llama", "fast", **WIDE), []
    right = Kernel.layer

    def otherwise(self, linears, norms, *others):
        return right(self, linears, tuple((2 * weight, eps) for weight, eps in norms), *others)

    monkeypatch.setattr(Kernel, "layer", otherwise)
    assert model.compile(said.append)
    assert set(said) == {"a layer gives other states in the kernel than it should: it runs without"}
    assert not whole(model)
