"""The pairs that are measured: published shapes with random weights, and the default pair if at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.counts import Rows
from sequoia_cli.core.paths import cache_dir, shipped
from sequoia_cli.core.rates import AcceptanceRates
from sequoia_cli.engine.draft import Draft, IndependentDraft
from sequoia_cli.engine.loading import smollm2
from sequoia_cli.engine.loading.load import load_pair
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.measure.latency import context_prompt
from sequoia_cli.measure.session import make_draft

#: Llama-2-7B (arXiv 2307.09288) and JackFram/llama-68m, the pair of Sequoia's tables.
LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
LLAMA_68M = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "max_position_embeddings": 2048,
}
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True)
class BenchPair:
    """A pair not yet made fast, its rates, and a prompt.

    `coin` says that nothing is accepted by itself: weights are random, and a coin stands for the target.
    `weight_bytes` are what a forward reads: all parameters but the embedding, of which it reads a few rows.
    """

    name: str
    target: LanguageModel
    draft: Draft
    rates: Rows
    prompt: Sequence[int]
    coin: bool
    weight_bytes: int


def random_pair(
    name: str, device: torch.device, dtype: torch.dtype, context: int, *, tiny: bool
) -> BenchPair:
    """Random weights in the shape of Llama-2-7B and its 68M draft, made on the device."""
    shapes = (TINY, TINY) if tiny else (LLAMA_7B, LLAMA_68M)
    target, draft = (LanguageModel(_random_llama(shape, device, dtype, tiny)) for shape in shapes)
    prompt = torch.randint(0, target.vocabulary, (context,), generator=torch.Generator().manual_seed(0))
    rates = _rates("published_demo_rates.yaml")
    drafted = IndependentDraft(draft, target.vocabulary)
    return BenchPair(name, target, drafted, rates, prompt.tolist(), True, _weight_bytes(target.model))


def default_pair(device: torch.device, dtype: torch.dtype, context: int) -> BenchPair | None:
    """SmolLM2-135M and its shipped draft; None where the target was never fetched."""
    if not (cache_dir() / "models" / smollm2.FOLDER).is_dir():
        return None
    loaded = load_pair("smollm2", "smollm2-draft", dtype=dtype, device=device)
    target = LanguageModel(loaded.target)
    draft = make_draft(loaded.drafts[0], target)
    prompt = context_prompt(loaded.tokenizer, context)
    rates = _rates("smollm2_cpu_rates.yaml")
    return BenchPair("smollm2", target, draft, rates, prompt, False, _weight_bytes(target.model))


@contextmanager
def _made_as(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def _random_llama(
    shape: dict[str, Any], device: torch.device, dtype: torch.dtype, tiny: bool
) -> PreTrainedModel:
    config = LlamaConfig(vocab_size=64 if tiny else 32_000, attn_implementation="sdpa", **shape)
    with _made_as(device, dtype):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return model.eval().requires_grad_(False)


def _rates(name: str) -> Rows:
    return AcceptanceRates.from_document(read_document(shipped("profiles", name))).p


def _weight_bytes(model: PreTrainedModel) -> int:
    embedding = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embedding
    read = {id(each): each for each in model.parameters()}
    if not tied:
        del read[id(embedding)]
    return sum(each.numel() * each.element_size() for each in read.values())
