"""vLLM, run step by step to time each step: plain, or with tokens proposed from the text so far."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from itertools import count
from typing import Any

from sequoia_cli.bench.engines import OnTokens, Unavailable
from sequoia_cli.bench.workload import Workload

#: Speculation settings, as in the documentation's examples. Suffixes of earlier answers are not cached: in
#: the second round they would contain the whole text.
SPECULATION: dict[str, dict[str, Any]] = {
    "vllm-ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
    "vllm-suffix": {
        "method": "suffix",
        "num_speculative_tokens": 32,
        "suffix_decoding_max_cached_requests": 0,
    },
}


class VllmEngine:
    """One request at a time."""

    def __init__(self, work: Workload, speculation: dict[str, Any] | None = None) -> None:
        _set_environment(work.threads)
        import vllm

        # The CPU build has another name.
        self.packages = (*packages_distributions().get("vllm", ()), "torch", "transformers")
        self._work, self._library = work, vllm
        self._engine = vllm.LLM(
            work.folder,
            dtype=work.dtype,
            max_model_len=work.longest + 8,
            max_num_seqs=1,
            trust_remote_code=work.trust_remote_code,
            generation_config="vllm",  # not the checkpoint's sampling settings
            enable_prefix_caching=False,  # prompts are repeated each round and must be prefilled again
            disable_log_stats=True,
            speculative_config=speculation,
        ).llm_engine
        self._numbers = count()

    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        name = str(next(self._numbers))
        self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, self._parameters(seed))
        seen = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens = output.outputs[0].token_ids
                if len(tokens) > seen:
                    on_tokens(list(tokens[seen:]))
                    seen = len(tokens)

    def _parameters(self, seed: int) -> Any:
        work, sampling = self._work, self._work.sampling
        return self._library.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            min_p=0.0,
            repetition_penalty=1.0,
            seed=seed,
            max_tokens=work.max_new_tokens,
            stop_token_ids=list(work.eos_ids),
            ignore_eos=not work.eos_ids,
            detokenize=False,
        )


def _set_environment(threads: int) -> None:
    """Set the environment variables that vLLM reads on import.

    Its CPU build binds its threads to all cores but one, which it reserves for its scheduler. Here the
    scheduler runs in the same process, in turns with the threads; unbound, there are OMP_NUM_THREADS of them.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # In this process, whose memory is measured, and with a cache for one text.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


def make(work: Workload, name: str) -> VllmEngine:
    """Load the engine. Raises `Unavailable` for suffix decoding without its package."""
    if name == "vllm-suffix" and find_spec("arctic_inference") is None:
        raise Unavailable("vLLM's suffix decoding needs the package arctic-inference, which is not installed")
    return VllmEngine(work, SPECULATION.get(name))
