"""The decoding loop: draft a tree, or several, run the target over them once, keep the accepted path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.grow import Grown, grow
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.merge import Merged, merge, unmerged
from sequoia_cli.engine.model import LanguageModel, Masks
from sequoia_cli.engine.step import CONTEXT, LENGTH, STOP, Step, Stopwatch
from sequoia_cli.engine.verify import Verdict, verify, verify_greedy
from sequoia_cli.engine.warp import Sampling, probabilities
from sequoia_cli.errors import BadInput


class Decoder:
    """A target, its drafts and a tree, ready to continue texts.

    Of several drafts each grows a tree of that shape, and the trees are merged (SpecInfer, arXiv 2305.09781).
    Where a draft's context ends, the text goes on with the others. Without drafts, or with a tree that is
    the root alone, each step is plain decoding: the same loop, the same code, one token a step.
    `draft_sampling` shapes the proposals (default: as the target's) and has no influence on the law of the
    output. Raises `BadInput` for a tree without a draft, a tree with more children at a node than the target
    has ids, or a greedy draft for a sampled target.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafts: Sequence[Draft] = (),
        tree: TokenTree = ROOT_ONLY,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
    ) -> None:
        self.target, self.drafts, self.tree = target, tuple(drafts), tree
        self.sampling = sampling or Sampling()
        self.draft_sampling = draft_sampling or default_draft_sampling(self.sampling)
        if tree.size > 1 and not drafts:
            raise BadInput("a tree is given but no draft")
        if tree.max_branch > target.vocabulary:
            raise BadInput(
                f"the tree has {tree.max_branch} children at a node; the target has {target.vocabulary} ids"
            )
        if self.draft_sampling.greedy:
            raise BadInput(
                "a draft temperature of 0 proposes the same tokens always; a number above 0 is needed"
            )

    def decode(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        eos_ids: Sequence[int] = (),
        generator: torch.Generator | None = None,
    ) -> Iterator[Step]:
        """Continue `prompt` by up to `max_new_tokens` tokens, one `Step` per target forward.

        `generator` (on the CPU) is the only source of randomness; each step takes fresh numbers from it.
        Raises `BadInput` for a prompt that is empty or leaves no room in the context.
        """
        text = _Text(self, prompt, max_new_tokens, generator)
        while text.remaining > 0:
            step = text.step(eos_ids)
            yield step
            if step.finish:
                return


def default_draft_sampling(sampling: Sampling) -> Sampling:
    """The draft's sampling for a target's: its temperature alone.

    Cutting the draft's tail as well only takes proposals away (the published runs do not, either). Below 0.2
    a float32 softmax has so few tokens with mass that the tree's siblings would be drawn blindly, and a
    greedy target needs a ranking, not a sample.
    """
    return Sampling(temperature=1.0 if sampling.greedy else max(sampling.temperature, 0.2))


def _with_room(drafts: Sequence[Draft], prefix: int) -> tuple[Draft, ...]:
    """The drafts whose context has room for the root behind `prefix` tokens and for one proposal."""
    return tuple(draft for draft in drafts if draft.context_limit - prefix > 1)


def _merged(tree: TokenTree, root: int, grown: Sequence[Grown]) -> Merged:
    """The one tree that the target is to run."""
    if len(grown) > 1:
        return merge(tree, [one.tokens for one in grown])
    return unmerged(tree, grown[0].tokens if grown else [root])


class _Text:
    """One text being continued: both caches, the root, and what is left of the budget."""

    def __init__(
        self, decoder: Decoder, prompt: Sequence[int], budget: int, generator: torch.Generator | None
    ) -> None:
        self.target, self.tree = decoder.target, decoder.tree
        self.sampling, self.draft_sampling = decoder.sampling, decoder.draft_sampling
        self.generator = generator
        self.remaining = budget
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
        self._layouts: dict[int, Layout] = {}
        self._masks: dict[Layout, Masks] = {}
        if budget <= 0:
            return
        watch = Stopwatch(self.target.device)
        hidden = self.target.prefill(tokens[:-1], self.cache, hidden=self._reads_hidden)
        for draft in self.drafts:
            draft.start(tokens, self.capacity, hidden)
        self._prefill = {"prefill": watch.lap()}

    def step(self, eos_ids: Sequence[int]) -> Step:
        """Draft, merge, verify, commit."""
        watch = Stopwatch(self.target.device)
        prefix = self.cache.length
        self.drafts = _with_room(self.drafts, prefix)
        layout = self._layout(self._room(prefix))
        # A number for every node, to draw it by, then one to test it by, and one for the token behind them.
        nodes = max(1, len(self.drafts)) * layout.tree.size
        noise = torch.rand(2 * nodes + 1, generator=self.generator, dtype=torch.float64)
        other = watch.lap()

        grown = self._grow(layout, noise[:nodes].view(-1, layout.tree.size), watch)
        merged = _merged(layout.tree, self.root, grown)
        depths, masks = self._seen_by_target(layout, merged, prefix)
        other += watch.lap()
        output = self.target.forward(
            torch.tensor(merged.tokens, device=self.target.device),
            (prefix + depths).to(self.target.device),
            self.cache,
            masks,
            hidden=self._reads_hidden,
        )
        target_seconds = watch.lap()

        verdict = self._verify(merged, grown, output.logits, noise[nodes:].tolist())
        new = [merged.tokens[node] for node in verdict.path[1:]] + [verdict.next_token]
        self._commit(layout, merged, prefix, verdict.path, new, output.hidden)
        verify_seconds = watch.lap()

        emitted, finish = self._emit(new, eos_ids)
        by_level = tuple(seconds for tree in grown for seconds in tree.level_seconds)
        seconds = {"draft": sum(by_level), "target": target_seconds, "verify": verify_seconds}
        seconds["other"] = other + watch.lap()
        seconds |= self._prefill
        self._prefill = {}
        return Step(
            tokens=emitted,
            ranks=tuple(merged.tree.ranks[node] for node in verdict.path[1:]),
            size=merged.tree.size,
            depth=merged.tree.depth,
            seconds=seconds,
            level_seconds=by_level,
            level_widths=tuple(len(level) for level in layout.expanded) * len(grown),
            fallbacks=verdict.fallbacks,
            finish=finish,
        )

    @property
    def _reads_hidden(self) -> bool:
        return any(draft.reads_hidden for draft in self.drafts)

    def _room(self, prefix: int) -> int:
        """Layers of the next tree: no node may stand where no token can be used, or a draft cannot go."""
        if not self.drafts:
            return 1
        contexts = [self.limit, *(draft.context_limit for draft in self.drafts)]
        return min(self.tree.depth, self.remaining, *(limit - prefix for limit in contexts))

    def _layout(self, depth: int) -> Layout:
        """The tree cut to `depth` layers, as tensors."""
        if depth not in self._layouts:
            self._layouts[depth] = Layout(self.tree.limited(depth))
        return self._layouts[depth]

    def _grow(self, layout: Layout, uniforms: Tensor, watch: Stopwatch) -> list[Grown]:
        """Each draft's tree, by its own row of numbers."""
        return [
            grow(
                draft,
                self.target,
                layout,
                self.root,
                self.draft_sampling,
                row,
                watch,
                greedy=self.sampling.greedy,
            )
            for draft, row in zip(self.drafts, uniforms, strict=False)  # plain decoding has no draft
        ]

    def _seen_by_target(self, layout: Layout, merged: Merged, prefix: int) -> tuple[Tensor, Masks | None]:
        """Depths and masks of the target's forward, made once for a tree that every step has anew."""
        if merged.tree.size == 1:
            return layout.node_depths, None
        if merged.tree is not layout.tree:
            # A tree of this step alone needs no mask for longer prefixes.
            layout = Layout(merged.tree)
            return layout.node_depths, self.target.masks(layout.target_block(), prefix + merged.tree.size)
        if layout not in self._masks:
            self._masks[layout] = self.target.masks(layout.target_block(), self.capacity)
        return layout.node_depths, self._masks[layout]

    def _verify(
        self, merged: Merged, grown: Sequence[Grown], logits: Tensor, uniforms: list[float]
    ) -> Verdict:
        if self.sampling.greedy:
            choices = logits.max(-1).indices.tolist()  # argmax is slower
            return verify_greedy(merged.tree, merged.tokens, choices)
        rows = [tree.rows for tree in grown]
        return verify(
            merged.tokens,
            lambda node: probabilities(logits[node], self.sampling),
            lambda node: merged.drawn(node, rows),
            uniforms,
        )

    def _commit(
        self,
        layout: Layout,
        merged: Merged,
        prefix: int,
        path: Sequence[int],
        new: Sequence[int],
        hidden: Tensor | None,
    ) -> None:
        """Keep the path in all caches; the last of the new tokens is the next root."""
        self.cache.keep(prefix, path)
        hidden = hidden[list(path)] if hidden is not None else None
        for number, draft in enumerate(self.drafts):
            draft.commit(layout, merged.own_path(number, path), new, hidden)
        self.root = new[-1]

    def _emit(self, new: list[int], eos_ids: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
        """What of the new tokens counts: up to an end-of-text id, wherever it stands, and the budget."""
        new = new[: self.remaining]
        end = next((index for index, token in enumerate(new) if token in eos_ids), None)
        if end is not None:
            new = new[: end + 1]
        self.remaining -= len(new)
        if end is not None:
            return tuple(new), STOP
        if self.remaining == 0:
            return tuple(new), LENGTH
        return tuple(new), CONTEXT if self.cache.length >= self.limit else None
