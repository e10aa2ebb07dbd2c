"""Logits to probabilities: Hugging Face's temperature, top-k and top-p, and the edges that broke others."""

import math

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from sequoia_cli.engine.warp import Sampling, probabilities
from sequoia_cli.errors import BadInput


def hugging_face(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores.softmax(-1)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.4])
@pytest.mark.parametrize("top_k", [0, 1, 5, 50])
@pytest.mark.parametrize("top_p", [0.1, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("vocabulary", [12, 3000])
def test_warping_is_hugging_faces(temperature, top_k, top_p, vocabulary):
    logits = 3 * torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(top_k))
    sampling = Sampling(temperature, top_k, top_p)
    expected = hugging_face(logits, sampling)
    found = probabilities(logits, sampling)
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("top_k", [0, 7, 2000])
@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.95])
@pytest.mark.parametrize("vocabulary", [10, 300, 3000])
def test_of_equal_logits_those_are_kept_that_hugging_face_keeps(temperature, top_k, top_p, vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.cat([torch.randint(0, most, (30, vocabulary), generator=generator) for most in (1, 4, 12)])
    sampling = Sampling(temperature, top_k, top_p)
    expected, found = hugging_face(logits.float(), sampling), probabilities(logits.float(), sampling)
    assert torch.equal(found > 0, expected > 0)
    assert torch.allclose(found, expected, atol=1e-6)


def test_one_row_of_logits_is_warped_as_it_is_among_others():
    logits = torch.randint(0, 4, (2, 3000), generator=torch.Generator().manual_seed(0)).float()
    sampling = Sampling(1.0, 0, 0.9)
    assert torch.equal(probabilities(logits[0], sampling), probabilities(logits, sampling)[0])


def test_in_half_precision_a_nucleus_has_the_mass_of_hugging_faces_whichever_equal_tokens_end_it():
    logits = (2 * torch.randn(20, 3000, generator=torch.Generator().manual_seed(0))).bfloat16()
    sampling = Sampling(1.0, 0, 0.6)
    expected, found = hugging_face(logits.float(), sampling), probabilities(logits, sampling)
    assert not torch.equal(found > 0, expected > 0)
    assert torch.allclose(found.sort(-1).values, expected.sort(-1).values, atol=1e-6)


@pytest.mark.parametrize("top_p", [0.9, 1.0])
@pytest.mark.parametrize("vocabulary", [10, 3000])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_row_without_a_finite_largest_logit_is_nan_throughout(wrong, vocabulary, top_p):
    logits = torch.zeros(2, vocabulary)
    logits[1, 3] = wrong
    found = probabilities(logits, Sampling(0.5, 0, top_p))
    assert found[0].isfinite().all() and found[1].isnan().all()


def test_a_flat_distribution_has_a_nucleus_beyond_the_sorted_candidates():
    logits = torch.zeros(2, 5000)
    found = probabilities(logits, Sampling(1.0, 0, 0.9))
    assert ((found > 0).sum(-1) == 4500).all()


def test_temperature_zero_is_one_hot_at_the_most_probable():
    logits = torch.tensor([[1.0, 5.0, 2.0], [3.0, 0.0, -1.0]])
    assert probabilities(logits, Sampling(0.0)).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("temperature", [1e-300, 1e-38, 1e-6])
def test_a_tiny_temperature_is_greedy_and_never_nan(temperature, dtype):
    logits = torch.tensor([[60000.0, 59000.0, -60000.0]], dtype=dtype)
    assert probabilities(logits, Sampling(temperature)).tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_probabilities_are_float32_or_wider(dtype):
    found = probabilities(torch.zeros(1, 4, dtype=dtype), Sampling(1.0))
    assert found.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize(
    "values",
    [(-1.0, 0, 1.0), (math.nan, 0, 1.0), (math.inf, 0, 1.0), (1.0, -1, 1.0), (1.0, 0, 0.0), (1.0, 0, 1.5)],
)
def test_impossible_sampling_values_are_refused(values):
    with pytest.raises(BadInput, match="expected"):
        Sampling(*values)
