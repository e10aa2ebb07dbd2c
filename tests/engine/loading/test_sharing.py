"""Drafts that leave out embedding and output head and use those of their target."""

import pytest
import torch

from folders import alone, edit_weights, pair, save
from models import tiny_model, tiny_tokenizer
from sequoia_cli.errors import BadInput

#: family -> what its embedding and head are called
ENDS = {
    "llama": ("embed_tokens", "lm_head"),
    "gemma2": ("embed_tokens", "lm_head"),
    "gpt2": ("wte", "lm_head"),
    "gpt_neox": ("embed_in", "embed_out"),
    "opt": ("embed_tokens", "lm_head"),
    "phi": ("embed_tokens", "lm_head"),
}
IDS = torch.arange(1, 9)[None]


def save_without_ends(folder, family="llama", tokenizer=None, **options) -> str:
    save(folder, family, tokenizer=tokenizer, **options)
    edit_weights(folder, drop=ENDS[family])
    return str(folder)


@pytest.mark.parametrize("family", ENDS)
def test_the_draft_uses_the_very_parameters_of_its_target(family, tmp_path):
    loaded = pair(save(tmp_path / "t", family), save_without_ends(tmp_path / "d", family))
    for end in ("get_input_embeddings", "get_output_embeddings"):
        mine, theirs = getattr(loaded.drafts[0].model, end)(), getattr(loaded.target, end)()
        assert mine.weight is theirs.weight
    # It left out what the target has too, so it must be that model again.
    assert torch.equal(loaded.drafts[0].model(IDS).logits, tiny_model(family)(IDS).logits)
    assert loaded.tokenizer.convert_ids_to_tokens(7) == "w7"
    (note,) = loaded.notes
    assert "shares the embedding and output head of its target" in note


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("draft_tied", [False, True])
def test_what_is_shared_is_the_targets_tied_or_not(tied, draft_tied, tmp_path):
    target = save(tmp_path / "t", tie_word_embeddings=tied)
    draft = save_without_ends(tmp_path / "d", tie_word_embeddings=draft_tied)
    loaded = pair(target, draft)
    assert loaded.drafts[0].model.get_input_embeddings().weight is loaded.target.get_input_embeddings().weight
    assert (
        loaded.drafts[0].model.get_output_embeddings().weight is loaded.target.get_output_embeddings().weight
    )
    one = loaded.target.get_input_embeddings().weight is loaded.target.get_output_embeddings().weight
    assert one is tied


def test_sharing_survives_a_change_of_family_and_of_dtype(tmp_path):
    target, draft = save(tmp_path / "t", "qwen2"), save_without_ends(tmp_path / "d", "llama", seed=3)
    loaded = pair(target, draft, dtype=torch.bfloat16)
    assert loaded.drafts[0].model.get_input_embeddings().weight is loaded.target.get_input_embeddings().weight
    assert {parameter.dtype for parameter in loaded.drafts[0].model.parameters()} == {torch.bfloat16}


def test_a_draft_saved_without_the_name_of_its_base_model_is_understood(tmp_path):
    target = save(tmp_path / "t", "gpt2")
    save(tmp_path / "d", "gpt2", tokenizer=None)
    tiny_model("gpt2").transformer.save_pretrained(tmp_path / "d")
    edit_weights(tmp_path / "d", drop=("wte",))
    loaded = pair(target, str(tmp_path / "d"))
    assert torch.equal(loaded.drafts[0].model(IDS).logits, tiny_model("gpt2")(IDS).logits)


@pytest.mark.parametrize("options", [{"vocab": 72}, {"hidden_size": 48}])
def test_ends_that_do_not_fit_are_refused_before_weights_load(options, tmp_path):
    target, draft = save(tmp_path / "t"), save_without_ends(tmp_path / "d", **options)
    with pytest.raises(BadInput, match=r"vocabulary 64 and width 32, where it needs (72 and 32|64 and 48)"):
        pair(target, draft)


def test_any_other_missing_weight_is_still_an_error(tmp_path):
    target, draft = save(tmp_path / "t"), save_without_ends(tmp_path / "d")
    edit_weights(tmp_path / "d", drop=("layers.0.self_attn.k_proj",))
    with pytest.raises(BadInput, match=r"its files lack model\.layers\.0\.self_attn\.k_proj\.weight"):
        pair(target, draft)
    edit_weights(tmp_path / "d", extra=torch.zeros(3))
    with pytest.raises(BadInput):
        pair(target, draft)


def test_a_model_without_ends_cannot_be_a_target(tmp_path):
    bad = save_without_ends(tmp_path / "bad", tokenizer=True)
    good = save(tmp_path / "good")
    for load in (lambda: alone(bad), lambda: pair(bad, good), lambda: pair(bad, bad)):
        with pytest.raises(BadInput, match=r"target '.*' has no embedding and output head of its own"):
            load()


def test_a_draft_that_shares_is_still_compared_where_it_brings_a_tokenizer(tmp_path):
    draft = save_without_ends(tmp_path / "d", tokenizer=tiny_tokenizer(64, tokens={10: "w11", 11: "w10"}))
    with pytest.raises(BadInput, match="different tokenizers: id 10"):
        pair(save(tmp_path / "t"), draft)
