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


def test_a_flat_distribution_has_a_nucleus_beyond_the_sorted_candidates():
    logits = torch.zeros(2, 5000)
    found = probabilities(logits, Sampling(1.0, 0, 0.9))
    assert ((found > 0).sum(-1) == 4500).all()


def test_temperature_zero_is_one_hot_at_the_most_probable():
    logits = torch.tensor([[1.0, 5.0, 2.0], [3.0, 0.0, -1.0]])
    assert probabilities(logits, Sampling(0.0)).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_tiny_temperature_is_greedy_and_never_nan(dtype):
    logits = torch.tensor([[60000.0, 59000.0, -60000.0]], dtype=dtype)
    assert probabilities(logits, Sampling(1e-6)).tolist() == [[1, 0, 0]]


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
