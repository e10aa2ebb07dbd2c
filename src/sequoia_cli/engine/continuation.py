"""One text being continued, step by step: draft a tree, or several, run the target over them, keep a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sequoia_cli.core.ending import cut
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.finite import NotFinite, checked, not_finite
from sequoia_cli.engine.grow import Grown, grow
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.masks import Masks
from sequoia_cli.engine.merge import Merged, merge, unmerged
from sequoia_cli.engine.model import Output
from sequoia_cli.engine.step import (
    CONTEXT,
    DRAFT,
    LENGTH,
    OTHER,
    PREFILL,
    STOP,
    TARGET,
    VERIFY,
    Step,
    Stopwatch,
)
from sequoia_cli.engine.upload import upload
from sequoia_cli.engine.verify import Verdict, verify_greedy, verify_matching
from sequoia_cli.engine.verify_at_once import read_verdict
from sequoia_cli.engine.warp import probabilities
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.engine.decode import Decoder

#: Logits that are verified at once: that takes about ten times their memory, in float32.
_AT_ONCE = 1 << 25


def _with_room(drafts: Sequence[Draft], prefix: int) -> tuple[Draft, ...]:
    """The drafts whose context has room for the root behind `prefix` tokens and for one proposal."""
    return tuple(draft for draft in drafts if draft.context_limit - prefix > 1)


def _read(table: Tensor, grown: Sequence[Grown]) -> list[list[int]]:
    """The (rows, columns) on the host. Raises `NotFinite` for a draft, which the same read tells."""
    flags = [one.finite[None].to(table) for one in grown]
    flat = torch.cat((table.flatten(), *flags)).tolist()
    if bad := [number for number, flag in enumerate(flat[table.numel() :]) if not flag]:
        raise NotFinite(draft=bad[0])
    width = table.shape[1]
    return [flat[first : first + width] for first in range(0, table.numel(), width)]


class Continuation:
    """One text being continued: both caches, the root, and what is left of the budget."""

    def __init__(
        self, decoder: Decoder, prompt: Sequence[int], budget: int, generator: torch.Generator | None
    ) -> None:
        self.decoder, self.target, self.tree = decoder, decoder.target, decoder.tree
        self.sampling, self.draft_sampling = decoder.sampling, decoder.draft_sampling
        self.generator = generator
        self.remaining, self.steps = budget, 0
        self.limit = self.target.context_limit
        if not prompt:
            raise BadInput("the prompt has no tokens")
        if len(prompt) > self.limit:
            raise BadInput(f"the prompt has {len(prompt)} tokens; the context ends at {self.limit}")
        self.drafts = _with_room(decoder.drafts if self.tree.size > 1 else (), len(prompt) - 1)
        tokens = torch.tensor(list(prompt), device=self.target.device)
        self.capacity = min(len(prompt) + budget, self.limit) + self.tree.size + 1
        others = max(0, len(self.drafts) - 1) * (self.tree.size - 1)
        self.cache = self.target.new_cache(self.capacity + others)
        self.root = int(prompt[-1])
        self._masks: dict[Layout, Masks] = {}
        if budget <= 0:
            return
        if decoder.at_once:
            seed = int(torch.randint(1 << 62, (), generator=generator))
            self._device_noise = torch.Generator(self.target.device).manual_seed(seed)
        watch = Stopwatch(self.target.device)
        hidden = self.target.prefill(tokens[:-1], self.cache, hidden=self._reads_hidden)
        for draft in self.drafts:
            draft.start(tokens, self.capacity, hidden)
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        watch.awaited(PREFILL)
        self._prefill = {PREFILL: sum(watch.seconds(PREFILL))}

    def step(self, eos_ids: Sequence[int]) -> Step:
        """Draft, merge, verify, commit."""
        watch = Stopwatch(self.target.device)
        self.steps += 1
        prefix = self.cache.length
        self.drafts = _with_room(self.drafts, prefix)
        layout = self.decoder.layout(self._room(prefix))
        # A number for every node, to draw it by, then one to test it by, and one for the token behind them.
        nodes = max(1, len(self.drafts)) * layout.tree.size
        noise = torch.rand(2 * nodes + 1, generator=self.generator, dtype=torch.float64)
        watch.lap(OTHER)

        grown = self._grow(layout, noise[:nodes].view(-1, layout.tree.size), watch)
        # To merge trees the host reads their tokens, here and now.
        merged = merge(layout.tree, [one.tokens.tolist() for one in grown]) if len(grown) > 1 else None
        tree, depths, masks = self._seen_by_target(layout, merged, prefix)
        tokens = self._tokens(merged, grown)
        watch.lap(OTHER)
        output = self.target.forward(tokens, prefix + depths, self.cache, masks, hidden=self._reads_hidden)
        watch.lap(TARGET)

        uniforms = noise[nodes:]
        try:
            ids, verdict = self._verify(layout, merged, grown, tokens, output.logits, uniforms, watch)
            kept = verdict.path
        except NotFinite as found:
            ids, verdict, output = self._by_paths(layout, merged, grown, tokens, uniforms, found.draft)
            kept = tuple(range(len(verdict.path)))
            watch.awaited(VERIFY)
        new = [ids[node] for node in verdict.path[1:]] + [verdict.next_token]
        self._commit(layout, merged or unmerged(tree, ids), prefix, verdict.path, kept, new, output.hidden)
        watch.lap(VERIFY)

        emitted, finish = self._emit(new, eos_ids)
        watch.lap(OTHER)
        seconds = {stage: sum(watch.seconds(stage)) for stage in (DRAFT, TARGET, VERIFY, OTHER)}
        seconds |= self._prefill
        self._prefill = {}
        return Step(
            tokens=emitted,
            ranks=tuple(tree.ranks[node] for node in verdict.path[1:]),
            size=tree.size,
            depth=tree.depth,
            seconds=seconds,
            level_seconds=watch.seconds(DRAFT),
            level_widths=tuple(len(level) for level in layout.expanded) * len(grown),
            fallbacks=verdict.fallbacks,
            finish=finish,
            path=verdict.path,
        )

    def _by_paths(
        self,
        layout: Layout,
        merged: Merged | None,
        grown: Sequence[Grown],
        tokens: Tensor,
        uniforms: Tensor,
        draft: int | None,
    ) -> tuple[Sequence[int], Verdict, Output]:
        """What `_verify` returns where the forward over the tree gave numbers that are not finite.

        One proposed token with a damaged embedding spoils every row of its forward: under the mask it has
        weight 0, and 0 times NaN is NaN. So each row that the verifier asks for is computed from its own path
        alone. The tree stays as it was drawn: to leave out what is damaged would change the distribution of
        the text. The output is that of the accepted path. Raises `SequoiaError` where the target's own row is
        not finite, or the numbers of that `draft`.
        """
        tree = merged.tree if merged else layout.tree
        ids, prefix = tokens.tolist(), self.cache.length - len(tokens)

        def run(path: Sequence[int]) -> Output:
            self.cache.forget(prefix)
            nodes = upload(path, tokens.device)
            positions = torch.arange(prefix, prefix + len(path), device=tokens.device)
            return self.target.forward(tokens[nodes], positions, self.cache, None, hidden=self._reads_hidden)

        def row(node: int) -> Tensor:
            return checked(probabilities(run(tree.path(node)).logits[-1], self.sampling), node)

        where = f"step {self.steps}"
        try:
            row(0)
            if draft is not None:
                name = f"draft {draft + 1}" if len(self.drafts) > 1 else "draft"
                raise not_finite(name, self.drafts[draft].dtype, where)
            verdict = self._walk(layout, merged, grown, ids, row, uniforms)
        except NotFinite:
            raise not_finite("target", self.target.dtype, where) from None
        return ids, verdict, run(verdict.path)

    def _walk(
        self,
        layout: Layout,
        merged: Merged | None,
        grown: Sequence[Grown],
        ids: Sequence[int],
        row: Callable[[int], Tensor],
        uniforms: Tensor,
    ) -> Verdict:
        """What the target accepts, node after node; `row` has its probabilities after one."""
        drawn, rows = merged or unmerged(layout.tree, ids), [one.rows(layout) for one in grown]
        # A greedy target draws its own choice.
        rule = verify_matching if self.sampling.greedy else self.decoder.verifier.judge
        return rule(ids, row, lambda node: drawn.drawn(node, rows), uniforms.tolist())

    @property
    def _reads_hidden(self) -> bool:
        return any(draft.reads_hidden for draft in self.drafts)

    def _room(self, prefix: int) -> int:
        """Layers of the next tree: no node may stand where no token can be used, or a draft cannot go."""
        if not self.drafts:
            return 1
        contexts = [self.limit, *(draft.context_limit for draft in self.drafts)]
        return min(self.tree.depth, self.remaining, *(limit - prefix for limit in contexts))

    def _grow(self, layout: Layout, uniforms: Tensor, watch: Stopwatch) -> list[Grown]:
        """Each draft's tree, by its own row of numbers, or by those of the device."""
        return [
            grow(
                draft,
                self.target,
                layout,
                self.root,
                self.draft_sampling,
                self._device_noise if self.decoder.at_once else row,
                watch,
                self.decoder.draw,
            )
            for draft, row in zip(self.drafts, uniforms, strict=False)  # plain decoding has no draft
        ]

    def _tokens(self, merged: Merged | None, grown: Sequence[Grown]) -> Tensor:
        """(nodes,) tokens of the tree that the target is to run, on the device."""
        if merged:
            return upload(merged.tokens, self.target.device)
        if grown:
            return grown[0].tokens
        return torch.full((1,), self.root, dtype=torch.long, device=self.target.device)

    def _seen_by_target(
        self, layout: Layout, merged: Merged | None, prefix: int
    ) -> tuple[TokenTree, Tensor, Masks | None]:
        """Tree, depths and masks of the target's forward; made once for a tree that every step has anew."""
        if merged and merged.tree != layout.tree:
            # A tree of this step alone needs no mask for longer prefixes.
            layout = Layout(merged.tree, self.target.device)
            masks = self.target.masks(layout.target_block(), prefix + merged.tree.size)
            return layout.tree, layout.depths, masks
        if layout.tree.size > 1 and layout not in self._masks:
            self._masks[layout] = self.target.masks(layout.target_block(), self.capacity)
        return layout.tree, layout.depths, self._masks.get(layout)

    def _verify(
        self,
        layout: Layout,
        merged: Merged | None,
        grown: Sequence[Grown],
        tokens: Tensor,
        logits: Tensor,
        uniforms: Tensor,
        watch: Stopwatch,
    ) -> tuple[Sequence[int], Verdict]:
        """The tokens of all nodes, and what the target accepts. Here the host waits for the device.

        Raises `NotFinite` for a draft, or a node that the walk reaches.
        """
        tree = merged.tree if merged else layout.tree
        if self.sampling.greedy:
            best = logits.max(-1)  # argmax is slower; NaN is the largest
            queued = torch.stack((tokens, best.indices.where(best.values.isfinite(), -1)))
            watch.lap(VERIFY)
            ids, chosen = _read(queued, grown)
            verdict = verify_greedy(tree, ids, chosen)
        elif self.decoder.judges_at_once and merged is None and logits.numel() <= _AT_ONCE:
            probs = torch.cat(grown[0].probs) if layout.expanded else logits.new_empty(0, logits.shape[-1])
            queued = self.decoder.judge(layout)(logits, probs, tokens, upload(uniforms, logits.device))
            watch.lap(VERIFY)
            judged = _read(queued, grown)
            ids, verdict = [row[0] for row in judged], read_verdict(judged)
        else:
            # Node after node: no other rule is judged at once, and a merged tree is of one step alone.
            (ids,) = _read(tokens[None], grown)

            def row(node: int) -> Tensor:
                return checked(probabilities(logits[node], self.sampling), node)

            verdict = self._walk(layout, merged, grown, ids, row, uniforms)
        watch.awaited(VERIFY)
        return ids, verdict

    def _commit(
        self,
        layout: Layout,
        merged: Merged,
        prefix: int,
        path: Sequence[int],
        kept: Sequence[int],
        new: Sequence[int],
        hidden: Tensor | None,
    ) -> None:
        """Keep the path in all caches; the last of the new tokens is the next root.

        `kept` are the path's rows in the target's last forward.
        """
        self.cache.keep(prefix, kept)
        hidden = hidden[upload(kept, hidden.device)] if hidden is not None else None
        for number, draft in enumerate(self.drafts):
            draft.commit(layout, merged.own_path(number, path), new, hidden)
        self.root = new[-1]

    def _emit(self, new: list[int], eos_ids: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
        """What of the new tokens counts: up to an end-of-text id, wherever it stands, and the budget."""
        new = cut(new, eos_ids, self.remaining)
        self.remaining -= len(new)
        if new[-1] in eos_ids:
            return tuple(new), STOP
        if self.remaining == 0:
            return tuple(new), LENGTH
        return tuple(new), CONTEXT if self.cache.length >= self.limit else None
