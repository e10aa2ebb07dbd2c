"""A pair of models made ready for a command: loaded, tested, wrapped, and described for the files."""

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
from transformers import PreTrainedModel

from sequoia_cli import __version__
from sequoia_cli.engine.draft import Draft, IndependentDraft
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.feature_model import FeatureModel
from sequoia_cli.engine.head import output_head
from sequoia_cli.engine.integer.blocks import use_kernel
from sequoia_cli.engine.integer.quantise import quantise, share_left
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

#: The share of weights left unrounded that is worth a word.
_MUCH = 0.1

#: How models run: as transformers does, prepared for speed, or that with their layers compiled.
PLAIN, FAST, COMPILED = FORWARDS = ("plain", "fast", "compiled")
#: Their weights: as they are loaded, or rounded to 8 bits.
AS_LOADED, INT8 = WEIGHTS = ("none", "int8")


@dataclass(frozen=True)
class Session:
    """What a command works with. There are no `drafts` where only the target was loaded.

    `target_weights` and `draft_weights` tell models from themselves before another training (see
    `fingerprint`).
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
        """Both fingerprints, as conditions."""
        return {"target_weights": self.target_weights, "draft_weights": self.draft_weights}

    @property
    def environment(self) -> dict[str, Any]:
        """The machine and the versions that a measurement was made with."""
        return {
            "device": device_name(self.target.device),
            "dtype": dtype_name(self.target.dtype),
            "threads": torch.get_num_threads(),
            "platform": platform.platform(),
            **packages(),
        }

    def encode(self, prompt: Prompt, *, raw: bool) -> list[int]:
        """The ids of a prompt. Raises `BadInput` naming the prompt where the target cannot take it."""
        with prompt.named_in_errors():
            ids = encode_prompt(self.tokenizer, prompt.content, raw=raw)
            self.check_prompt(ids)
        return ids

    def check_prompt(self, ids: Sequence[int]) -> None:
        """Raise `BadInput` for ids that the target has no embedding for, or more than its context holds."""
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
    """Load and test a target and its drafts, of which there may be none.

    `forward` is one of `FORWARDS`. But for `PLAIN`, models have no weights to read any more; `COMPILED` comes
    to `FAST` where it cannot be done or does not pay. `quantize` and `quantize_draft` say what products are
    rounded to, the draft's as the target's where nothing else is said. `threads` are those of the CPU, else
    as many as this process may use cores.

    `announce` is told what takes long and what was found out; `progress` lets downloads show their bars.

    Raises `BadInput` or `SequoiaError` saying which model, and why.
    """
    announce = functools.cache(announce)  # what is said of the target's layers holds for a draft's
    check_forward(forward)
    _expect("--quantize", quantize, WEIGHTS)
    quantize_draft = quantize if quantize_draft is None else quantize_draft
    _expect("--quantize-draft", quantize_draft, WEIGHTS)
    # Both libraries tell in their own words what the loader says in ours.
    transformers.logging.set_verbosity_error()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not progress:
        transformers.logging.disable_progress_bar()  # and, with its own, those of downloads from the hub
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
    wanted = [(loaded, quantize), *((one.model, quantize_draft) for one in drafted)]
    if rounded := [module for module, weights in wanted if weights == INT8]:
        quantise(*rounded)
        _tell_of_rounding(loaded if quantize == INT8 else None, place, forward, announce)
        if dtype == "auto" and place.type == "cpu":
            # The remaining weights are few, and the kernel runs whole layers in float32 only.
            for module, weights in wanted:
                # A draft that reads the target's hidden states has their dtype.
                follows = isinstance(module, FeatureModel)
                if quantize == INT8 if follows else weights == INT8:
                    module.float()
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


def _tell_of_rounding(
    target: PreTrainedModel | None, place: torch.device, forward: str, announce: Callable[[str], None]
) -> None:
    """Say what a user of `--quantize` may not expect; `target` is the rounded one, if it is."""
    if place.type != "cpu":
        announce("8-bit weights are another model here and a slower one: only a CPU has products for them")
    elif forward != COMPILED:
        announce(f"products of 8-bit integers are slow with --forward {forward}")
    if target is not None and (left := share_left(target)) > _MUCH:
        announce(f"{left:.0%} of the target's weights are not in plain linear layers and are not rounded")


def prepare(
    target: LanguageModel, drafts: Sequence[Draft], forward: str, announce: Callable[[str], None]
) -> str:
    """Make models run as `forward` says, once and for good; returns what it came to: see `open_session`."""
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
    """Raise `BadInput` for what is none of `FORWARDS`."""
    _expect("--forward", forward, FORWARDS)


def _expect(flag: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise BadInput(f"{flag} is '{value}'; expected {' or '.join(known)}")


def make_draft(loaded: LoadedDraft, target: LanguageModel) -> Draft:
    """A loaded draft as the engine uses it. Raises `BadInput` where it or its target is not up to that."""
    if isinstance(loaded.model, FeatureModel):
        whole = output_head(target, f"the target of {loaded.source}")
        head = whole.only(loaded.ids) if loaded.ids is not None else whole
        embedding = target.model.get_input_embeddings()
        return FeatureDraft(loaded.model, embedding, head, target.context_limit, loaded.ids)
    model = LanguageModel(loaded.model)
    check_tree_attention(model, str(loaded.source))
    return IndependentDraft(model, target.vocabulary, loaded.ids)


def packages() -> dict[str, str]:
    """Versions of what decides speed and numbers."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # a subclass that yaml refuses
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
