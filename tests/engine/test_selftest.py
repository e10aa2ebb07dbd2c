"""The start-up self-test: families that would be silently wrong are refused by name."""

import pytest
import torch

from models import REFUSED, SUPPORTED, tiny_model
from sequoia_cli.engine import selftest
from sequoia_cli.engine.cache import SharedRows, TreeLayer
from sequoia_cli.engine.fast import block
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.loading.vocabulary import cut_head
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention, check_what_decodes
from sequoia_cli.errors import BadInput, SequoiaError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SUPPORTED)
def test_families_with_ordinary_attention_pass(family, dtype):
    model = LanguageModel(tiny_model(family).to(dtype))
    # Without the factor of 2 that `rounding` has in reserve.
    assert check_tree_attention(model, family) <= model.rounding / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", REFUSED)
def test_families_that_cannot_take_a_tree_are_refused_by_name(family, dtype):
    model = LanguageModel(tiny_model(family).to(dtype))
    with pytest.raises(BadInput, match=f"my/{family}: models of the family '{model.family}'"):
        check_tree_attention(model, f"my/{family}")


def test_a_window_too_wide_for_the_tiny_tree_to_see_is_refused_by_its_config():
    model = LanguageModel(tiny_model("gpt_neo", window_size=256))
    with pytest.raises(BadInput, match="masks by row number"):
        check_tree_attention(model, "my/gpt-neo")


def test_alibi_is_refused_by_its_config():
    model = LanguageModel(tiny_model("falcon_alibi"))
    with pytest.raises(BadInput, match="ALiBi"):
        check_tree_attention(model, "my/falcon")


def test_one_text_that_rounding_sends_to_another_expert_is_no_reason_to_refuse(monkeypatch):
    model = LanguageModel(tiny_model("llama"))
    right, wrong = selftest._tree_logits, {0, 1}

    def logits(model, name, seed):
        found = right(model, name, seed)
        return found.flip(-1) if seed in wrong else found

    monkeypatch.setattr(selftest, "_tree_logits", logits)
    assert check_tree_attention(model, "my/llama") < 1e-5
    wrong.add(2)
    with pytest.raises(BadInput, match=r"off by 1\.\d+ \(rounding allows 0\.001\)"):
        check_tree_attention(model, "my/llama")


def test_running_out_of_memory_is_not_taken_for_a_family_that_cannot(monkeypatch):
    model = LanguageModel(tiny_model("llama"))

    def full(*_, **__):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(model, "prefill", full)
    with pytest.raises(torch.OutOfMemoryError):
        check_tree_attention(model, "my/llama")


def test_a_head_that_was_cut_to_one_id_passes():
    model = tiny_model("llama")
    cut_head(model, torch.tensor([5]))
    assert check_tree_attention(LanguageModel(model), "llama") < 1e-3


def test_the_plain_logits_of_all_paths_at_once_are_those_of_one_path_after_the_other():
    model = LanguageModel(tiny_model("qwen2").double())
    found = selftest._plain_logits(model)
    for seed in selftest._SEEDS:
        prefix, nodes, last = selftest._tokens(model, seed)
        tree = selftest._TREE
        paths = [nodes[list(tree.path(node))] for node in range(tree.size)]
        paths.append(torch.cat((nodes[list(selftest._ACCEPTED)], last)))
        for row, path in zip(found[seed], paths, strict=True):
            expected = model.model(input_ids=torch.cat((prefix, path))[None], use_cache=False).logits[0, -1]
            assert torch.allclose(row, expected, atol=1e-9)


def test_weights_that_give_nan_are_not_blamed_on_the_family():
    model = tiny_model("llama")
    model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(BadInput, match="my/llama: its weights give logits that are not finite") as caught:
        check_tree_attention(LanguageModel(model), "my/llama")
    assert "family" not in caught.value.message


def test_one_damaged_token_is_left_to_the_text_that_meets_it():
    model = tiny_model("llama", vocab=2000)
    target = LanguageModel(model)
    first = int(selftest._tokens(target, 0)[0][0])
    model.get_input_embeddings().weight[first] = torch.nan
    assert check_tree_attention(target, "my/llama") < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fault", ["mask", "commit", "compiled"])
@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
def test_a_fault_in_what_decodes_is_found_last(fault, recorded, dtype, monkeypatch):
    model = LanguageModel(tiny_model("llama").to(dtype))
    check_tree_attention(model, "my/llama")
    model.make_fast()
    if recorded:
        model.fix_buffers(lambda function: function)
    assert check_what_decodes(model, "my/llama") <= model.rounding / 2
    check_tree_attention(model, "my/llama")
    if fault == "mask":
        whole = block.attend
        monkeypatch.setattr(block, "attend", lambda q, k, v, mask, scale: whole(q, k, v, None, scale))
    elif fault == "commit":
        for kind in (TreeLayer, SharedRows):
            monkeypatch.setattr(kind, "keep", lambda self, prefix, rows: None)
    else:
        run = FastBlock.forward
        monkeypatch.setattr(FastBlock, "forward", lambda self, *a, **k: run(self, *a, **k).flip(1))
        model.model.model.layers[0].forward = model.model.model.layers[0].block.forward
    # The plain logits stay those of the model as it was loaded.
    with pytest.raises(SequoiaError, match="my/llama: its fast forward gives logits for a tree that are off"):
        check_what_decodes(model, "my/llama")
