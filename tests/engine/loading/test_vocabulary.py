"""Drafts whose output is for some ids only: draft_vocabulary.json, and the head that is cut to it."""

import json
from pathlib import Path

import pytest
import torch
from transformers import PhiForCausalLM, PreTrainedModel

from decoding import new_ids, own_greedy
from folders import edit_json, edit_weights, pair, save
from models import tiny_model
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.loading.vocabulary import FILE, cut_head, write_vocabulary
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.session import make_draft

IDS = [0, 3, 4, 17, 40, 63]
TEXT = torch.arange(1, 9)[None]
#: family -> what embedding and head are called in its files
ENDS = {
    "llama": ("embed_tokens", "lm_head"),
    "gpt_neox": ("embed_in", "embed_out"),
    "gpt2": ("wte", "lm_head"),
}


def reduced(folder: Path, family="llama", ids=IDS, *, shares=False, **options) -> str:
    save(folder, family, **options)
    if shares:
        edit_weights(folder, drop=ENDS[family])
    write_vocabulary(folder, ids, {"counted": "in a test"})
    return str(folder)


@pytest.mark.parametrize("shares", [False, True], ids=["own head", "the target's head"])
@pytest.mark.parametrize("family", ENDS)
def test_the_cut_head_gives_the_rows_of_the_whole_one(family, shares, tmp_path):
    target = save(tmp_path / "t", family, seed=5)
    name = reduced(tmp_path / "d", family, shares=shares)
    (found,) = pair(target, name).drafts
    (Path(name) / FILE).unlink()
    (whole,) = pair(target, name).drafts
    assert found.ids.tolist() == IDS and whole.ids is None
    logits = found.model(TEXT).logits
    assert logits.shape == (1, 8, len(IDS))
    assert torch.allclose(logits, whole.model(TEXT).logits[..., IDS], atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_the_target_and_the_embedding_keep_all_their_rows(tied, tmp_path):
    target = save(tmp_path / "t", tie_word_embeddings=tied)
    loaded = pair(target, reduced(tmp_path / "d", shares=True, tie_word_embeddings=tied))
    assert loaded.target(TEXT).logits.shape[-1] == 64
    assert loaded.drafts[0].model.get_input_embeddings().weight is loaded.target.get_input_embeddings().weight
    assert len(loaded.drafts[0].model.get_output_embeddings().weight) == len(IDS)


def test_a_bias_of_the_head_is_cut_with_it(tmp_path):
    loaded = pair(save(tmp_path / "t"), reduced(tmp_path / "d", "phi"))  # whose head has one
    model = loaded.drafts[0].model
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.arange(6.0))
    assert model(TEXT).logits.shape == (1, 8, 6)


@pytest.mark.parametrize("shares", [False, True])
def test_a_reduced_draft_decodes_to_the_targets_own_text(shares, tmp_path):
    loaded = pair(save(tmp_path / "t", seed=5), reduced(tmp_path / "d", shares=shares))
    model = LanguageModel(loaded.target)
    run = Decoder(model, [make_draft(loaded.drafts[0], model)], TokenTree((-1, *[0] * 8, 1, 1, 2)))
    assert new_ids(run, count=20) == own_greedy(loaded.target, count=20)


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([4, 3], "must rise, each once"),
        ([3, 3, 4], "must rise, each once"),
        ([-1, 3], "reach from -1 to 3; target and draft share 0 to 63"),
        ([3, 64], "reach from 3 to 64; target and draft share 0 to 63"),
        ([3, 10**30], "target and draft share 0 to 63"),
        ([3.0, 4.0], "is no list of whole numbers"),
        ([False, True], "is no list of whole numbers"),
        (["3"], "is no list of whole numbers"),
        ([], "is no list of whole numbers"),
        ("0123", "is no list of whole numbers"),
        (None, "is no list of whole numbers"),
    ],
    ids=str,
)
@pytest.mark.parametrize("shares", [False, True])
def test_ids_that_cannot_be_are_refused_before_weights_load(ids, said, shares, tmp_path, monkeypatch):
    target, draft = save(tmp_path / "t"), reduced(tmp_path / "d", shares=shares)
    edit_json(Path(draft) / FILE, ids=ids)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", None)
    with pytest.raises(BadInput) as caught:
        pair(target, draft)
    assert caught.value.message.startswith(f"draft '{draft}': 'ids' of {draft}/{FILE} ")
    assert said in caught.value.message and "\n" not in caught.value.message


def test_ids_reach_as_far_as_both_vocabularies(tmp_path):
    draft = reduced(tmp_path / "d", vocab=72, ids=[1, 70])
    assert pair(save(tmp_path / "large", vocab=80), draft).drafts[0].ids.tolist() == [1, 70]
    with pytest.raises(BadInput, match=r"reach from 1 to 70; target and draft share 0 to 63") as caught:
        pair(save(tmp_path / "small"), draft)
    assert caught.value.hint == "use the draft with the target that it was made for"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"schema": "sequoia-draft-vocabulary/2", "ids": [1]}',
            "has schema 'sequoia-draft-vocabulary/2'; exp",
        ),
        ('{"ids": [1]}', "has schema None; expected 'sequoia-draft-vocabulary/1'"),
        ("[1, 2]", "is no JSON object"),
        ('{"ids": [1,', "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_such_list_is_refused(text, said, tmp_path):
    draft = reduced(tmp_path / "d")
    (Path(draft) / FILE).write_text(text)
    with pytest.raises(BadInput) as caught:
        pair(save(tmp_path / "t"), draft)
    assert f"draft '{draft}': {draft}/{FILE} {said}" in caught.value.message


def test_the_file_says_what_the_ids_were_counted_on(tmp_path):
    write_vocabulary(tmp_path, [1, 2], {"texts": 7})
    assert json.loads((tmp_path / FILE).read_text()) == {
        "schema": "sequoia-draft-vocabulary/1",
        "texts": 7,
        "ids": [1, 2],
    }


@pytest.mark.parametrize("head", [None, torch.nn.Identity()])
def test_a_head_that_cannot_be_cut_is_refused_before_weights_load(head, tmp_path, monkeypatch):
    target, draft = save(tmp_path / "t"), reduced(tmp_path / "d", "phi")
    monkeypatch.setattr(PhiForCausalLM, "get_output_embeddings", lambda self: head)
    with pytest.raises(BadInput, match=r"the output head of family phi cannot be cut to fewer ids"):
        cut_head(tiny_model("phi"), torch.tensor(IDS))
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", None)
    with pytest.raises(BadInput) as caught:
        pair(target, draft)
    assert caught.value.message == (
        f"draft '{draft}': the output head of family phi cannot be cut to the ids of {FILE}"
    )
