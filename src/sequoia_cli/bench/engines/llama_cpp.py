"""llama.cpp through llama-cpp-python, on the target's GGUF file: plain, or with lookups in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from sequoia_cli.bench.engines import OnTokens
from sequoia_cli.bench.workload import Workload

#: Tokens proposed by a lookup, as its documentation recommends for a CPU.
_LOOKUP_TOKENS = 2


class LlamaCppEngine:
    """One context, reset for each prompt. `lookup` tokens at a time are proposed from the text so far."""

    packages = ("llama-cpp-python",)

    def __init__(self, work: Workload, path: str, lookup: int | None = None) -> None:
        self._work = work
        proposals = {"draft_model": LlamaPromptLookupDecoding(num_pred_tokens=lookup)} if lookup else {}
        self._model = Llama(
            path,
            n_ctx=work.longest + 8 + (lookup or 0),
            n_threads=work.threads,
            n_threads_batch=work.threads,
            verbose=False,
            **proposals,
        )

    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        work, sampling, model = self._work, self._work.sampling, self._model
        model.reset()  # else a prefix shared with the prompt before is not prefilled again
        model.set_seed(seed)
        # Other sampling rules are off.
        tokens = model.generate(
            list(prompt),
            temp=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p,
            min_p=0.0,
            repeat_penalty=1.0,
        )
        steps = _Steps(model, on_tokens)
        for count, token in enumerate(tokens, 1):
            steps.add(token)
            if count == work.max_new_tokens or token in work.eos_ids:
                break
        steps.close()


class _Steps:
    """Groups tokens by forward: passes on together those accepted between two forwards."""

    def __init__(self, model: Any, on_tokens: OnTokens) -> None:
        self._model, self._on_tokens, self._tokens = model, on_tokens, list[int]()
        run = model.eval

        def eval_(tokens: Sequence[int]) -> None:
            self._pass_on()
            run(tokens)

        model.eval = eval_  # on the instance; `close` removes it again

    def add(self, token: int) -> None:
        """Add a token."""
        self._tokens.append(token)

    def close(self) -> None:
        """Pass on the remaining tokens."""
        self._pass_on()
        del self._model.eval

    def _pass_on(self) -> None:
        if self._tokens:
            self._on_tokens(self._tokens)
            self._tokens = []


def make(work: Workload, name: str) -> LlamaCppEngine:
    """Load the engine with the GGUF file."""
    assert work.gguf is not None
    return LlamaCppEngine(work, work.gguf, _LOOKUP_TOKENS if name == "llama.cpp-lookup" else None)
