"""Loading models that can be used: as saved, at rest, with the right ends of text and notes."""

import json

import pytest
import torch
from transformers import GenerationConfig

from folders import alone, edit_json, edit_weights, pair, save
from models import SUPPORTED, tiny_model, tiny_tokenizer
from sequoia_cli.engine.loading import hub
from sequoia_cli.engine.loading.fingerprint import fingerprint
from sequoia_cli.engine.loading.generation_settings import not_applied
from sequoia_cli.engine.loading.vocabulary import write_vocabulary
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput

IDS = torch.arange(1, 9)[None]


@pytest.mark.parametrize("family", SUPPORTED)
def test_a_model_is_loaded_as_it_was_saved(family, tmp_path):
    loaded = alone(save(tmp_path / "m", family))
    assert torch.equal(loaded.model(IDS).logits, tiny_model(family)(IDS).logits)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_pair_is_loaded_in_the_dtype_asked_for(tmp_path):
    loaded = pair(save(tmp_path / "t", "mistral"), save(tmp_path / "d", "gpt2", seed=1), dtype=torch.bfloat16)
    assert loaded.target.dtype == loaded.drafts[0].model.dtype == torch.bfloat16
    assert (loaded.target.config.model_type, loaded.drafts[0].model.config.model_type) == ("mistral", "gpt2")
    assert loaded.tokenizer.convert_ids_to_tokens(7) == "w7"
    assert loaded.notes == ()


def test_several_drafts_are_loaded_for_one_target_and_checked_each(tmp_path):
    target, other = save(tmp_path / "t"), save(tmp_path / "d", "gpt2", seed=1)
    sharing = save(tmp_path / "s", tokenizer=None)
    edit_weights(tmp_path / "s", drop=("embed_tokens", "lm_head"))
    loaded = pair(target, other, sharing)
    assert [draft.model.config.model_type for draft in loaded.drafts] == ["gpt2", "llama"]
    assert loaded.drafts[1].model.get_input_embeddings().weight is loaded.target.get_input_embeddings().weight
    assert torch.equal(loaded.drafts[0].model(IDS).logits, tiny_model("gpt2", seed=1)(IDS).logits)
    (note,) = loaded.notes
    assert note.startswith(f"draft '{sharing}' shares")
    unlike = save(tmp_path / "u", tokenizer=tiny_tokenizer(64, tokens={10: "w11", 11: "w10"}))
    with pytest.raises(BadInput, match=r"draft '.*u' have different tokenizers: id 10"):
        pair(target, other, unlike)


def test_a_sharded_checkpoint_is_loaded_whole(tmp_path):
    folder = save(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    tiny_model("llama").save_pretrained(folder, max_shard_size="30KB")
    assert (tmp_path / "m" / "model.safetensors.index.json").exists()
    assert torch.equal(alone(folder).model(IDS).logits, tiny_model("llama")(IDS).logits)


@pytest.mark.parametrize(("target", "draft"), [(72, 64), (64, 72)])
def test_padded_vocabularies_that_differ_in_size_load_with_one_note(target, draft, tmp_path):
    tokenizer = tiny_tokenizer(64)
    names = [
        save(tmp_path / role, vocab=rows, tokenizer=tokenizer) for role, rows in [("t", target), ("d", draft)]
    ]
    loaded = pair(*names)
    assert loaded.target.config.vocab_size == target
    assert loaded.drafts[0].model.config.vocab_size == draft
    (note,) = loaded.notes
    assert f"{target} vocabulary rows" in note


@pytest.mark.parametrize("ids", [None, [1, 5, 60, 61]])
@pytest.mark.parametrize("shares", [False, True])
def test_special_tokens_that_were_renamed_are_left_out_of_the_draft(ids, shares, tmp_path):
    names = []
    for role, reserved in (("t", ["<a>", "<b>", "<c>"]), ("d", ["<a>", "<x>", "<c>"])):
        tokenizer = tiny_tokenizer(60)
        tokenizer.add_special_tokens({"additional_special_tokens": reserved})
        names.append(save(tmp_path / role, tokenizer=tokenizer))
    if ids:
        write_vocabulary(tmp_path / "d", ids, {})
    if shares:
        edit_weights(tmp_path / "d", drop=("embed_tokens", "lm_head"))
    loaded = pair(*names)
    (found,) = loaded.drafts
    assert found.ids.tolist() == [id for id in ids or range(64) if id != 61]
    assert found.model.get_output_embeddings().weight.shape[0] == len(found.ids)
    assert [note for note in loaded.notes if "id 61 is '<b>' in the target and '<x>' in the draft" in note]


@pytest.mark.parametrize(
    ("generation", "config", "tokenizer", "expected"),
    [
        ({"eos_token_id": [2, 7]}, 2, "w2", (2, 7)),
        ({"eos_token_id": 5}, 2, "w2", (5,)),
        ({"eos_token_id": 0}, 2, "w2", (0,)),
        ({"eos_token_id": None}, 2, "w2", ()),
        ({}, 3, "w2", (3,)),
        (None, [3, 4], "w2", (3, 4)),
        (None, None, "w2", (2,)),
        (None, None, None, ()),
        ({"eos_token_id": [2, 2, 7]}, None, None, (2, 7)),
    ],
)
def test_text_ends_as_the_target_says(generation, config, tokenizer, expected, tmp_path):
    folder = tmp_path / "t"
    special = {"eos_token": tokenizer} if tokenizer else {}
    save(folder, tokenizer=tiny_tokenizer(64, **special), eos_token_id=config)
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    save(tmp_path / "d", tokenizer=tiny_tokenizer(64, eos_token="w9"), eos_token_id=9)
    loaded = pair(str(folder), str(tmp_path / "d"))
    assert loaded.eos_ids == alone(str(folder)).eos_ids == expected


def test_ends_of_text_outside_the_vocabulary_are_ignored_with_a_note(tmp_path):
    save(tmp_path / "t")
    edit_json(tmp_path / "t" / "generation_config.json", eos_token_id=[2, 64, -1])
    loaded = alone(str(tmp_path / "t"))
    assert loaded.eos_ids == (2,)
    assert [note for note in loaded.notes if "64" in note]
    assert [note for note in loaded.notes if "-1" in note]


def test_flash_attention_in_the_config_is_switched_with_a_note(tmp_path):
    save(tmp_path / "t")
    edit_json(tmp_path / "t" / "config.json", attn_implementation="flash_attention_2")
    loaded = alone(str(tmp_path / "t"))
    assert loaded.model.config._attn_implementation == "sdpa"
    (note,) = loaded.notes
    assert "flash_attention_2" in note
    assert "sdpa" in note


@pytest.mark.parametrize("kind", ["static", "quantized"])
def test_a_cache_setting_of_the_checkpoint_is_overridden_with_a_note(kind, tmp_path):
    save(tmp_path / "t")
    edit_json(tmp_path / "t" / "generation_config.json", cache_implementation=kind)
    loaded = alone(str(tmp_path / "t"))
    assert loaded.model.generation_config.cache_implementation is None
    (note,) = loaded.notes
    assert kind in note


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"repetition_penalty": 1.1, "num_beams": 4}, ["num_beams=4", "repetition_penalty=1.1"]),
        ({"suppress_tokens": [3], "min_new_tokens": 4}, ["min_new_tokens=4", "suppress_tokens=[3]"]),
        ({"penalty_alpha": 0.6, "stop_strings": ["a"]}, ["penalty_alpha=0.6", "stop_strings=['a']"]),
        ({"guidance_scale": 2.0, "new_in_2031": "x"}, ["guidance_scale=2.0", "new_in_2031='x'"]),
    ],
)
def test_a_setting_that_may_change_the_text_is_told_and_not_ignored_in_silence(settings, told, tmp_path):
    save(tmp_path / "t")
    edit_json(tmp_path / "t" / "generation_config.json", **settings)
    (note,) = alone(str(tmp_path / "t")).notes
    assert f"asks for {', '.join(told)} in its generation_config.json" in note
    # A draft's do not matter: the text is the target's.
    assert [note for note in pair(save(tmp_path / "u"), str(tmp_path / "t")).notes if told[0] in note] == []


def test_settings_at_their_defaults_or_without_an_effect_are_no_note(tmp_path):
    save(tmp_path / "t")
    defaults = GenerationConfig._get_default_generation_params()
    harmless = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "renormalize_logits": True,
        "max_length": 99,
    }
    edit_json(tmp_path / "t" / "generation_config.json", **{**defaults, "min_p": 0.0, **harmless})
    assert alone(str(tmp_path / "t")).notes == ()


def test_no_setting_that_transformers_has_is_thought_harmless_by_accident():
    known = {"repetition_penalty", "num_beams", "bad_words_ids", "guidance_scale", "sequence_bias", "min_p"}
    known |= {"top_h", "typical_p", "stop_strings", "watermarking_config", "token_healing", "max_time"}
    config = GenerationConfig()
    for key in known:
        setattr(config, key, 2)
        assert not_applied(vars(config)) == f"{key}=2"
        setattr(config, key, None)


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_context_limit_is_what_the_config_says(family):
    assert LanguageModel(tiny_model(family)).context_limit == 256


def test_the_context_ends_where_rotary_frequencies_would_change():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    assert LanguageModel(tiny_model("llama", rope_parameters=rope)).context_limit == 64


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_it_ends_there_too_where_kinds_of_layers_have_their_own_frequencies(key):
    rope = {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 16}
    rope |= {"rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0, 6.0, 8.0, 16.0]}
    if key == "rope_parameters":
        plain = {"rope_type": "default", "rope_theta": 1e4}
        rope = {"sliding_attention": plain, "full_attention": rope}
    kinds = ["sliding_attention", "full_attention"]
    model = tiny_model("gemma3", layer_types=kinds, sliding_window=64, **{key: rope})
    assert LanguageModel(model).context_limit == 16


def test_a_hub_model_is_checked_before_its_weights_are_fetched(tmp_path, monkeypatch):
    save(tmp_path / "t")
    asked = []

    def snapshot(name, allow_patterns, **_):
        asked.append((name, allow_patterns))
        return str(tmp_path / "t")

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    heard = []
    pair("org/target", "org/draft", announce=heard.append)
    assert [name for name, files in asked if files == list(hub.DESCRIPTION)] == ["org/target", "org/draft"]
    assert asked[2:] == [("org/draft", ["model.safetensors"]), ("org/target", ["model.safetensors"])]
    assert heard[-1] == "loading target 'org/target' and draft 'org/draft'"


def test_a_fingerprint_tells_a_draft_from_itself_before_another_training(tmp_path):
    target, folder = save(tmp_path / "t"), tmp_path / "d"

    def of_draft():
        return pair(target, str(folder)).drafts[0].fingerprint

    save(folder, "gpt2", seed=1)
    before = of_draft()
    assert before == of_draft()
    save(folder, "gpt2", seed=2)
    trained = of_draft()
    write_vocabulary(folder, [1, 5, 9], {})
    assert len({before, trained, of_draft()}) == 3


def test_a_fingerprint_tells_a_target_from_itself_in_another_training_or_dtype(tmp_path):
    found = set()
    for seed, dtype in ((1, torch.float32), (2, torch.float32), (1, torch.bfloat16), (1, torch.float32)):
        target = save(tmp_path / f"{seed}", seed=seed)
        found.add(fingerprint(alone(target, dtype=dtype).model))
    assert len(found) == 3
