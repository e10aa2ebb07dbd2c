"""What cannot be loaded, each in one line that names model and file, before any weight is read."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import BartConfig, PreTrainedModel, ViTConfig

from folders import alone, edit_json, edit_weights, pair, save
from models import tiny_tokenizer
from sequoia_cli.engine.loading import drafts, hub, load
from sequoia_cli.errors import BadInput


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    def asked(*args, **kwargs):
        raise AssertionError("the hub was asked about a local folder")

    monkeypatch.setattr(hub, "snapshot_download", asked)


@pytest.fixture
def no_weights(monkeypatch):
    """Fails a test that gets as far as loading weights."""

    def loaded(*args, **kwargs):
        raise AssertionError("weights were loaded before the checks were done")

    monkeypatch.setattr(PreTrainedModel, "from_pretrained", loaded)


@pytest.fixture
def good(tmp_path) -> str:
    return save(tmp_path / "good")


def refusal(good: str, bad: Path | str, role: str) -> BadInput:
    """The refusal of a pair in which `bad` has the given role."""
    names = (str(bad), good) if role == "target" else (good, str(bad))
    with pytest.raises(BadInput) as caught:
        pair(*names)
    assert "\n" not in caught.value.message
    return caught.value


both_roles = pytest.mark.parametrize("role", ["target", "draft"])


@both_roles
def test_a_folder_without_config(role, good, tmp_path, no_weights):
    (tmp_path / "bad").mkdir()
    error = refusal(good, tmp_path / "bad", role)
    assert error.message == f"{role} '{tmp_path}/bad': {tmp_path}/bad has no config.json"
    assert "safetensors" in error.hint


def test_an_adapter_is_no_model(good, tmp_path, no_weights):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "adapter_config.json").write_text("{}")
    assert "adapter" in refusal(good, tmp_path / "bad", "draft").hint


@both_roles
@pytest.mark.parametrize("peft", [True, False])
def test_an_adapter_beside_weights_is_refused_whether_peft_is_installed_or_not(
    peft, role, good, tmp_path, no_weights, monkeypatch
):
    # With peft, transformers applies the adapter, and takes the weights from the base model that it names.
    monkeypatch.setattr("transformers.integrations.peft.is_peft_available", lambda: peft)
    save(tmp_path / "bad")
    (tmp_path / "bad" / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    error = refusal(good, tmp_path / "bad", role)
    assert "has an adapter_config.json beside config.json" in error.message
    assert "if the adapter is merged into its weights" in error.hint


@both_roles
@pytest.mark.parametrize("method", ["own-4bit", None])
def test_a_quantisation_that_transformers_does_not_know(method, role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    edit_json(tmp_path / "bad" / "config.json", quantization_config={"quant_method": method, "bits": 4})
    message = refusal(good, tmp_path / "bad", role).message
    assert f"config.json has quant_method {method!r}, unknown to transformers" in message


EAGLE_3 = {"draft_vocab_size": 32}
EAGLE = ("fc.weight", "embed_tokens.weight", "layers.0.self_attn.q_proj.weight")


@pytest.mark.parametrize(
    ("config", "names", "what"),
    [
        (EAGLE_3, ("fc.weight", "midlayer.norm.weight", "d2t", "t2d"), "an EAGLE-3 head"),
        ({}, ("fc.weight", "midlayer.norm.weight", "d2t", "t2d"), "an EAGLE-3 head"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, EAGLE, "an EAGLE-3 head"),
        ({}, EAGLE, "an EAGLE head"),
        ({"model_type": None, "medusa_num_heads": 4}, ("0.0.linear.weight", "0.1.weight"), "a Medusa head"),
        ({}, ("0.0.linear.weight", "0.0.linear.bias", "0.1.weight"), "a Medusa head"),
        ({"speculators_model_type": "eagle3"}, EAGLE, r"a head in the format of speculators \('eagle3'\)"),
        ({"model_type": "mlp_speculator"}, ("speculator.emb.0.weight",), "an MLP speculator"),
    ],
)
@pytest.mark.parametrize("tokenizer", [True, None])
def test_a_published_draft_head_is_refused_by_name(config, names, what, tokenizer, good, tmp_path):
    bad = tmp_path / "bad"
    save(bad, tokenizer=tokenizer, num_hidden_layers=1)
    edit_json(bad / "config.json", **config)
    edit_weights(bad, drop=("",), **{name: torch.zeros(3) for name in names})
    error = refusal(good, bad, "draft")
    assert re.fullmatch(f"draft '{bad}' is {what}, which is not read here", error.message)
    assert "`sequoia distill` makes a draft" in error.hint


def test_one_pickled_layer_without_a_tokenizer_is_refused_as_an_eagle_head(good, tmp_path):
    bad = tmp_path / "bad"
    save(bad, tokenizer=None, num_hidden_layers=1)
    (bad / "model.safetensors").rename(bad / "pytorch_model.bin")
    assert "is an EAGLE head, by its one layer" in refusal(good, bad, "draft").message


def test_a_config_that_contradicts_itself(good, tmp_path, no_weights):
    save(tmp_path / "bad")
    edit_json(tmp_path / "bad" / "config.json", num_attention_heads=5)
    message = refusal(good, tmp_path / "bad", "target").message
    assert "config.json cannot be used: " in message
    assert "multiple of the number of attention heads (5)" in message


@both_roles
@pytest.mark.parametrize("text", ["{", "[]", '{"model_type": "llama", "hidden_size": "wide"}'])
def test_a_damaged_config(text, role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    (tmp_path / "bad" / "config.json").write_text(text)
    message = refusal(good, tmp_path / "bad", role).message
    assert message.startswith(f"{role} '{tmp_path}/bad': ")
    assert "config.json" in message


@both_roles
def test_a_folder_without_tokenizer(role, good, tmp_path, no_weights):
    save(tmp_path / "bad", tokenizer=None)
    assert refusal(good, tmp_path / "bad", role).message.endswith("/bad has no tokenizer")


@both_roles
def test_a_damaged_tokenizer(role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    (tmp_path / "bad" / "tokenizer.json").write_text('{"version": "1.0"')
    assert "its tokenizer cannot be loaded" in refusal(good, tmp_path / "bad", role).message


@both_roles
def test_a_folder_without_weights(role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").unlink()
    assert refusal(good, tmp_path / "bad", role).message.endswith("/bad has no model.safetensors")


@both_roles
def test_pickled_weights_are_not_loaded(role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").rename(tmp_path / "bad" / "pytorch_model.bin")
    error = refusal(good, tmp_path / "bad", role)
    assert "only pickled .bin weights" in error.message
    assert "convert" in error.hint


@both_roles
def test_a_shard_that_the_index_names_is_missing(role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    edit_json(
        tmp_path / "bad" / "model.safetensors.index.json",
        weight_map={"a": "model.safetensors", "b": "model-00002.safetensors"},
    )
    message = refusal(good, tmp_path / "bad", role).message
    assert "model-00002.safetensors is missing, though model.safetensors.index.json names it" in message


@both_roles
@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_weights_cut_short(part, role, good, tmp_path, no_weights):
    path = tmp_path / "bad" / "model.safetensors"
    save(tmp_path / "bad")
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    error = refusal(good, tmp_path / "bad", role)
    assert f"{path} is damaged or cut short" in error.message
    assert "again" in error.hint


def test_a_pointer_in_place_of_the_weights(good, tmp_path, no_weights):
    save(tmp_path / "bad")
    (tmp_path / "bad" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    assert "is a Git LFS pointer" in refusal(good, tmp_path / "bad", "target").message


@both_roles
def test_an_encoder_decoder_model(role, good, tmp_path, no_weights):
    BartConfig(d_model=32, encoder_layers=1, decoder_layers=1).save_pretrained(tmp_path / "bad")
    message = refusal(good, tmp_path / "bad", role).message
    assert message.endswith("is an encoder-decoder model (bart); a decoder-only one is needed")


def test_a_model_that_writes_no_text(good, tmp_path, no_weights):
    ViTConfig(hidden_size=32, num_hidden_layers=1).save_pretrained(tmp_path / "bad")
    assert (
        "is a 'vit' model; transformers has no causal language model"
        in refusal(good, tmp_path / "bad", "target").message
    )


@both_roles
def test_a_family_that_transformers_does_not_know(role, good, tmp_path, no_weights):
    save(tmp_path / "bad")
    edit_json(tmp_path / "bad" / "config.json", model_type="llamma")
    message = refusal(good, tmp_path / "bad", role).message
    assert "model_type 'llamma', unknown to transformers" in message


def test_code_in_a_model_folder_runs_only_where_it_is_trusted(good, tmp_path, no_weights):
    save(tmp_path / "bad")
    edit_json(tmp_path / "bad" / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (tmp_path / "bad" / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "--trust-remote-code" in refusal(good, tmp_path / "bad", "target").hint
    assert not (tmp_path / "ran").exists()


def test_tokenizers_that_swap_two_ids(good, tmp_path, no_weights):
    bad = tmp_path / "bad"
    save(bad, tokenizer=tiny_tokenizer(64, tokens={10: "w11", 11: "w10"}))
    message = refusal(good, bad, "draft").message
    assert message == (
        f"target '{good}' and draft '{bad}' have different tokenizers: "
        "id 10 is 'w10' in the target and 'w11' in the draft; "
        "id 11 is 'w11' in the target and 'w10' in the draft; 2 ids differ"
    )


def test_tokenizers_that_differ_in_an_added_token_only(tmp_path, no_weights):
    names = []
    for role, added in [("t", "<end>"), ("d", "<stop>")]:
        tokenizer = tiny_tokenizer(60)
        tokenizer.add_tokens(["<both>", added])
        names.append(save(tmp_path / role, tokenizer=tokenizer))
    with pytest.raises(BadInput, match="id 61 is '<end>' in the target and '<stop>' in the draft"):
        pair(*names)


def test_a_weight_that_is_missing_is_never_random(good, tmp_path):
    save(tmp_path / "bad")
    edit_weights(tmp_path / "bad", drop=("layers.1.mlp.up_proj",))
    for role in ("target", "draft"):
        message = refusal(good, tmp_path / "bad", role).message
        assert message.endswith("its files lack model.layers.1.mlp.up_proj.weight")


def test_a_gap_in_a_draft_shows_before_the_target_is_read(good, tmp_path, monkeypatch):
    save(tmp_path / "bad")
    edit_weights(tmp_path / "bad", drop=("layers.1.mlp.up_proj",))
    load_model, loaded = drafts.load_model, []

    def load_noted(checkpoint, dtype):
        loaded.append(checkpoint.source.role)
        return load_model(checkpoint, dtype)

    for module in (load, drafts):
        monkeypatch.setattr(module, "load_model", load_noted)
    refusal(good, tmp_path / "bad", "draft")
    assert loaded == ["draft"]


@pytest.mark.parametrize("name", ["lm_head", "embed_tokens"])
def test_an_embedding_or_a_head_alone_may_not_be_missing(name, good, tmp_path):
    save(tmp_path / "bad")
    edit_weights(tmp_path / "bad", drop=(name,))
    assert name in refusal(good, tmp_path / "bad", "draft").message


@pytest.mark.parametrize(
    "extra", ["mtp.fc.weight", "model.layers.2.enorm.weight", "v_head.summary.weight", "extra"]
)
def test_weights_of_something_else_beside_the_model_are_one_note(extra, good, tmp_path):
    save(tmp_path / "more")
    edit_weights(tmp_path / "more", **{extra: torch.zeros(3)})
    loaded, own = alone(str(tmp_path / "more")), alone(good)
    assert loaded.notes == (
        f"target '{tmp_path}/more': its files hold weights that the model does not use: {extra}",
    )
    ids = torch.arange(1, 9)[None]
    assert torch.equal(loaded.model(ids).logits, own.model(ids).logits)


def test_a_layer_that_has_more_than_the_models_own_predicts_further_tokens(tmp_path):
    state = save_file_state(tmp_path / "more")
    further = {name.replace("layers.1", "layers.2"): value for name, value in state if "layers.1." in name}
    edit_weights(tmp_path / "more", **further, **{"model.layers.2.eh_proj.weight": torch.zeros(3)})
    (note,) = alone(str(tmp_path / "more")).notes
    assert "model.layers.2.eh_proj.weight" in note


def save_file_state(folder):
    save(folder)
    return list(load_file(folder / "model.safetensors").items())


@both_roles
def test_layers_that_the_config_does_not_count(role, good, tmp_path):
    save(tmp_path / "bad")
    edit_json(tmp_path / "bad" / "config.json", num_hidden_layers=1)
    error = refusal(good, tmp_path / "bad", role)
    assert "no place for: model.layers.1.input_layernorm.weight" in error.message
    assert error.hint == "config.json and weights are not of the same model"


def test_weights_that_layers_of_the_model_would_leave_out(good, tmp_path):
    save(tmp_path / "bad")
    edit_weights(tmp_path / "bad", **{"model.layers.0.mlp.up_proj.bias": torch.zeros(64)})
    message = refusal(good, tmp_path / "bad", "target").message
    assert message.endswith("no place for: model.layers.0.mlp.up_proj.bias")


def test_weights_of_another_shape_than_the_config_says(good, tmp_path):
    save(tmp_path / "bad")
    edit_json(tmp_path / "bad" / "config.json", intermediate_size=48)
    message = refusal(good, tmp_path / "bad", "draft").message
    assert "other shapes of model.layers.0.mlp.down_proj.weight" in message
    assert "and 3 more" in message


def test_a_generation_config_that_is_no_json(good):
    (Path(good) / "generation_config.json").write_text("{")
    with pytest.raises(BadInput, match=r"generation_config\.json cannot be read as JSON"):
        alone(good)


def test_a_bad_folder_is_found_before_the_hub_is_asked_for_the_other(tmp_path):
    with pytest.raises(BadInput, match=r"draft './modle' is a path that does not exist"):
        pair("org/target", "./modle")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"has no config\.json"):
        pair("org/target", str(tmp_path / "empty"))
