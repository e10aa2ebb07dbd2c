"""An independent draft before training: the target's own first layers, or a random model between its ends."""

import copy

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from distilling import target_of, written
from models import SUPPORTED, tiny_model
from sequoia_cli.distill.batches import collate
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.independent_student import IndependentStudent, first_layers, from_config, probe_model
from sequoia_cli.engine.loading import sharing
from sequoia_cli.errors import BadInput

IDS = torch.tensor([[5, 17, 3, 42, 8, 11, 2, 33]])


def truncated(target, layers):
    """The target itself, its own list of layers cut in place."""
    short = copy.deepcopy(target)
    whole = short.config.num_hidden_layers
    blocks = next(m for m in short.modules() if isinstance(m, nn.ModuleList) and len(m) == whole)
    del blocks[layers:]
    short.config.num_hidden_layers = layers
    return short


def states_of(model, ids=IDS):
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_first_layers_say_what_the_target_knows_after_them(family):
    target = tiny_model(family).double() if family != "mixtral" else tiny_model(family)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    draft = first_layers(target, 1)
    states, expected = states_of(draft), states_of(truncated(target, 1))
    assert torch.allclose(states[-1], expected[-1], atol=1e-9)
    assert not torch.allclose(states[-1], states_of(target)[-1], atol=1e-2)
    assert draft.get_input_embeddings().weight is target.get_input_embeddings().weight
    assert draft.get_output_embeddings().weight is target.get_output_embeddings().weight
    assert draft.config.num_hidden_layers == 1
    assert target.config.num_hidden_layers == 2
    # Its own layers are copies: training them leaves the target alone.
    shared = sharing.end_names(draft)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if name not in shared:
                parameter.add_(1)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_what_is_trained_are_the_drafts_layers_and_not_its_ends():
    target = tiny_model("llama")
    draft = first_layers(target, 1)
    trained = {name for name, parameter in draft.named_parameters() if parameter.requires_grad}
    assert all(name.startswith(("model.layers.0.", "model.norm")) for name in trained)
    assert len(trained) == 10


@pytest.mark.parametrize("layers", [2, 3])
def test_as_many_layers_as_the_target_has_are_refused(layers):
    with pytest.raises(
        BadInput, match=f"a draft of {layers} layers is no smaller than its target, which has 2"
    ):
        first_layers(tiny_model("llama"), layers)


def test_a_family_whose_weights_do_not_go_by_layer_is_refused():
    target = tiny_model("llama")
    state_dict = target.state_dict

    def stacked():
        return {name: value for name, value in state_dict().items() if "layers.0.mlp.up" not in name}

    target.state_dict = stacked
    with pytest.raises(BadInput, match=r"family llama cannot be split: model\.layers\.0\.mlp\.up_proj"):
        first_layers(target, 1)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3", "mistral"])
def test_padding_after_a_text_changes_no_state(family):
    target = target_of(family, **({"sliding_window": 4} if family in ("gemma3", "mistral") else {}))
    student = IndependentStudent(first_layers(target.model, 1))
    texts = [written(target, rows=1, length=length, seed=1)[0] for length in (6, 15)]
    batch = collate(texts, torch.device("cpu"))
    with torch.no_grad():
        ((states, places),) = student.predictions(batch)
        alone = [next(student.predictions(collate([text], torch.device("cpu"))))[0] for text in texts]
    assert places.sum(1).tolist() == [5, 14]
    assert torch.allclose(states, torch.cat(alone), atol=1e-10)


def test_every_level_has_the_same_predictions():
    target = target_of()
    student = IndependentStudent(first_layers(target.model, 1))
    batch = collate(written(target, rows=2, length=9), torch.device("cpu"))
    found = list(student.predictions(batch, 3))
    assert len(found) == 3
    assert all(torch.equal(states, found[0][0]) for states, _ in found)
    assert all(torch.equal(places, batch.answer) for _, places in found)


@pytest.mark.parametrize("family", SUPPORTED)
def test_states_are_the_models_own_and_logits_that_nobody_reads_are_not_made(family):
    target = target_of(family, torch.float32)
    model = first_layers(target.model, 1)
    student, read = IndependentStudent(model), []
    batch = collate(written(target, rows=2, length=9), torch.device("cpu"))
    expected = states_of(model, batch.tokens)[-1][batch.answer]
    model.get_output_embeddings().register_forward_pre_hook(
        lambda head, states: read.append(states[0].shape[1])
    )
    ((states, _),) = student.predictions(batch)
    assert torch.equal(states, expected)
    assert read == [1]


def test_a_family_without_such_an_option_is_run_without_it():
    target = target_of()
    model = first_layers(target.model, 1)
    batch = collate(written(target, rows=2, length=9), torch.device("cpu"))
    expected, _ = next(IndependentStudent(model).predictions(batch))
    right = model.forward

    def forward(input_ids, use_cache, output_hidden_states):
        return right(input_ids=input_ids, use_cache=use_cache, output_hidden_states=output_hidden_states)

    model.forward = forward
    assert torch.equal(next(IndependentStudent(model).predictions(batch))[0], expected)


def test_a_token_that_the_draft_has_no_embedding_for_becomes_its_last():
    target = target_of()
    text = written(target, rows=1, length=9)[0]
    beyond, last = (Text(text.tokens.clone(), text.hidden, text.answer) for _ in range(2))
    beyond.tokens[4], last.tokens[4] = 70, 63
    student = IndependentStudent(first_layers(target.model, 1))
    states = [next(student.predictions(collate([t], torch.device("cpu"))))[0] for t in (beyond, last)]
    assert torch.equal(*states)


def test_a_model_of_a_config_is_made_of_its_seed():
    target, config = tiny_model("llama"), tiny_model("llama", num_hidden_layers=1).config
    first, again, other = (from_config(target, config, seed).state_dict() for seed in (1, 1, 1 << 64))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(
        first["model.layers.0.mlp.up_proj.weight"], other["model.layers.0.mlp.up_proj.weight"]
    )


def test_a_config_that_no_model_can_be_made_of_is_refused_in_words():
    config = tiny_model("gpt2").config
    config.n_head = 5
    with pytest.raises(BadInput, match="no draft of family gpt2 can be made of its config"):
        probe_model(tiny_model("llama"), config)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_a_model_of_another_config_stands_between_the_targets_ends(family):
    target = tiny_model("llama")
    draft = from_config(target, tiny_model(family, num_attention_heads=2).config)
    assert draft.config.model_type == family
    assert draft.get_input_embeddings().weight is target.get_input_embeddings().weight
    assert draft.get_output_embeddings().weight is target.get_output_embeddings().weight
    assert draft.dtype == target.dtype
    assert torch.isfinite(states_of(draft)[-1]).all()
    assert sharing.end_names(draft)


@pytest.mark.parametrize("wrong", [{"vocab_size": 72}, {"hidden_size": 48}])
def test_a_config_that_does_not_fit_between_them_is_refused(wrong):
    config = AutoConfig.for_model(
        "llama",
        **{"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, **wrong},
    )
    for make in (from_config, probe_model):
        with pytest.raises(BadInput, match=r"the target has 64 ids and width 32"):
            make(tiny_model("llama"), config)


def test_a_text_of_which_nothing_counts_gives_no_states():
    target = target_of()
    text = written(target, rows=1, length=6)[0]
    none = Text(text.tokens, text.hidden, torch.zeros_like(text.answer))
    student = IndependentStudent(first_layers(target.model, 1))
    ((states, places),) = student.predictions(collate([none], torch.device("cpu")))
    assert (len(states), int(places.sum())) == (0, 0)
