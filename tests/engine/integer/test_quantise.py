"""Models of rounded weights: what becomes of their parts, and that each is one model however it is run."""

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from decoding import PROMPT, TREE, new_ids, tree_logits
from features import feature_draft
from integers import KINDS
from models import random_model, tiny_model
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.integer import blocks, gguf_blocks
from sequoia_cli.engine.integer.arithmetic import round_weight
from sequoia_cli.engine.integer.kernel import Kernel
from sequoia_cli.engine.integer.linear import IntegerEmbedding, IntegerLinear, unrounded
from sequoia_cli.engine.integer.quantise import is_quantised, quantise, share_left
from sequoia_cli.engine.integer.weights import ByOutput, BySpan
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention, check_what_decodes

#: Families whose layers run whole in the kernel: with biases, another activation and norm, a window.
WIDE = {"head_dim": 16}
IN_KERNEL = {"llama": WIDE, "qwen2": WIDE, "gemma": WIDE, "mistral": {**WIDE, "sliding_window": 6}}
OTHERS = ["qwen3", "gpt2"]


def quantised(family, forward="compiled", seed=0, bits=8, **settings):
    model = tiny_model(family, seed=seed, **settings)
    quantise(model, bits=bits)
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
    quantise(first, second)
    assert second.lm_head is first.lm_head
    assert second.model.layers[0].mlp.up_proj is not first.model.layers[0].mlp.up_proj


@pytest.mark.parametrize("rounded", KINDS.values(), ids=KINDS)
def test_a_layer_for_some_outputs_and_one_of_several_are_parts_of_the_whole(rounded):
    layers = [
        IntegerLinear(rounded(torch.randn(n, 70)), torch.randn(n) if n > 5 else None) for n in (20, 5, 16)
    ]
    inputs = torch.randn(3, 70)
    together = IntegerLinear.stacked(layers)
    assert torch.equal(together(inputs), torch.cat([layer(inputs) for layer in layers], 1))
    ids = torch.tensor([40, 3, 22])
    assert torch.equal(together.only(ids)(inputs), together(inputs)[:, ids])


def test_with_4_bits_the_head_and_its_embedding_have_8():
    model = tiny_model("llama", tie_word_embeddings=True)
    before = model.lm_head.weight.detach().clone()
    layer = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    quantise(model, bits=4)
    assert torch.equal(model.lm_head.weight, gguf_blocks.rounded(before, gguf_blocks.Q8_0).rows())
    assert torch.equal(
        model.model.layers[0].mlp.up_proj.weight, gguf_blocks.rounded(layer, gguf_blocks.Q4_1).rows()
    )
    assert torch.equal(model.get_input_embeddings().weight, model.lm_head.weight)


def test_each_model_has_bits_of_its_own():
    target, draft = tiny_model("llama"), tiny_model("llama", seed=3)
    quantise(target, draft, bits={target: 4, draft: 8})
    kinds = [type(model.model.layers[0].mlp.up_proj.weights) for model in (target, draft)]
    assert kinds == [BySpan, ByOutput]


def test_weights_beyond_half_precision_are_refused_for_4_bits():
    model = nn.ModuleList([nn.Linear(32, 3)])
    nn.init.constant_(model[0].weight, 1e6)
    with pytest.raises(ValueError, match="not finite"):
        quantise(model, bits=4)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", [*IN_KERNEL, *OTHERS])
def test_the_self_tests_pass_and_whole_layers_run_in_the_kernel_where_it_knows_their_plan(
    family, compiler, bits
):
    model = tiny_model(family, **IN_KERNEL.get(family, {}))
    quantise(model, bits=bits)
    model = LanguageModel(model)
    check_tree_attention(model, "it")
    model.make_fast()
    assert model.compile(lambda line: pytest.fail(line))
    check_what_decodes(model, "it")
    assert len(whole(model)) == (model.config.num_hidden_layers if family in IN_KERNEL else 0)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", IN_KERNEL)
def test_a_trees_logits_are_those_of_plain_decoding_bit_for_bit(family, compiler, bits):
    model = quantised(family, bits=bits, **IN_KERNEL[family])
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


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", IN_KERNEL)
def test_tree_chain_and_plain_text_are_equal(family, compiler, bits):
    model = quantised(family, bits=bits, **IN_KERNEL[family])
    draft = IndependentDraft(quantised(family, seed=3, bits=bits, **IN_KERNEL[family]), model.vocabulary)
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", IN_KERNEL)
def test_states_in_half_precision_do_not_go_into_the_kernel_whole(family, dtype, compiler):
    model = tiny_model(family, **IN_KERNEL[family]).to(dtype)
    quantise(model)
    model = LanguageModel(model)
    check_tree_attention(model, "it")
    model.make_fast()
    assert model.compile(lambda line: pytest.fail(line))
    check_what_decodes(model, "it")
    assert len([token for step in Decoder(model).decode(PROMPT, 24) for token in step.tokens]) == 24


def test_scales_keep_their_dtype_whatever_the_model_is_converted_to():
    layer, inputs = IntegerLinear(ByOutput.of(torch.randn(20, 70)), torch.randn(20)), torch.randn(3, 70)
    expected = layer(inputs)
    assert layer.bias.shape == (20,)
    assert torch.equal(layer.to(torch.bfloat16).double()(inputs), expected)


def test_a_tied_model_without_other_parameters_still_has_a_dtype(compiler):
    config = AutoConfig.for_model(
        "olmo",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = random_model(config).to(torch.bfloat16)
    quantise(model)
    assert LanguageModel(model).dtype == torch.bfloat16
    assert new_ids(Decoder(LanguageModel(model)), PROMPT, 4)


def test_layers_of_one_weight_and_other_biases_stay_apart():
    weight = nn.Parameter(torch.randn(20, 70))
    model = nn.ModuleList(nn.Linear(70, 20) for _ in range(3))
    for layer in model:
        layer.weight = weight
    model[2].bias = model[1].bias
    biases = [layer.bias.detach().clone() for layer in model]
    quantise(model)
    assert all(torch.equal(layer.bias, bias) for layer, bias in zip(model, biases, strict=True))
    assert model[0] is not model[1]
    assert model[1] is model[2]


def test_weights_that_are_in_no_plain_linear_layer_are_counted():
    model = tiny_model("llama")
    quantise(model)
    assert share_left(model) == 0
    model = tiny_model("mixtral")
    quantise(model)
    experts = sum(part.numel() for name, part in model.named_parameters() if "experts" in name)
    rounded = sum(layer.out_features * layer.in_features for layer in blocks.integer_layers(model))
    router = sum(part.numel() for name, part in model.named_parameters() if name.endswith("gate.weight"))
    assert share_left(model) == pytest.approx((experts + router) / (experts + router + rounded))


def test_unrounded_inputs_are_multiplied_by_the_weights_in_half_precision():
    layer, inputs = IntegerLinear(ByOutput.of(torch.randn(20, 70)), torch.randn(20)), torch.randn(3, 70)
    with unrounded():
        found = layer(inputs)
    weight = layer.weight.bfloat16().float()
    assert torch.allclose(found, nn.functional.linear(inputs, weight, layer.bias), atol=1e-5)
    assert not torch.equal(layer(inputs), found)


def test_a_layer_of_another_plan_is_not_taken_for_one_of_this():
    """Its branches are added with a factor near 1, which rounding would hide."""
    model = tiny_model("granite", residual_multiplier=0.96)
    quantise(model)
    model = LanguageModel(model)
    model.make_fast()
    assert not [module for module in model.model.modules() if isinstance(module, FastBlock)]


def test_a_prompt_of_several_pieces_is_followed_by_the_same_text_with_and_without_a_tree(compiler):
    settings = {**WIDE, "max_position_embeddings": 1024}
    model = quantised("llama", **settings)
    draft = IndependentDraft(quantised("llama", seed=3, **settings), model.vocabulary)
    prompt = [number * 7 % 64 for number in range(700)]
    plain = new_ids(Decoder(model), prompt, 24)
    assert new_ids(Decoder(model, [draft], TREE), prompt, 24) == plain


def test_a_tree_of_more_nodes_than_the_kernel_takes_at_once(compiler):
    model = quantised("llama", **WIDE)
    wide = TokenTree((-1, *[0] * 20, *range(1, 21), *range(21, 41)))
    *nodes, _ = tree_logits(model, wide)[0]
    assert torch.equal(nodes[-1], one_by_one(model, wide.path(wide.size - 1)))


def test_without_a_kernel_it_is_the_same_model_and_the_user_is_told(monkeypatch):
    def none():
        raise blocks.Unusable("no C++ compiler was found (install g++)")

    monkeypatch.setattr(blocks, "load_kernel", none)
    model, said = quantised("llama", "fast"), []
    assert not model.compile(said.append)
    why = "no C++ compiler was found (install g++)"
    assert said == [f"products of integers run without their kernel, which is slow: {why}"]
    assert new_ids(Decoder(model), PROMPT, 24) == new_ids(Decoder(quantised("llama", "plain")), PROMPT, 24)


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
