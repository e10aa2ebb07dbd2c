"""What rounding does to a target, measured on the answers of the unrounded one."""

import math

import pytest
import torch

from decoding import new_ids
from models import tiny_model
from sequoia_cli.check.rounding import rounding_cost
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.integer.quantise import quantise
from sequoia_cli.engine.model import LanguageModel

PROMPTS = [[5, 17, 3], [42, 8]]


@pytest.fixture(scope="module")
def models():
    unrounded, rounded = tiny_model("llama"), tiny_model("llama")
    quantise(rounded)
    return LanguageModel(unrounded), LanguageModel(rounded)


def test_a_target_beside_itself_has_lost_nothing(models):
    unrounded, _ = models
    found = rounding_cost(unrounded, LanguageModel(tiny_model("llama")), PROMPTS, 12, ())
    assert found.tokens == 24
    assert found.divergence == pytest.approx(0, abs=1e-6)
    assert found.agreement == 1
    assert found.perplexity == pytest.approx(found.unrounded_perplexity, rel=1e-5)
    assert min(found.speed, found.unrounded_speed) > 0


def test_divergence_and_perplexity_are_those_of_whole_distributions(models):
    found = rounding_cost(*models, PROMPTS, 12, ())
    divergence, losses, same = 0.0, [0.0, 0.0], 0
    for prompt in PROMPTS:
        answer = new_ids(Decoder(models[0]), prompt, 12)
        for place, token in enumerate(answer):
            ids = torch.tensor([[*prompt, *answer[:place]]])
            with torch.inference_mode():
                wide, narrow = (model.model(ids).logits[0, -1].double().softmax(-1) for model in models)
            divergence += float((wide * (wide / narrow).log()).sum())
            losses = [loss - math.log(p[token]) for loss, p in zip(losses, (wide, narrow), strict=True)]
            same += int(wide.argmax() == narrow.argmax())
    assert found.divergence == pytest.approx(divergence / 24, rel=1e-3)
    assert found.divergence > 0
    assert found.agreement == same / 24
    assert found.unrounded_perplexity == pytest.approx(math.exp(losses[0] / 24), rel=1e-4)
    assert found.perplexity == pytest.approx(math.exp(losses[1] / 24), rel=1e-4)


def test_an_answer_ends_with_the_token_that_ends_it(models):
    answer = new_ids(Decoder(models[0]), PROMPTS[0], 12)
    found = rounding_cost(*models, PROMPTS[:1], 12, [answer[4]])
    assert found.tokens == answer.index(answer[4]) + 1
