"""The start-up self-test: families that would be silently wrong are refused by name."""

import pytest
import torch

from models import REFUSED, SUPPORTED, tiny_model
from sequoia_cli.engine import selftest
from sequoia_cli.engine.loading.vocabulary import cut_head
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention
from sequoia_cli.errors import BadInput


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", SUPPORTED)
def test_families_with_ordinary_attention_pass(family, dtype):
    assert check_tree_attention(LanguageModel(tiny_model(family).to(dtype)), family) < 1e-3


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
    errors = iter([0.5, 0.4, 1e-6])
    monkeypatch.setattr(selftest, "_worst_error", lambda *_: next(errors))
    assert check_tree_attention(model, "my/llama") == 1e-6
    monkeypatch.setattr(selftest, "_worst_error", lambda *_: 0.5)
    with pytest.raises(BadInput, match=r"off by 0\.5"):
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
