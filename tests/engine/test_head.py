"""A model's head apart from it: it gives the model's own logits, or the model is refused."""

import copy

import pytest
import torch

from models import SUPPORTED, tiny_model
from sequoia_cli.engine.head import output_head
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput

#: Families with something behind their head's rows, and settings under which leaving it out shows.
SETTINGS = {
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 4.0},
    "gemma2": {"final_logit_softcapping": 0.5},
    "gemma3": {"final_logit_softcapping": 0.5},
    "opt": {"word_embed_proj_dim": 16},
}
IDS = torch.tensor([3, 9, 62])


def last_states(model, text=(7, 1, 44, 2)):
    output = model(input_ids=torch.tensor([text]), output_hidden_states=True)
    return output.hidden_states[-1][0], output.logits[0]


@pytest.mark.parametrize("family", SUPPORTED)
def test_the_head_gives_the_models_own_logits(family):
    model = tiny_model(family, **SETTINGS.get(family, {}))
    head = output_head(LanguageModel(model), "the target")
    states, logits = last_states(model)
    assert torch.allclose(head(states), logits, rtol=0, atol=1e-5 * float(logits.abs().max()))
    assert torch.allclose(head.only(IDS)(states), head(states)[:, IDS], rtol=0, atol=1e-4)
    assert head.only(IDS).weight.shape == (3, head.weight.shape[1])


def test_the_head_for_all_ids_is_the_head_itself_and_no_copy():
    head = output_head(LanguageModel(tiny_model("llama")), "the target")
    assert head.only(None) is head


def test_states_of_a_wider_dtype_are_taken_and_have_gradients_of_their_own():
    head = output_head(LanguageModel(tiny_model("phi").half()), "the target")
    states = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    logits = head(states)
    assert logits.dtype == torch.float16
    assert torch.equal(logits, head(states.half()))
    (slope,) = torch.autograd.grad(logits.sum(), states)
    assert slope.dtype == torch.float32
    assert slope.abs().max() > 0


def refused(model):
    with pytest.raises(BadInput, match=r"whose logits are not its head over its last hidden state") as caught:
        output_head(model, "the target of draft 'd'")
    assert caught.value.message.startswith(f"the target of draft 'd' is of family {model.family}, ")
    assert "give it as --draft" in caught.value.hint


@pytest.mark.parametrize(
    ("family", "key", "plain"),
    [
        ("cohere", "logit_scale", 1.0),
        ("granite", "logits_scaling", 1.0),
        ("gemma2", "final_logit_softcapping", None),
    ],
)
def test_a_scale_or_a_cap_that_its_settings_do_not_tell_is_seen(family, key, plain):
    model = LanguageModel(tiny_model(family, **SETTINGS[family]))
    model.config = copy.copy(model.config)
    setattr(model.config, key, plain)
    refused(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "change",
    [
        lambda output: output._replace(logits=output.logits.roll(1, -1)),
        lambda output: output._replace(logits=output.logits * 1.5),
        lambda output: output._replace(logits=output.logits * torch.nan),
        lambda output: output._replace(hidden=(output.hidden[0].roll(1, 0),)),
        lambda output: output._replace(hidden=(output.hidden[0][:, :-1],)),
    ],
    ids=["other rows", "scaled", "no numbers", "another token's state", "narrower"],
)
def test_a_model_whose_logits_come_from_elsewhere_is_refused(change, dtype, monkeypatch):
    model = LanguageModel(tiny_model("llama").to(dtype))
    output_head(model, "the target")
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **options: change(forward(*args, **options)))
    refused(model)


@pytest.mark.parametrize("head", [None, torch.nn.Identity()])
def test_a_model_that_does_not_show_its_head_is_refused(head, monkeypatch):
    model = LanguageModel(tiny_model("llama"))
    monkeypatch.setattr(model.model, "get_output_embeddings", lambda: head)
    with pytest.raises(BadInput, match="the target does not expose its output head"):
        output_head(model, "the target")
