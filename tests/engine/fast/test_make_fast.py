"""The forward prepared for speed against its slow twin, transformers' own, in every family."""

import gc
import weakref

import pytest
import torch
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.pytorch_utils import Conv1D

from decoding import PROMPT, TREE, tree_logits
from exhaustive import few
from features import feature_draft
from models import SUPPORTED, random_model, tiny_model
from sequoia_cli.core.tree import chain
from sequoia_cli.engine import model as model_module
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast.attention import grouped_attention
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.fast.linear import FastLinear, SiblingLinear
from sequoia_cli.engine.fast.matrix import Matrix
from sequoia_cli.engine.fast.norms import FastNorm, fast_norm
from sequoia_cli.engine.fast.prepare import make_fast
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention
from sequoia_cli.errors import SequoiaError
from tiny_configs import tiny_config

#: Rounding of two layers, relative to the largest logit.
EXACT = {torch.float64: 1e-13, torch.float32: 1e-5, torch.bfloat16: 0.02}


def widest(family):
    """float64, where the family's experts can be run in it."""
    return torch.float32 if family == "mixtral" else torch.float64


def twins(family, dtype):
    slow, fast = (LanguageModel(tiny_model(family).to(dtype)) for _ in range(2))
    fast.make_fast()
    return slow, fast


@pytest.mark.parametrize(
    "case",
    few(
        [
            (family, dtype)
            for family in SUPPORTED
            for dtype in EXACT
            if (family, dtype) != ("mixtral", torch.float64)
        ],
        *((family, torch.float32) for family in SUPPORTED),
        *((family, dtype) for family in ("llama", "gemma2") for dtype in EXACT),
    ),
    ids=str,
)
def test_logits_and_hidden_states_of_a_tree_are_those_of_the_slow_twin(case):
    family, dtype = case
    slow, fast = twins(family, dtype)
    for found, expected in zip(tree_logits(fast, TREE), tree_logits(slow, TREE), strict=True):
        assert (found - expected).abs().max() <= EXACT[dtype] * expected.abs().max()


@pytest.mark.parametrize("family", few(SUPPORTED, "llama", "gpt2", "gemma3", "qwen3", "mixtral"))
def test_greedy_texts_are_those_of_the_slow_twin_id_for_id(family):
    slow, fast = twins(family, widest(family))
    draft = IndependentDraft(fast, fast.vocabulary)
    texts = [
        [token for step in Decoder(*parts).decode(PROMPT, 24) for token in step.tokens]
        for parts in ((slow,), (fast,), (fast, [draft], chain(4)))
    ]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 24


@pytest.mark.parametrize("family", SUPPORTED)
def test_no_product_and_no_rms_norm_is_left_as_it_was(family):
    _, fast = twins(family, torch.float32)
    left = [type(module).__name__ for module in fast.model.modules()]
    assert "Linear" not in left
    assert "Conv1D" not in left
    assert not [name for name in left if "RMSNorm" in name]
    check_tree_attention(fast, family)


def test_queries_keys_values_and_gate_and_up_run_as_one_each():
    _, fast = twins("qwen3", torch.float32)
    layers = fast.config.num_hidden_layers
    groups = {module.siblings for module in fast.model.modules() if isinstance(module, SiblingLinear)}
    assert sorted(len(group.sizes) for group in groups) == sorted([3, 2] * layers)


def blocks(model):
    return [module for module in model.model.modules() if isinstance(module, FastBlock)]


def test_layers_of_the_plan_that_most_families_share_run_as_blocks():
    of_this_plan = [family for family in SUPPORTED if blocks(twins(family, torch.float32)[1])]
    assert of_this_plan == ["llama", "qwen2", "mistral", "gemma", "granite"]


def test_a_layer_with_the_same_parts_that_computes_something_else_is_no_block(monkeypatch):
    granite = LanguageModel(tiny_model("granite", residual_multiplier=0.5))
    granite.make_fast()
    assert not blocks(granite)
    plain = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, states: 1.01 * plain(self, states))
    llama = LanguageModel(tiny_model("llama"))
    llama.make_fast()
    assert not blocks(llama)


def test_a_layer_that_scales_by_position_is_no_block_though_the_scale_is_1_where_texts_begin():
    ministral = LanguageModel(random_model(tiny_config("ministral3")))
    ministral.make_fast()
    assert not blocks(ministral)


def test_a_layer_that_turns_in_float32_is_a_block_in_bfloat16_too():
    slow, fast = (LanguageModel(random_model(tiny_config("olmo")).to(torch.bfloat16)) for _ in range(2))
    fast.make_fast()
    assert blocks(fast)
    found, expected = (tree_logits(model, TREE)[0] for model in (fast, slow))
    assert (found - expected).abs().max() <= EXACT[torch.bfloat16] * expected.abs().max()


def test_a_block_leaves_no_weights_behind():
    model = LanguageModel(tiny_model("llama"))
    gone = [weakref.ref(layer.self_attn.q_proj.weight) for layer in model.model.model.layers]
    model.make_fast()
    gc.collect()
    assert [reference() for reference in gone] == [None] * len(gone)


def test_layers_that_are_run_twice_or_on_other_inputs_are_no_siblings():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

        def forward(self, input_ids, use_cache):
            states = nn.functional.one_hot(input_ids, 4).float()
            return self.c(states.clone()) + self.b(states) + self.a(self.a(states))

    slow, ids = Twice(), torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        expected = slow(ids, False)
        make_fast(slow, {"input_ids": ids, "use_cache": False})
        assert torch.allclose(slow(ids, False), expected)
    assert not any(isinstance(module, SiblingLinear) for module in slow.modules())


def test_a_layer_whose_weight_another_module_reads_keeps_it():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, input_ids):
            states = nn.functional.one_hot(input_ids, 4).to(self.a.weight.dtype)
            return self.a(states) + self.b(states)

    reader = Reader()
    with torch.inference_mode():
        make_fast(reader, {"input_ids": torch.tensor([[1, 2, 3]])})
        reader(torch.tensor([[1, 2, 3]]))
    assert type(reader.a) is nn.Linear
    assert type(reader.b) is nn.Linear  # it shares its input with the other
    alone = nn.Sequential(nn.Linear(4, 4))
    make_fast(alone)
    assert isinstance(alone[0], FastLinear)


def test_attention_gives_rows_that_can_be_viewed_as_transformers_own_does():
    queries, keys = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    for mask in (None, torch.zeros(1, 1, 3, 3)):
        found, _ = grouped_attention(nn.Module(), queries, keys, keys, mask)
        assert found.is_contiguous()


def test_attention_with_a_bias_of_its_own_is_transformers_own():
    queries, keys, bias = torch.randn(1, 4, 3, 8), torch.randn(1, 4, 3, 8), torch.randn(1, 4, 3, 3)
    found, _ = grouped_attention(nn.Module(), queries, keys, keys, None, position_bias=bias)
    expected, _ = sdpa_attention_forward(nn.Module(), queries, keys, keys, None, position_bias=bias)
    assert torch.equal(found, expected)
    with pytest.raises(ValueError, match="softcap"):
        grouped_attention(nn.Module(), queries, keys, keys, None, softcap=30.0)


def test_siblings_never_hand_out_what_belongs_to_another_input():
    _, fast = twins("qwen3", torch.float32)
    attention = fast.model.model.layers[0].self_attn
    first, second = torch.randn(2, 1, 3, 32).unbind(0)
    with torch.inference_mode():
        attention.q_proj(first)  # a caller that stops half way
        keys = attention.k_proj(second)
        values = attention.v_proj(second)
        expected = attention.q_proj.siblings.product(second).split(attention.q_proj.siblings.sizes, -1)
    assert torch.equal(keys, expected[1])
    assert torch.equal(values, expected[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 17, 300])
def test_a_product_is_the_plain_one_in_every_dtype(dtype, bias, rows):
    weight, added = torch.randn(40, 24).to(dtype), torch.randn(40).to(dtype) if bias else None
    inputs = torch.randn(1, rows, 24).to(dtype)
    with torch.inference_mode():
        found = FastLinear(Matrix(weight, added))(inputs)
    expected = nn.functional.linear(inputs.double(), weight.double(), added.double() if bias else None)
    assert (found - expected).abs().max() <= 4 * torch.finfo(dtype).eps * expected.abs().max()


def test_a_transposed_layer_of_gpt2_is_a_product_too():
    layer = Conv1D(6, 4)
    holder = nn.Sequential(layer)
    inputs = torch.randn(2, 4)
    expected = layer(inputs)
    make_fast(holder)
    assert torch.allclose(holder(inputs), expected, atol=1e-6)


def test_a_norm_that_computes_something_else_is_left_alone():
    class OtherRMSNorm(nn.RMSNorm):
        def forward(self, states):
            return super().forward(states) + 0.1

    assert isinstance(fast_norm(nn.RMSNorm(8, eps=1e-6)), FastNorm)
    assert fast_norm(OtherRMSNorm(8, eps=1e-6)) is None
    assert fast_norm(nn.LayerNorm(8)) is None
    assert fast_norm(nn.RMSNorm(8)) is None  # its eps depends on the dtype


def test_a_feature_draft_proposes_what_its_slow_twin_does():
    target = LanguageModel(tiny_model("llama").double())
    slow, fast = feature_draft(target), feature_draft(target)
    fast.make_fast()
    assert fast.head.product is not None
    assert not any(type(module) in (nn.Linear, nn.RMSNorm) for module in fast.model.modules())
    for draft in (slow, fast):
        steps = [step.ranks for step in Decoder(target, [draft], TREE).decode(PROMPT, 24)]
        if draft is slow:
            expected = steps
    assert steps == expected


def test_a_forward_that_changes_what_the_model_says_is_refused(monkeypatch):
    def wrong(model, arguments):
        model.lm_head.weight.data[3:9] += 1

    monkeypatch.setattr(model_module, "make_fast", wrong)
    with pytest.raises(SequoiaError, match="changes its logits") as raised:
        LanguageModel(tiny_model("llama")).make_fast()
    assert "--forward plain" in raised.value.hint


def test_a_text_in_which_two_experts_are_tied_is_outvoted(monkeypatch):
    def wrong_in(*texts):
        def change(module, given, output):
            output[list(texts)] *= 2
            return output

        return lambda model, arguments: model.lm_head.register_forward_hook(change)

    monkeypatch.setattr(model_module, "make_fast", wrong_in(0, 3))
    LanguageModel(tiny_model("llama")).make_fast()
    for texts in ((0, 1), (4, 5)):  # at the beginning of the context, and at its end
        monkeypatch.setattr(model_module, "make_fast", wrong_in(*texts))
        with pytest.raises(SequoiaError, match="changes its logits"):
            LanguageModel(tiny_model("llama")).make_fast()


def test_a_forward_that_cannot_be_made_fast_is_refused_by_name(monkeypatch):
    def failing(model, arguments):
        raise AttributeError("no weight")

    monkeypatch.setattr(model_module, "make_fast", failing)
    with pytest.raises(
        SequoiaError, match="family 'llama' has no fast forward: AttributeError: no weight"
    ) as raised:
        LanguageModel(tiny_model("llama")).make_fast()
    assert "--forward plain" in raised.value.hint
