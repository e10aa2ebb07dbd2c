"""The distribution that `check` compares with: transformers' own, whatever the engine does."""

import ast
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig

import sequoia_cli.check
from models import tiny_model
from sequoia_cli.check.distribution import distribution, possible, warpers
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine.warp import probabilities

SAMPLINGS = [Sampling(1.0), Sampling(0.6), Sampling(0.7, 5), Sampling(1.3, 0, 0.8), Sampling(0.7, 9, 0.9)]


def test_no_module_of_check_takes_the_distribution_from_the_engine():
    for path in Path(sequoia_cli.check.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module != "sequoia_cli.engine.warp", path.name
                names = {alias.name for alias in node.names}
                assert not (names & {"warp", "probabilities"}), path.name


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_warpers_are_those_that_generate_uses_in_its_order(sampling):
    config = GenerationConfig(
        do_sample=True, temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p
    )
    model = tiny_model("llama")
    theirs = model._get_logits_processor(
        config, input_ids_seq_length=1, encoder_input_ids=None, prefix_allowed_tokens_fn=None
    )
    ours = warpers(sampling)
    assert [type(one) for one in ours] == [type(one) for one in theirs]
    scores, ids = torch.randn(4, 64, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.long)
    assert torch.equal(ours(ids, scores), theirs(ids, scores))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_engine_has_the_same_distribution(sampling):
    logits = 3 * torch.randn(20, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(distribution(logits, sampling).probs, probabilities(logits, sampling))


def test_tokens_that_are_tied_at_the_end_of_a_nucleus_share_their_mass():
    logits = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.1]], dtype=torch.float64).log()
    probs, tied = distribution(logits, Sampling(1.0, 0, 0.85))
    assert tied.tolist() == [[False, False, True, True, True]]
    assert probs[0].tolist() == pytest.approx([5 / 9, 2 / 9, 2 / 27, 2 / 27, 2 / 27])
    assert possible(4, logits[0], Sampling(1.0, 0, 0.85))
    probs, tied = distribution(logits, Sampling(1.0, 0, 0.65))
    assert not tied.any() and not possible(4, logits[0], Sampling(1.0, 0, 0.65))


def test_tokens_below_the_tied_ones_have_no_part_in_it():
    logits = torch.tensor([[0.6, 0.1, 0.1, 0.1, 0.06, 0.04]], dtype=torch.float64).log()
    probs, tied = distribution(logits, Sampling(1.0, 0, 0.75))
    assert tied.tolist() == [[False, True, True, True, False, False]]
    assert probs[0].tolist() == pytest.approx([6 / 8, *[2 / 24] * 3, 0, 0])


def test_a_token_at_the_edge_of_a_nucleus_is_possible_as_far_as_rounding_goes():
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    assert possible(2, logits, Sampling(1.0, 0, 0.79995))
    assert not possible(2, logits, Sampling(1.0, 0, 0.7998))


@pytest.mark.parametrize("largest", [3.0, 300.0])  # 300 / 1e-306 is no number any more
def test_a_tiny_temperature_leaves_one_token(largest):
    logits = torch.tensor([[largest, largest * 2 / 3, largest / 3]])
    for temperature in (1e-300, 1e-306):
        assert distribution(logits, Sampling(temperature)).probs.tolist() == [[1.0, 0.0, 0.0]]
