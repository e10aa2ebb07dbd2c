"""Texts that tiny targets wrote, for the tests of making drafts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from models import tiny_model
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.objective import Heads
from sequoia_cli.distill.scripts import GeneratedPart, GivenPart, Script
from sequoia_cli.distill.writing import write
from sequoia_cli.engine.head import OutputHead, output_head
from sequoia_cli.engine.model import LanguageModel

#: Options with which `sequoia distill` is done in a moment.
SMALL = (
    *("--dtype", "float32", "--rows", "8", "--length", "48", "--tokens", "1500", "--epochs", "1"),
    *("--batch-tokens", "400", "--max-new-tokens", "16", "--layers", "1"),
)


def target_of(family: str = "llama", dtype: torch.dtype = torch.float64, **options) -> LanguageModel:
    """A tiny target as the engine uses it."""
    return LanguageModel(tiny_model(family, **options).to(dtype))


def from_start(temperature: float = 1.0, most: int = 1 << 40, ends: Sequence[int] = ()) -> Script:
    """A text that begins with token 1 and that the target writes."""
    return [GivenPart((1,)), GeneratedPart(most, frozenset(ends), temperature, True)]


def written(target: LanguageModel, script: Script | None = None, rows=8, length=24, seed=0) -> list[Text]:
    """Texts of one script, again and again."""
    scripts = itertools.repeat(script or from_start())
    return write(target, scripts, rows, length, torch.Generator().manual_seed(seed))


def heads_of(target: LanguageModel, ids: Sequence[int] | None = None, own: OutputHead | None = None) -> Heads:
    """The target's head for some ids, or all; `own` is the draft's for all ids where it has its own."""
    full = output_head(target, "the target")
    kept = torch.tensor(ids) if ids is not None else torch.arange(len(full.weight))
    cut = full.only(kept)
    return Heads(kept, own.only(kept) if own else cut, cut, full)


def own_states(target: LanguageModel, tokens: torch.Tensor) -> torch.Tensor:
    """(n, width) last hidden states of the model's own plain forward over (n,) tokens."""
    with torch.no_grad():
        output = target.model(input_ids=tokens.long()[None], use_cache=False, output_hidden_states=True)
    return output.hidden_states[-1][0]
