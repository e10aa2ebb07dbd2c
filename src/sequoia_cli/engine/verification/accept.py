"""What the target accepts of a drafted tree: at one look, or node after node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.finite import NotFinite, checked, not_finite
from sequoia_cli.engine.grow import Grown
from sequoia_cli.engine.merge import Merged, merge, unmerged
from sequoia_cli.engine.step import VERIFY, Stopwatch
from sequoia_cli.engine.target import Output, TargetText
from sequoia_cli.engine.upload import upload
from sequoia_cli.engine.verification.walk import Verdict, verify_greedy, verify_matching

if TYPE_CHECKING:
    from sequoia_cli.engine.decode import Decoder


@dataclass(frozen=True)
class Drafted:
    """The tree of one step, with its tokens (nodes,) on the device, and what it was made of."""

    tree: TokenTree
    tokens: Tensor
    grown: Sequence[Grown]
    merged: Merged | None

    @classmethod
    def of(cls, grown: Sequence[Grown], root: int, device: torch.device) -> Drafted:
        """The trees of all drafts as one; without drafts, the root alone."""
        if not grown:
            return cls(ROOT_ONLY, torch.full((1,), root, dtype=torch.long, device=device), (), None)
        if len(grown) == 1:
            return cls(grown[0].tree, grown[0].tokens, grown, None)
        # To merge trees the host reads their tokens, here and now.
        merged = merge([one.tree for one in grown], [one.tokens.tolist() for one in grown])
        return cls(merged.tree, upload(merged.tokens, device), grown, merged)

    def sources(self, ids: Sequence[int]) -> Merged:
        """Which node of which draft each node is; `ids` are the tokens, read by the host."""
        return self.merged or unmerged(self.tree, ids)


def accept(
    decoder: Decoder,
    drafted: Drafted,
    logits: Tensor,
    text: Sequence[int],
    uniforms: Tensor,
    watch: Stopwatch,
) -> tuple[Sequence[int], Verdict]:
    """The tokens of all nodes, and what the target accepts by its (nodes, vocabulary) logits.

    `text` are the ids up to the root. Here the host waits for the device. Raises `NotFinite` for a draft, or
    for a node that the walk reaches.
    """
    grown, tree = drafted.grown, drafted.tree
    ids: Sequence[int]
    if decoder.sampling.greedy and decoder.distribution is None:
        best = logits.max(-1)  # argmax is slower; NaN is the largest
        queued = torch.stack((drafted.tokens, best.indices.where(best.values.isfinite(), -1)))
        watch.lap(VERIFY)
        ids, chosen = _read(queued, grown)
        verdict = verify_greedy(tree, ids, chosen)
    elif decoder.walks_on_device and drafted.merged is None:
        vocabulary = logits.shape[-1]
        probs = grown[0].all_probs(vocabulary) if grown else logits.new_empty(0, vocabulary)
        device_walk = decoder.device_walk(tree)
        numbers = upload(uniforms[: tree.size + 1], logits.device)
        queued = device_walk(logits, probs, drafted.tokens, numbers)
        watch.lap(VERIFY)
        (found,) = _read(queued[None], grown)
        ids, verdict = device_walk.read(found)
    else:
        # Node after node: leaf-first verification needs the host, and a merged tree occurs in one step alone.
        (ids,) = _read(drafted.tokens[None], grown)
        verdict = walk(decoder, drafted, ids, text, lambda node: logits[node], uniforms)
    watch.awaited(VERIFY)
    return ids, verdict


def accept_by_paths(
    decoder: Decoder,
    drafted: Drafted,
    target: TargetText,
    text: Sequence[int],
    uniforms: Tensor,
    taps: Sequence[int],
    found: NotFinite,
    where: str,
) -> tuple[Sequence[int], Verdict, Output]:
    """What `accept` returns where the forward over the tree gave numbers that are not finite.

    One proposed token with a damaged embedding spoils every row of its forward: under the mask it has
    weight 0, and 0 times NaN is NaN. So each row that the verifier asks for is computed from its own path
    alone. The tree stays as it was drawn: to leave out what is damaged would change the distribution of
    the text. The output is that of the accepted path, which is what the target's text holds. Raises
    `SequoiaError` where the target's own row is not finite, or the numbers of the draft that was `found`.
    """
    ids = drafted.tokens.tolist()

    def run(path: Sequence[int]) -> Output:
        target.keep(())
        tokens = upload([ids[node] for node in path], drafted.tokens.device)
        return target.run(range(-1, len(path) - 1), tokens, taps=taps)

    def row(node: int) -> Tensor:
        return run(drafted.tree.path(node)).logits[-1]

    try:
        checked(decoder.probabilities(row(0), text), 0)
        if found.draft is not None:
            name = f"draft {found.draft + 1}" if len(drafted.grown) > 1 else "draft"
            raise not_finite(name, decoder.drafts[found.draft].dtype, where)
        verdict = walk(decoder, drafted, ids, text, row, uniforms)
    except NotFinite:
        raise not_finite("target", decoder.target.dtype, where) from None
    return ids, verdict, run(verdict.path)


def walk(
    decoder: Decoder,
    drafted: Drafted,
    ids: Sequence[int],
    text: Sequence[int],
    logits: Callable[[int], Tensor],
    uniforms: Tensor,
) -> Verdict:
    """What the target accepts, node after node; `logits` has its (vocabulary,) row after one."""
    sources = drafted.sources(ids)
    rows = [grown.rows(decoder.target.vocabulary) for grown in drafted.grown]

    def row(node: int) -> Tensor:
        path = [*text, *(ids[each] for each in drafted.tree.path(node)[1:])] if decoder.distribution else ()
        return checked(decoder.probabilities(logits(node), path), node)

    # A greedy target draws its own choice.
    rule = verify_matching if decoder.sampling.greedy else decoder.verifier.judge
    return rule(ids, row, lambda node: sources.drawn(node, rows), uniforms.tolist())


def _read(table: Tensor, grown: Sequence[Grown]) -> list[list[int]]:
    """The (rows, columns) on the host. Raises `NotFinite` for a draft, which the same read tells."""
    flags = [one.finite[None].to(table) for one in grown]
    flat = torch.cat((table.flatten(), *flags)).tolist()
    if bad := [number for number, flag in enumerate(flat[table.numel() :]) if not flag]:
        raise NotFinite(draft=bad[0])
    width = table.shape[1]
    return [flat[first : first + width] for first in range(0, table.numel(), width)]
