"""llama.cpp through llama-cpp-python, on the target's GGUF file."""

from __future__ import annotations

from collections.abc import Sequence

from llama_cpp import Llama

from sequoia_cli.bench.engines import OnTokens
from sequoia_cli.bench.work import Work


class LlamaCppEngine:
    """One context, emptied for each prompt."""

    packages = ("llama-cpp-python",)

    def __init__(self, work: Work, path: str) -> None:
        self._work = work
        self._model = Llama(
            path,
            n_ctx=work.longest + 8,
            n_threads=work.threads,
            n_threads_batch=work.threads,
            seed=work.seed & 0x7FFFFFFF,
            verbose=False,
        )

    def generate(self, prompt: Sequence[int], on_tokens: OnTokens) -> None:
        work, sampling = self._work, self._work.sampling
        # What is there for other sampling rules is switched off.
        tokens = self._model.generate(
            list(prompt),
            temp=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p,
            min_p=0.0,
            repeat_penalty=1.0,
        )
        for count, token in enumerate(tokens, 1):
            on_tokens([token])
            if count == work.max_new_tokens or token in work.eos_ids:
                return


def make(work: Work, name: str) -> LlamaCppEngine:
    """The engine on the GGUF file."""
    assert work.gguf is not None
    return LlamaCppEngine(work, work.gguf)
