"""vLLM, stepped token by token so that times are its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import packages_distributions
from itertools import count

# Before it is imported: in this process, whose memory is measured, and with room for one text, not for many.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

from vllm import LLM, SamplingParams

from sequoia_cli.bench.engines import OnTokens
from sequoia_cli.bench.work import Work


class VllmEngine:
    """One request at a time."""

    packages = (*packages_distributions()["vllm"], "torch", "transformers")  # the CPU build has another name

    def __init__(self, work: Work) -> None:
        self._engine = LLM(
            work.folder,
            dtype=work.dtype,
            max_model_len=work.longest + 8,
            max_num_seqs=1,
            trust_remote_code=work.trust_remote_code,
            seed=work.seed & 0x7FFFFFFF,
            generation_config="vllm",  # nothing of the checkpoint's own sampling settings
            disable_log_stats=True,
        ).llm_engine
        sampling = work.sampling
        self._parameters = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k or -1,
            max_tokens=work.max_new_tokens,
            stop_token_ids=list(work.eos_ids),
            ignore_eos=not work.eos_ids,
            detokenize=False,
        )
        self._numbers = count()

    def generate(self, prompt: Sequence[int], on_tokens: OnTokens) -> None:
        name = str(next(self._numbers))
        self._engine.add_request(name, {"prompt_token_ids": list(prompt)}, self._parameters)
        seen = 0
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                tokens = output.outputs[0].token_ids
                if len(tokens) > seen:
                    on_tokens(list(tokens[seen:]))
                    seen = len(tokens)


def make(work: Work, name: str) -> VllmEngine:
    """The engine on the target's folder."""
    return VllmEngine(work)
