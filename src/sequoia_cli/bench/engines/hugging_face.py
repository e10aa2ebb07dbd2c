"""transformers' own `generate`: plain, compiled, assisted by a draft model, or with lookups in the prompt."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig, GenerationConfig, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from sequoia_cli.bench.engines import OnTokens, Unavailable
from sequoia_cli.bench.workload import Workload
from sequoia_cli.engine.loading.devices import parse_device, parse_dtype
from sequoia_cli.engine.loading.load import load_pair, load_target

#: Tokens proposed by a lookup, as in the documentation's example.
_LOOKUP_TOKENS = 10


class _Streamer(BaseStreamer):
    """Passes tokens on, except the prompt, which comes first."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens, self._started = on_tokens, False

    def put(self, value: Tensor) -> None:
        if self._started:
            self._on_tokens(value.flatten().tolist())
        self._started = True

    def end(self) -> None:
        pass


class HuggingFaceEngine:
    """A model as transformers runs it, with the workload's sampling settings instead of the checkpoint's.

    Tokens are proposed by `assistant`, or `lookup` at a time from the prompt. With `compiled`, the cache is
    static and the forward of one token is compiled.
    """

    packages = ("torch", "transformers")

    def __init__(
        self,
        work: Workload,
        model: PreTrainedModel,
        assistant: PreTrainedModel | None = None,
        lookup: int | None = None,
        compiled: bool = False,
    ) -> None:
        self._work, self._model, self._assistant = work, model, assistant
        sampling = work.sampling
        chosen: dict[str, Any] = {"do_sample": False}
        if not sampling.greedy:
            chosen = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
            }
        if compiled:
            chosen |= {"cache_implementation": "static", "compile_config": _compile_config(model)}
        self._config = GenerationConfig(
            max_new_tokens=work.max_new_tokens,
            eos_token_id=list(work.eos_ids) or None,
            pad_token_id=work.eos_ids[0] if work.eos_ids else 0,
            prompt_lookup_num_tokens=lookup,
            **chosen,
        )
        for each in filter(None, (model, assistant)):
            each.generation_config = GenerationConfig()  # else it fills in what ours leaves unset

    @torch.inference_mode()
    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        ids = torch.tensor([list(prompt)], device=self._model.device)
        torch.manual_seed(seed)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=self._config,
            streamer=_Streamer(on_tokens),
            assistant_model=self._assistant,
        )


def make(work: Workload, name: str) -> HuggingFaceEngine:
    """Load the engine. Raises `Unavailable` for a draft that is not a language model of its own."""
    torch.set_num_threads(work.threads)
    device = parse_device(work.device)
    options: dict[str, Any] = {
        "device": device,
        "dtype": parse_dtype(work.dtype, device),
        "trust_remote_code": work.trust_remote_code,
    }
    if name == "assisted":
        return _assisted(work, options)
    model = load_target(work.target, **options).model
    if name == "transformers-compiled":
        _require_compilable(model)
        return HuggingFaceEngine(work, model, compiled=True)
    return HuggingFaceEngine(work, model, lookup=_LOOKUP_TOKENS if name == "lookup" else None)


def _assisted(work: Workload, options: dict[str, Any]) -> HuggingFaceEngine:
    draft = work.assistant or work.drafts[0]
    pair = load_pair(work.target, draft, **options)
    assistant = pair.drafts[0]
    if not isinstance(assistant.model, PreTrainedModel) or assistant.ids is not None:
        raise Unavailable(
            f"'{draft}' is no whole language model; --assistant names one that can assist "
            "(sequoia distill --kind independent --draft-vocab all makes one)"
        )
    rows, others = (model.config.get_text_config().vocab_size for model in (pair.target, assistant.model))
    if rows != others:
        # transformers takes different sizes for different tokenizers, even if the extra rows are padding.
        raise Unavailable(f"transformers cannot pair {rows} with {others} rows")
    return HuggingFaceEngine(work, pair.target, assistant.model)


def _compile_config(model: PreTrainedModel) -> CompileConfig:
    if model.device.type == "cuda":
        return CompileConfig()  # the default uses CUDA graphs
    config = CompileConfig(mode="default")
    config._compile_all_devices = True  # else transformers compiles for accelerators only
    return config


def _require_compilable(model: PreTrainedModel) -> None:
    """Raise `Unavailable` if transformers would silently run uncompiled, or fail while generating."""
    if not getattr(model, "_can_compile_fullgraph", False):
        raise Unavailable(f"transformers has no static cache for family '{model.config.model_type}'")
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    if model.device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise Unavailable("torch needs a C++ compiler to compile for a CPU: install g++")
