"""Feature drafts as folders: read back as they were written, and refused in one line where they cannot be."""

import json
from pathlib import Path

import pytest
import torch

from decoding import new_ids, own_greedy
from features import tiny_feature
from folders import alone, edit_json, edit_weights, pair, save
from models import tiny_tokenizer
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.loading import drafts
from sequoia_cli.engine.loading.feature import save_feature
from sequoia_cli.engine.loading.tokenizers import tokenizer_digest
from sequoia_cli.engine.loading.vocabulary import write_vocabulary
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.session import make_draft, open_session


@pytest.fixture
def target(tmp_path) -> str:
    return save(tmp_path / "target")


def save_draft(folder: Path, vocabulary=64, **options) -> str:
    folder.mkdir()
    save_feature(folder, tiny_feature(**options), "target", vocabulary)
    return str(folder)


@pytest.fixture
def draft(tmp_path) -> str:
    return save_draft(tmp_path / "draft")


def refusal(target: str, draft: str) -> BadInput:
    with pytest.raises(BadInput) as caught:
        pair(target, draft)
    assert "\n" not in caught.value.message
    assert draft in caught.value.message
    return caught.value


def test_what_was_saved_is_what_is_loaded(target, tmp_path):
    shape = {"layers": 2, "kv_heads": 4, "inner_width": 40, "rope_theta": 5e5}
    saved = tiny_feature(**shape)
    loaded = pair(target, save_draft(tmp_path / "d", **shape))
    (found,) = loaded.drafts
    assert found.model.config == saved.config and found.ids is None
    assert not found.model.training and not any(value.requires_grad for value in found.model.parameters())
    theirs = saved.state_dict()
    assert list(found.model.state_dict()) == list(theirs)
    assert all(torch.equal(value, theirs[name]) for name, value in found.model.state_dict().items())
    assert loaded.notes == (f"draft '{tmp_path}/d' reads the hidden states of its target",)


def test_weights_take_the_targets_dtype(target, draft):
    (found,) = pair(target, draft, dtype=torch.bfloat16).drafts
    assert {value.dtype for value in found.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("ids", [None, [1, 5, 9, 40, 63]])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_session_decodes_with_a_loaded_draft(ids, dtype, target, draft):
    if ids:
        write_vocabulary(Path(draft), ids, {})
    session = open_session(target, [draft], device="cpu", dtype=dtype, trust_remote_code=False)
    (made,) = session.drafts
    assert isinstance(made, FeatureDraft)
    assert (made.ids.tolist() if ids else made.ids) == ids
    assert len(made.head.weight) == len(ids or range(64))
    found = new_ids(Decoder(session.target, [made], TokenTree((-1, *[0] * 8, 1, 1))), count=20)
    if dtype == "float32":
        assert found == own_greedy(session.target.model, count=20)


def test_both_kinds_of_drafts_load_beside_each_other(target, draft, tmp_path):
    loaded = pair(target, draft, save(tmp_path / "small", seed=2))
    model = LanguageModel(loaded.target)
    assert [make_draft(each, model).taps for each in loaded.drafts] == [(-1,), ()]


@pytest.mark.parametrize(
    ("options", "has"),
    [({"vocab": 72}, "has 72 and 32"), ({"hidden_size": 48}, "has 64 and 48")],
)
def test_another_target_than_its_own_is_refused_before_weights_load(
    options, has, draft, tmp_path, monkeypatch
):
    monkeypatch.setattr(drafts, "load_feature", None)
    other = save(tmp_path / "other", **options)
    error = refusal(other, draft)
    assert "was made for 'target', with 64 ids and width 32" in error.message
    assert f"target '{other}' {has}" in error.message
    assert error.hint == "use it with the target that it was made for"


def test_a_draft_that_was_made_for_another_target_of_its_shape_is_one_warning(draft, tmp_path):
    other = save(tmp_path / "relative", seed=9)
    notes = pair(other, draft).notes
    assert notes[1:] == (
        f"draft '{draft}' was made for 'target': target '{other}' may accept fewer of its proposals",
    )


def test_a_draft_that_was_made_with_other_ids_is_one_warning(target, tmp_path):
    kept = tmp_path / "d"
    kept.mkdir()
    save_feature(kept, tiny_feature(), "target", 64, tokenizer_digest(tiny_tokenizer(64)))
    assert len(pair(target, str(kept)).notes) == 1
    swapped = tiny_tokenizer(64, tokens={10: "w11", 11: "w10"})
    other = save(tmp_path / "target2", tokenizer=swapped)
    (_, note) = pair(other, str(kept)).notes
    assert note == (
        f"draft '{kept}' was made for 'target': ids mean other tokens to target '{other}', so few of its "
        "proposals can be right"
    )


def test_the_default_draft_is_not_blamed_on_those_who_did_not_ask_for_it(target):
    with pytest.raises(BadInput) as caught:
        pair(target, "smollm2-draft")
    assert caught.value.message == f"target '{target}' has no draft: the default one is for 'smollm2' alone"
    assert "--draft" in caught.value.hint and "sequoia distill" in caught.value.hint
    assert "--plain" in caught.value.hint


def test_it_cannot_be_a_target(target, draft):
    loads = (lambda: alone(draft), lambda: pair(draft, draft), lambda: pair(draft, target))
    for load in loads:
        with pytest.raises(BadInput, match=r"it can only be a draft") as caught:
            load()
        assert caught.value.message.startswith(f"target '{draft}' ")
        assert caught.value.hint == "give it as --draft, with --target target"


def test_another_version_is_refused(target, draft):
    edit_json(Path(draft) / "config.json", schema="sequoia-feature-draft/2")
    message = refusal(target, draft).message
    assert "config.json has schema 'sequoia-feature-draft/2'; expected 'sequoia-feature-draft/1'" in message


NUMBERS = ("width", "layers", "heads", "kv_heads", "head_width", "inner_width", "rope_theta", "vocabulary")
WRONG = (None, -1, 0, True, "8", 1.5, [1], 1e400, 10**30)


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", WRONG, ids=str)
def test_numbers_that_cannot_be(key, value, target, draft):
    if key == "rope_theta" and value in (1.5, 10**30):
        return
    edit_json(Path(draft) / "config.json", **{key: value})
    message = refusal(target, draft).message
    assert f"'{key}' of {draft}/config.json is {value!r}; expected " in message


@pytest.mark.parametrize("key", [*NUMBERS, "target"])
def test_keys_that_are_missing(key, target, draft):
    path = Path(draft) / "config.json"
    config = json.loads(path.read_text())
    del config[key]
    path.write_text(json.dumps(config))
    assert f"'{key}' of {path} is None; expected " in refusal(target, draft).message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kv_heads": 3}, "'heads' of .* is 4; expected a multiple of 'kv_heads', 3"),
        ({"kv_heads": 8}, "'heads' of .* is 4; expected a multiple of 'kv_heads', 8"),
        ({"head_width": 7}, "'head_width' of .* is 7; expected an even number"),
        ({"target": 7}, "'target' of .* is 7; expected a model's name"),
        ({"target": ""}, "'target' of .* is ''; expected a model's name"),
    ],
)
def test_values_that_do_not_go_together(change, said, target, tmp_path):
    # Weights of that very shape, so that nothing else can be wrong.
    shape = {key: value for key, value in change.items() if key != "target"}
    draft = save_draft(tmp_path / "d", **shape)
    edit_json(Path(draft) / "config.json", **change)
    with pytest.raises(BadInput, match=said):
        pair(target, draft)


def test_a_folder_without_weights(target, draft):
    (Path(draft) / "model.safetensors").unlink()
    assert refusal(target, draft).message == f"draft '{draft}': {draft} has no model.safetensors"


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_weights_cut_short(part, target, draft):
    path = Path(draft) / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    assert f"{path} does not hold this draft's weights: " in refusal(target, draft).message


@pytest.mark.parametrize(
    ("drop", "added", "said"),
    [
        (("layers.0.qkv",), {}, "layers.0.qkv.weight"),
        ((), {"extra": torch.zeros(3)}, "extra"),
        (("join",), {"join.weight": torch.zeros(32, 65)}, "join.weight"),
        (("join",), {"join.weight": torch.zeros(32, 64, dtype=torch.int8)}, "join.weight"),
    ],
    ids=["missing", "left over", "of another shape", "of whole numbers"],
)
def test_weights_that_do_not_fit(drop, added, said, target, draft):
    edit_weights(Path(draft), drop, **added)
    message = refusal(target, draft).message
    assert f"{draft}/model.safetensors does not hold this draft's weights: " in message
    assert said in message


def test_a_gap_shows_before_the_target_is_read(target, draft, monkeypatch):
    edit_weights(Path(draft), drop=("layers.0.qkv",))
    monkeypatch.setattr("sequoia_cli.engine.loading.load.load_model", None)
    refusal(target, draft)


DEEP = '{"model_type": "sequoia_feature_draft", "deep": ' + 100_000 * "["


@pytest.mark.parametrize(
    "text",
    ['{"model_type": "sequoia_feature_draft"', '["sequoia_feature_draft"]', DEEP],
    ids=["cut short", "no object", "nested too deeply"],
)
def test_a_damaged_config(text, target, draft):
    (Path(draft) / "config.json").write_text(text)
    assert f"{draft}/config.json" in refusal(target, draft).message


def test_its_width_is_that_of_the_targets_head_where_the_layers_are_wider(tmp_path):
    target = save(tmp_path / "t", "opt", word_embed_proj_dim=16)
    assert "has 64 and 16" in refusal(target, save_draft(tmp_path / "wide")).message
    loaded = pair(target, save_draft(tmp_path / "d", width=16))
    model = LanguageModel(loaded.target)
    run = Decoder(model, [make_draft(loaded.drafts[0], model)], TokenTree((-1, *[0] * 8, 1, 1)))
    assert new_ids(run, count=20) == own_greedy(loaded.target, count=20)
