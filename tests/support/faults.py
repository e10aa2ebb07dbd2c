"""Faults that the field has shipped, each planted in the engine: `FAULTS[name](monkeypatch)`.

Drawing noise once a prompt and 16-bit sampling keys are in published code, the others in users' reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch
from pytest import MonkeyPatch

from sequoia_cli.check import run
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.engine import decode, masks, warp
from sequoia_cli.engine import model as model_module
from sequoia_cli.engine.cache import TreeCache, TreeLayer
from sequoia_cli.engine.draw import draw, draw_children, top_children
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification import at_once
from sequoia_cli.engine.verification.residual import ResidualRule
from sequoia_cli.engine.verification.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.verification.walk import verify


def reused_noise(patch: MonkeyPatch) -> None:
    def step(text, eos_ids):
        text.first = getattr(text, "first", text.generator.get_state() if text.generator else None)
        if text.generator:
            text.generator.set_state(text.first)
        return right(text, eos_ids)

    right = decode.DecodedText.step
    patch.setattr(decode.DecodedText, "step", step)


def residual_kept(patch: MonkeyPatch) -> None:
    patch.setattr(ResidualRule, "_update", lambda trial: setattr(trial, "_stale", False))


def always_accepted(patch: MonkeyPatch) -> None:
    patch.setattr(ResidualRule, "chance", lambda trial, token: 1.0)


def last_token_of_the_draft(patch: MonkeyPatch) -> None:
    """The token after an accepted leaf comes from the distribution that the leaf was drawn from."""

    def judge(tokens, target_probs, drawn, uniforms):
        verdict = verify(tokens, target_probs, drawn, uniforms)
        if len(verdict.path) < 2 or drawn(verdict.path[-1]):
            return verdict
        probs = drawn(verdict.path[-2])[0].probs
        return type(verdict)(verdict.path, draw(probs, uniforms[-1]))

    _verifier(patch, replace(SEQUOIA, judge=judge))


def draft_nucleus_not_in_q(patch: MonkeyPatch) -> None:
    def cut(probs, counts, noise):
        kept = probs.masked_fill(warp._outside(probs.log(), 0.5, exact_ties=True), 0)
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


def _warped(change: Callable[[Sampling], Sampling]) -> Callable[[MonkeyPatch], None]:
    """The engine warps the target's logits, wherever it does, by another sampling than was asked for."""

    def plant(patch: MonkeyPatch) -> None:
        right = warp.probabilities

        def wrong(logits, sampling):
            return right(logits, sampling if sampling.greedy else change(sampling))

        for module in (warp, decode, at_once):
            patch.setattr(module, "probabilities", wrong)

    return plant


def same_noise_for_every_text(patch: MonkeyPatch) -> None:
    """Texts differ in their first step by nothing: each starts from the same numbers."""
    _reseeded(patch, lambda prompt, number: 0)


def same_noise_for_every_prompt(patch: MonkeyPatch) -> None:
    """The texts of one number, of all prompts, are drawn by the same numbers."""
    _reseeded(patch, lambda prompt, number: number)


def _reseeded(patch: MonkeyPatch, seed: Callable[[tuple[int, ...], int], int]) -> None:
    def start(text, decoder, prompt, budget, generator):
        counts[tuple(prompt)] += 1
        if generator is not None:
            generator.manual_seed(seed(tuple(prompt), counts[tuple(prompt)]))
        right(text, decoder, prompt, budget, generator)

    counts: Counter[tuple[int, ...]] = Counter()
    right = decode.DecodedText.__init__
    patch.setattr(decode.DecodedText, "__init__", start)


def second_piece_from_position_0(patch: MonkeyPatch) -> None:
    """Positions of a prompt start again with each prefill piece."""

    def run(model, tokens, positions, *arguments):
        if arguments[-1] == 1:  # only a prefill keeps the logits of one row
            positions = positions - positions[0, 0]
        return right(model, tokens, positions, *arguments)

    right = LanguageModel._run
    patch.setattr(LanguageModel, "_run", run)


def row_between_pieces_dropped(patch: MonkeyPatch) -> None:
    """The last token of a whole prefill piece is not run."""

    def pieces(tokens):
        for rows in right(tokens):
            whole = rows.stop - rows.start == model_module.PREFILL_TOKENS
            yield slice(rows.start, rows.stop - 1) if whole and rows.stop < tokens else rows

    def zeroed(layer, keys, values):
        begin(layer, keys, values)
        layer.keys.zero_()  # the missing row is read, and what memory held there may be no number
        layer.values.zero_()

    right, begin = model_module.prefill_pieces, TreeLayer.lazy_initialization
    patch.setattr(model_module, "prefill_pieces", pieces)
    patch.setattr(TreeLayer, "lazy_initialization", zeroed)


def side_branch_kept(patch: MonkeyPatch) -> None:
    keep = TreeCache.keep
    patch.setattr(TreeCache, "keep", lambda cache, prefix, path: keep(cache, prefix, range(len(path))))


def open_mask(patch: MonkeyPatch) -> None:
    def opened(mask, block, **options):
        opened = copy(block)
        opened.allowed = torch.ones_like(block.allowed).tril(block.allowed.shape[1] - len(block.allowed))
        right(mask, opened, **options)

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
    patch.setattr(decode, "cut", lambda tokens, eos_ids, most: list(tokens)[:most])


def _verifier(patch: MonkeyPatch, wrong: Verifier) -> None:
    """What is checked runs by another verifier than it says."""
    right = run.ObservedDecoder
    patch.setattr(run, "ObservedDecoder", lambda *parts, verifier: right(*parts, verifier=wrong))


DISTRIBUTIONS: dict[str, Callable[[MonkeyPatch], None]] = {
    "noise reused across steps": reused_noise,
    "residual not updated": residual_kept,
    "every proposal accepted": always_accepted,
    "last token from the draft's distribution": last_token_of_the_draft,
    "draft's top-p not in q": draft_nucleus_not_in_q,
    "top children as if drawn": top_children_as_if_drawn,
    "sampling keys in float16": half_precision_keys,
    "another temperature": _warped(lambda asked: replace(asked, temperature=asked.temperature / 2)),
    "another top-k": _warped(lambda asked: replace(asked, top_k=max(1, asked.top_k - 2))),
    "another top-p": _warped(lambda asked: replace(asked, top_p=asked.top_p / 1.5)),
    "top-p left out": _warped(lambda asked: replace(asked, top_p=1.0)),
    "same noise for every text": same_noise_for_every_text,
    "same noise for every prompt": same_noise_for_every_prompt,
}
TEXTS: dict[str, Callable[[MonkeyPatch], None]] = {
    "rows of a side branch kept": side_branch_kept,
    "siblings see each other": open_mask,
    "positions counted by row": positions_by_row,
    "second piece from position 0": second_piece_from_position_0,
    "row between pieces dropped": row_between_pieces_dropped,
    "end of text run past": end_run_past,
}
FAULTS = {**DISTRIBUTIONS, **TEXTS}
