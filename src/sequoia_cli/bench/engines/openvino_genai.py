"""OpenVINO GenAI's pipeline, on the target's GGUF file: plain, or with lookups in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from sequoia_cli.bench.engines import OnTokens
from sequoia_cli.bench.workload import Workload

#: Tokens proposed by a lookup, and the longest n-gram looked up, as in its own example.
_LOOKUP_TOKENS, _LOOKUP_NGRAM = 5, 3


class _Streamer(openvino_genai.StreamerBase):
    def __init__(self, on_tokens: OnTokens) -> None:
        super().__init__()
        self._on_tokens = on_tokens

    def write(self, token: int | Sequence[int]) -> openvino_genai.StreamingStatus:
        self._on_tokens([token] if isinstance(token, int) else list(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class OpenVinoEngine:
    """The pipeline with its own defaults for this processor, but without prefix caching.

    Prompts are repeated each round, and the time to a first token must include prefill.
    """

    packages = ("openvino", "openvino-genai")

    def __init__(self, work: Workload, path: str, *, lookup: bool = False) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        settings: dict[str, Any] = {"INFERENCE_NUM_THREADS": work.threads, "scheduler_config": scheduler}
        if lookup:
            settings["prompt_lookup"] = True
        self._pipeline = openvino_genai.LLMPipeline(path, "CPU", **settings)
        self._work, self._lookup = work, lookup

    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._pipeline.generate(ids, self._config(seed), _Streamer(on_tokens))

    def _config(self, seed: int) -> Any:
        work, sampling = self._work, self._work.sampling
        config = openvino_genai.GenerationConfig(
            max_new_tokens=work.max_new_tokens, do_sample=not sampling.greedy, rng_seed=seed
        )
        if not sampling.greedy:
            config.temperature = sampling.temperature
            config.top_p = sampling.top_p
            if sampling.top_k:
                config.top_k = sampling.top_k
        if self._lookup:
            config.num_assistant_tokens = _LOOKUP_TOKENS
            config.max_ngram_size = _LOOKUP_NGRAM
        config.stop_token_ids = set(work.eos_ids)
        return config


def make(work: Workload, name: str) -> OpenVinoEngine:
    """Load the engine with the GGUF file."""
    assert work.gguf is not None
    return OpenVinoEngine(work, work.gguf, lookup=name == "openvino-lookup")
