"""Faults that the field has shipped, each planted in the engine: `FAULTS[name](monkeypatch)`.

Drawing noise once a prompt and 16-bit sampling keys are in published code, the others in users' reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from pytest import MonkeyPatch

from sequoia_cli.check import run
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine import continuation, masks, warp
from sequoia_cli.engine.cache import TreeCache
from sequoia_cli.engine.draw import draw, draw_children, top_children
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.trial import Trial
from sequoia_cli.engine.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.verify import verify


def reused_noise(patch: MonkeyPatch) -> None:
    def step(text, eos_ids):
        text.first = getattr(text, "first", text.generator.get_state() if text.generator else None)
        if text.generator:
            text.generator.set_state(text.first)
        return right(text, eos_ids)

    right = continuation.Continuation.step
    patch.setattr(continuation.Continuation, "step", step)


def residual_kept(patch: MonkeyPatch) -> None:
    patch.setattr(Trial, "_update", lambda trial: setattr(trial, "_stale", False))


def always_accepted(patch: MonkeyPatch) -> None:
    patch.setattr(Trial, "chance", lambda trial, token: 1.0)


def last_token_of_the_draft(patch: MonkeyPatch) -> None:
    """The token behind an accepted leaf comes from the law that the leaf was drawn from."""

    def judge(tokens, target_probs, drawn, uniforms):
        verdict = verify(tokens, target_probs, drawn, uniforms)
        if len(verdict.path) < 2 or drawn(verdict.path[-1]):
            return verdict
        law = drawn(verdict.path[-2])[0].probs
        return type(verdict)(verdict.path, draw(law, uniforms[-1]))

    _verifier(patch, replace(SEQUOIA, judge=judge))


def draft_nucleus_not_told(patch: MonkeyPatch) -> None:
    def cut(probs, counts, noise):
        kept = warp._nucleus(probs, 0.5)
        return draw_children(kept / kept.sum(-1, keepdim=True), counts, noise)

    _verifier(patch, replace(SEQUOIA, draw=cut))


def top_children_as_if_drawn(patch: MonkeyPatch) -> None:
    # Not `top_children` itself: where that draws, the engine knows that nobody will ask for probabilities.
    _verifier(patch, replace(SEQUOIA, draw=lambda *arguments: top_children(*arguments)))


def half_precision_keys(patch: MonkeyPatch) -> None:
    """Keys log(u) / q in float16, as published: those of improbable tokens overflow, and are all the same."""

    def keyed(probs, counts, noise):
        seed = int(float(noise[0, 0]) * 2**53)
        generator = torch.Generator().manual_seed(seed)
        uniforms = torch.rand(probs.shape, generator=generator).clamp(1e-6, 1 - 1e-3)
        keys = uniforms.half().log() / probs.half()
        return [keys[row].topk(count).indices for row, count in enumerate(counts)]

    _verifier(patch, replace(SEQUOIA, draw=keyed))


def another_temperature(patch: MonkeyPatch) -> None:
    right = continuation.probabilities
    patch.setattr(continuation, "probabilities", lambda logits, sampling: right(logits, Sampling(0.5)))


def side_branch_kept(patch: MonkeyPatch) -> None:
    keep = TreeCache.keep
    patch.setattr(TreeCache, "keep", lambda cache, prefix, path: keep(cache, prefix, range(len(path))))


def open_mask(patch: MonkeyPatch) -> None:
    def opened(mask, block, *arguments, **options):
        right(mask, torch.ones_like(block).tril(), *arguments, **options)

    right = masks.TreeMask.__init__
    patch.setattr(masks.TreeMask, "__init__", opened)


def positions_by_row(patch: MonkeyPatch) -> None:
    def by_row(model, tokens, positions, cache, masks, **options):
        if masks is not None:
            positions = torch.arange(cache.length, cache.length + len(tokens))
        return right(model, tokens, positions, cache, masks, **options)

    right = LanguageModel.forward
    patch.setattr(LanguageModel, "forward", by_row)


def end_run_past(patch: MonkeyPatch) -> None:
    patch.setattr(continuation, "cut", lambda tokens, eos_ids, most: list(tokens)[:most])


def _verifier(patch: MonkeyPatch, wrong: Verifier) -> None:
    """What is checked runs by another verifier than it says."""
    right = run.Watched
    patch.setattr(run, "Watched", lambda *parts, verifier: right(*parts, verifier=wrong))


LAWS: dict[str, Callable[[MonkeyPatch], None]] = {
    "noise reused across steps": reused_noise,
    "residual not updated": residual_kept,
    "every proposal accepted": always_accepted,
    "last token from the draft's law": last_token_of_the_draft,
    "draft's top-p not in q": draft_nucleus_not_told,
    "top children as if drawn": top_children_as_if_drawn,
    "sampling keys in float16": half_precision_keys,
    "another temperature": another_temperature,
}
TEXTS: dict[str, Callable[[MonkeyPatch], None]] = {
    "rows of a side branch kept": side_branch_kept,
    "siblings see each other": open_mask,
    "positions counted by row": positions_by_row,
    "end of text run past": end_run_past,
}
FAULTS = {**LAWS, **TEXTS}
