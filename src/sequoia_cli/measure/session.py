"""Loading and checking the models of a command, and describing them for its files."""

from __future__ import annotations

import functools
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
import transformers

from sequoia_cli import __version__
from sequoia_cli.engine.draft import Draft, IndependentDraft
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.feature_model import FeatureModel
from sequoia_cli.engine.head import output_head
from sequoia_cli.engine.integer.blocks import use_kernel
from sequoia_cli.engine.loading.cores import use_threads
from sequoia_cli.engine.loading.devices import cpu_name, parse_device, parse_dtype
from sequoia_cli.engine.loading.drafts import LoadedDraft
from sequoia_cli.engine.loading.fingerprint import fingerprint
from sequoia_cli.engine.loading.load import load_pair, load_target
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention, check_what_decodes
from sequoia_cli.engine.text import encode_prompt
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import Prompt
from sequoia_cli.measure.rounding import AS_LOADED, WEIGHTS, announce_rounding, round_models, widen

#: How models run: as in transformers; prepared for speed; or also with compiled layers.
PLAIN, FAST, COMPILED = FORWARDS = ("plain", "fast", "compiled")


@dataclass(frozen=True)
class Session:
    """The models of a command; no `drafts` if only the target was loaded.

    `target_weights` and `draft_weights` are fingerprints: they change when a model is retrained.
    """

    target: LanguageModel
    drafts: tuple[Draft, ...]
    tokenizer: Any
    eos_ids: tuple[int, ...]
    conditions: Mapping[str, Any]
    target_weights: str
    draft_weights: str | None = None

    @property
    def weights(self) -> dict[str, str | None]:
        """Both fingerprints, as conditions of a measurement."""
        return {"target_weights": self.target_weights, "draft_weights": self.draft_weights}

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the package versions of a measurement."""
        return {
            "device": device_name(self.target.device),
            "dtype": dtype_name(self.target.dtype),
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
            **packages(),
        }

    def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        """The ids of a prompt. Raises `BadInput`, naming the prompt, if the target cannot take it."""
        with prompt.named_in_errors():
            ids = encode_prompt(self.tokenizer, prompt.content, raw=raw)
            self.check_prompt(ids)
        return ids

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raise `BadInput` for more ids than the target's context holds, or ids without an embedding."""
        if len(ids) > self.target.context_limit:
            raise BadInput(
                f"it has {len(ids)} tokens, and the target's context ends at {self.target.context_limit}"
            )
        if (largest := max(ids)) >= self.target.vocabulary:
            raise BadInput(
                f"its token {self.tokenizer.convert_ids_to_tokens(largest)!r} has id {largest}, "
                f"and the target has {self.target.vocabulary} ids: its tokenizer does not belong to it"
            )


def open_session(
    target: str,
    drafts: Sequence[str],
    *,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    forward: str = PLAIN,
    quantize: str = AS_LOADED,
    quantize_draft: str | None = None,
    threads: int | None = None,
    progress: bool = False,
    announce: Callable[[str], None] = lambda line: None,
) -> Session:
    """Load and check a target and its drafts, of which there may be none.

    `forward` is one of `FORWARDS`. Except with `PLAIN`, the weights are repacked and can no longer be read.
    `COMPILED` falls back to `FAST` where compiling is impossible or not worth it. `quantize` and
    `quantize_draft` are of `WEIGHTS`; the draft's defaults to the target's. `threads` are CPU threads, by
    default as many as this process may use cores.

    `announce` gets notes about slow operations and findings; `progress` allows progress bars of downloads.

    Raises `BadInput` or `SequoiaError`, naming the model and the reason.
    """
    announce = functools.cache(announce)  # drafts often repeat the target's notes
    check_forward(forward)
    _expect("--quantize", quantize, WEIGHTS)
    quantize_draft = quantize if quantize_draft is None else quantize_draft
    _expect("--quantize-draft", quantize_draft, WEIGHTS)
    # The loader reports what these libraries would log.
    transformers.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not progress:
        transformers.logging.disable_progress_bar()  # includes those of downloads from the hub
    place = parse_device(device)
    width = parse_dtype(dtype, place)
    if place.type == "cpu" or threads is not None:
        use_threads(threads, announce)
    options: dict[str, Any] = {
        "dtype": width,
        "device": place,
        "trust_remote_code": trust_remote_code,
        "announce": announce,
    }
    if not drafts:
        alone = load_target(target, **options)
        loaded, tokenizer, eos_ids, notes = alone.model, alone.tokenizer, alone.eos_ids, alone.notes
        drafted = []
    else:
        pair = load_pair(target, *drafts, **options)
        loaded, tokenizer, eos_ids, notes = pair.target, pair.tokenizer, pair.eos_ids, pair.notes
        drafted = list(pair.drafts)
    for note in notes:
        announce(note)
    target_weights = fingerprint(loaded)
    draft_weights = " + ".join(draft.fingerprint for draft in drafted) or None
    wanted = {loaded: quantize, **{one.model: quantize_draft for one in drafted}}
    if rounded := round_models(loaded, target, wanted, announce):
        announce_rounding(loaded if loaded in rounded else None, place, forward == COMPILED, announce)
        if dtype == "auto" and place.type == "cpu":
            widen(wanted, loaded)
            width = loaded.dtype
        if forward == COMPILED:
            for module in rounded:
                use_kernel(module, announce)
    model = LanguageModel(loaded)
    check_tree_attention(model, f"target '{target}'")
    made = tuple(make_draft(draft, model) for draft in drafted)
    for one, draft in zip(drafted, made, strict=True):
        if draft.context_limit < model.context_limit:
            announce(
                f"{one.source} has a context of {draft.context_limit} tokens and target '{target}' of "
                f"{model.context_limit}: beyond it nothing is drafted"
            )
    forward = prepare(model, made, forward, announce)
    if forward != PLAIN:
        check_what_decodes(model, f"target '{target}'")
        for one, draft in zip(drafted, made, strict=True):
            if isinstance(draft, IndependentDraft):
                check_what_decodes(draft.model, str(one.source))
    conditions = {
        "target": target,
        "draft": " + ".join(drafts) or None,
        "dtype": dtype_name(width),
        "quantize": quantize,
        "quantize_draft": quantize_draft if drafts else None,
        "forward": forward,
        "device": device_name(place),
        "threads": torch.get_num_threads() if place.type == "cpu" else None,
    }
    return Session(
        model,
        made,
        tokenizer,
        eos_ids,
        {key: value for key, value in conditions.items() if value is not None},
        target_weights,
        draft_weights,
    )


def prepare(
    target: LanguageModel, drafts: Sequence[Draft], forward: str, announce: Callable[[str], None]
) -> str:
    """Prepare models, irreversibly, to run as `forward` says; returns the forward in effect."""
    if forward == PLAIN:
        return PLAIN
    target.make_fast()
    for draft in drafts:
        draft.make_fast()
    if forward == FAST:
        return FAST
    once = functools.cache(announce)
    compiled = [target.compile(once), *(draft.compile(once) for draft in drafts)]
    return COMPILED if any(compiled) else FAST


def check_forward(forward: str) -> None:
    """Raise `BadInput` if `forward` is not one of `FORWARDS`."""
    _expect("--forward", forward, FORWARDS)


def _expect(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise BadInput(f"{flag} is '{value}'; expected {' or '.join(known)}")


def make_draft(loaded: LoadedDraft, target: LanguageModel) -> Draft:
    """Wrap a loaded draft for the engine. Raises `BadInput` if it or its target does not support that."""
    if isinstance(loaded.model, FeatureModel):
        whole = output_head(target, f"the target of {loaded.source}")
        head = whole.only(loaded.ids) if loaded.ids is not None else whole
        embedding = target.model.get_input_embeddings()
        return FeatureDraft(loaded.model, embedding, head, target.context_limit, loaded.ids)
    model = LanguageModel(loaded.model)
    check_tree_attention(model, str(loaded.source))
    return IndependentDraft(model, target.vocabulary, loaded.ids)


def packages() -> dict[str, str]:
    """Versions of the packages that affect speed and numbers."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # yaml refuses its subclass of str
        "transformers": version("transformers"),
        "sequoia": __version__,
    }


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16` for `torch.bfloat16`."""
    return str(dtype).removeprefix("torch.")


def device_name(device: torch.device) -> str:
    """The name of the chip."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {torch.get_num_threads()} threads"
