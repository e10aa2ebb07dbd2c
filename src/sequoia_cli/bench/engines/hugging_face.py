"""transformers' own `generate`: plain, assisted by a draft model, or with lookups in the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
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

    `assistant` proposes tokens, or the prompt does, `lookup` at a time.
    """

    packages = ("torch", "transformers")

    def __init__(
        self,
        work: Work,
        model: PreTrainedModel,
        assistant: PreTrainedModel | None = None,
        lookup: int | None = None,
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
    def generate(self, prompt: Sequence[int], on_tokens: OnTokens) -> None:
        ids = torch.tensor([list(prompt)], device=self._model.device)
        torch.manual_seed(self._work.seed)
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
    if name != "assisted":
        lookup = _LOOKUP_TOKENS if name == "lookup" else None
        return HuggingFaceEngine(work, load_target(work.target, **options).model, lookup=lookup)
    draft = work.assistant or work.drafts[0]
    pair = load_pair(work.target, draft, **options)
    assistant = pair.drafts[0]
    if not isinstance(assistant.model, PreTrainedModel) or assistant.ids is not None:
        raise Unavailable(f"'{draft}' is no whole language model; --assistant names one that can assist")
    return HuggingFaceEngine(work, pair.target, assistant.model)
