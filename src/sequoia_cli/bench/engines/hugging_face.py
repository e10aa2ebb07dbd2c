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
from sequoia_cli.bench.work import Work
from sequoia_cli.engine.loading.devices import parse_device, parse_dtype
from sequoia_cli.engine.loading.load import load_pair, load_target

#: Tokens that a lookup proposes at a time: what the documentation's example takes.
_LOOKUP_TOKENS = 10


class _Streamer(BaseStreamer):
    """Passes tokens on; the first that come are the prompt."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens, self._started = on_tokens, False

    def put(self, value: Tensor) -> None:
        if self._started:
            self._on_tokens(value.flatten().tolist())
        self._started = True

    def end(self) -> None:
        pass


class HuggingFaceEngine:
    """A model as transformers runs it, with nothing of its checkpoint's sampling settings but the work's.

    `assistant` proposes tokens, or the prompt does, `lookup` at a time. With `compiled`, the cache is static
    and the forward of a token compiled.
    """

    packages = ("torch", "transformers")

    def __init__(
        self,
        work: Work,
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
            each.generation_config = GenerationConfig()  # else what it says fills the gaps in ours

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


def make(work: Work, name: str) -> HuggingFaceEngine:
    """Raises `Unavailable` for a draft that is no language model of its own."""
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


def _assisted(work: Work, options: dict[str, Any]) -> HuggingFaceEngine:
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
        # It takes different sizes for different tokenizers, even where the other rows are padding.
        raise Unavailable(f"transformers cannot pair {rows} with {others} rows")
    return HuggingFaceEngine(work, pair.target, assistant.model)


def _compile_config(model: PreTrainedModel) -> CompileConfig:
    if model.device.type == "cuda":
        return CompileConfig()  # CUDA graphs, which the default asks for
    config = CompileConfig(mode="default")
    config._compile_all_devices = True  # else transformers compiles for accelerators only
    return config


def _require_compilable(model: PreTrainedModel) -> None:
    """Raise `Unavailable` where transformers would run uncompiled instead, or fail in the middle."""
    if not getattr(model, "_can_compile_fullgraph", False):
        raise Unavailable(f"transformers has no static cache for family '{model.config.model_type}'")
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    if model.device.type == "cpu" and not any(map(shutil.which, compilers)):
        raise Unavailable("torch needs a C++ compiler to compile for a CPU: install g++")
