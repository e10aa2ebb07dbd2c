"""OpenVINO GenAI's pipeline, on the target's GGUF file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino
import openvino_genai

from sequoia_cli.bench.engines import OnTokens
from sequoia_cli.bench.work import Work


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
    """The pipeline with its own defaults for this processor."""

    packages = ("openvino", "openvino-genai")

    def __init__(self, work: Work, path: str) -> None:
        settings = {"INFERENCE_NUM_THREADS": work.threads}
        self._pipeline = openvino_genai.LLMPipeline(path, "CPU", **settings)
        sampling = work.sampling
        self._config = openvino_genai.GenerationConfig(
            max_new_tokens=work.max_new_tokens, do_sample=not sampling.greedy, rng_seed=work.seed & 0x7FFFFFFF
        )
        if not sampling.greedy:
            self._config.temperature = sampling.temperature
            self._config.top_p = sampling.top_p
            if sampling.top_k:
                self._config.top_k = sampling.top_k
        self._config.stop_token_ids = set(work.eos_ids)

    def generate(self, prompt: Sequence[int], on_tokens: OnTokens) -> None:
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._pipeline.generate(ids, self._config, _Streamer(on_tokens))


def make(work: Work, name: str) -> OpenVinoEngine:
    """The engine on the GGUF file."""
    assert work.gguf is not None
    return OpenVinoEngine(work, work.gguf)
