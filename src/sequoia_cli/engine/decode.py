"""The decoding loop: draft a tree, run the target over it once, keep the accepted path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import draw_children, top_children
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel, Masks
from sequoia_cli.engine.step import CONTEXT, LENGTH, STOP, Step, Stopwatch
from sequoia_cli.engine.verify import Verdict, verify, verify_greedy
from sequoia_cli.engine.warp import Sampling, probabilities
from sequoia_cli.errors import BadInput


class Decoder:
    """A target, a draft and a tree, ready to continue texts.

    Without a draft, or with a tree that is the root alone, each step is plain decoding: the same loop, the
    same code, one token a step. `draft_sampling` shapes the proposals (default: as the target's) and has no
    influence on the law of the output. Raises `BadInput` for a tree without a draft, a draft that cannot
    propose as many different tokens as the tree has children, or a greedy draft for a sampled target.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: Draft | None = None,
        tree: TokenTree = ROOT_ONLY,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
    ) -> None:
        self.target, self.draft, self.tree = target, draft, tree
        self.sampling = sampling or Sampling()
        self.draft_sampling = draft_sampling or default_draft_sampling(self.sampling)
        if tree.size > 1 and draft is None:
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


def pick_children(
    probs: Tensor,
    counts: Sequence[int],
    uniforms: Tensor,
    vocabulary: int,
    *,
    greedy: bool,
    ids: Tensor | None = None,
) -> tuple[list[Tensor], Tensor]:
    """Children of a level's nodes, and the probabilities (nodes, vocabulary) they were drawn from.

    The columns are the draft's `ids`; the target's other ids, up to its `vocabulary`, have probability 0.
    For a greedy target, which asks for no probabilities, the draft's columns may be returned as they are.
    """
    if greedy and ids is not None and max(counts) <= len(ids):
        return [ids[picked] for picked in top_children(probs, counts)], probs
    probs = over_vocabulary(probs, vocabulary, ids)
    return (top_children(probs, counts) if greedy else draw_children(probs, counts, uniforms)), probs


def over_vocabulary(probs: Tensor, vocabulary: int, ids: Tensor | None) -> Tensor:
    """A draft's columns, which are its `ids`, as (nodes, vocabulary); it never proposes the other ids."""
    if ids is not None:
        return probs.new_zeros(len(probs), vocabulary).index_copy_(1, ids, probs)
    missing = vocabulary - probs.shape[-1]
    return pad(probs, (0, missing)) if missing > 0 else probs


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
        # Where the draft's own context ends, the text goes on without it.
        draft = decoder.draft if self.tree.size > 1 else None
        self.draft = draft if draft is not None and len(prompt) <= draft.context_limit else None
        tokens = torch.tensor(list(prompt), device=self.target.device)
        self.capacity = min(len(prompt) + budget, self.limit) + self.tree.size + 1
        self.cache = self.target.new_cache(self.capacity)
        self.root = int(prompt[-1])
        self._layouts: dict[int, tuple[Layout, Masks | None]] = {}
        if budget <= 0:
            return
        watch = Stopwatch(self.target.device)
        wants = self.draft is not None and self.draft.reads_hidden
        hidden = self.target.prefill(tokens[:-1], self.cache, hidden=wants)
        if self.draft is not None:
            self.draft.start(tokens, self.capacity, hidden)
        self._prefill = {"prefill": watch.lap()}

    def step(self, eos_ids: Sequence[int]) -> Step:
        """Draft, verify, commit."""
        watch = Stopwatch(self.target.device)
        prefix = self.cache.length
        layout, masks = self._layout(self._room(prefix))
        tree = layout.tree
        noise = torch.rand(2 * tree.size + 1, generator=self.generator, dtype=torch.float64)
        setup = watch.lap()

        tokens, rows, level_seconds = self._grow(layout, noise[: tree.size], watch)
        positions = prefix + layout.node_depths
        other = setup + watch.lap()
        output = self.target.forward(
            torch.tensor(tokens, device=self.target.device),
            positions.to(self.target.device),
            self.cache,
            masks,
            hidden=self.draft is not None and self.draft.reads_hidden,
        )
        target_seconds = watch.lap()

        verdict = self._verify(tree, tokens, output.logits, rows, noise[tree.size :].tolist())
        self.cache.keep(prefix, verdict.path)
        new = [tokens[node] for node in verdict.path[1:]] + [verdict.next_token]
        if self.draft is not None:
            hidden = output.hidden[list(verdict.path)] if output.hidden is not None else None
            self.draft.commit(layout, verdict.path, new, hidden)
        self.root = new[-1]
        verify_seconds = watch.lap()

        emitted, finish = self._emit(new, eos_ids)
        ranks = tuple(tree.ranks[node] for node in verdict.path[1:])
        seconds = {"draft": sum(level_seconds), "target": target_seconds, "verify": verify_seconds}
        seconds["other"] = other + watch.lap()
        seconds |= self._prefill
        self._prefill = {}
        return Step(
            tokens=emitted,
            ranks=ranks,
            size=tree.size,
            depth=tree.depth,
            seconds=seconds,
            level_seconds=tuple(level_seconds),
            level_widths=tuple(len(nodes) for nodes in layout.expanded),
            fallbacks=verdict.fallbacks,
            finish=finish,
        )

    def _room(self, prefix: int) -> int:
        """Layers of the next tree: no node may stand where no token can be used, or the draft cannot go."""
        drafted = max(1, self.draft.context_limit - prefix) if self.draft is not None else 1
        return min(self.tree.depth, self.remaining, self.limit - prefix, drafted)

    def _layout(self, depth: int) -> tuple[Layout, Masks | None]:
        """The tree cut to `depth` layers, as tensors."""
        if depth not in self._layouts:
            layout = Layout(self.tree.limited(depth))
            masks = self.target.masks(layout.target_block(), self.capacity) if layout.tree.size > 1 else None
            self._layouts[depth] = layout, masks
        return self._layouts[depth]

    def _grow(
        self, layout: Layout, uniforms: Tensor, watch: Stopwatch
    ) -> tuple[list[int], dict[int, Tensor], list[float]]:
        """Tokens of all nodes, the draft's probabilities behind each expanded one, and seconds by level."""
        tokens = [self.root] + [0] * (layout.tree.size - 1)
        rows: dict[int, Tensor] = {}
        seconds = []
        for level, nodes in enumerate(layout.expanded):
            assert self.draft is not None
            level_tokens = torch.tensor([tokens[node] for node in nodes], device=self.target.device)
            probs = self.draft.expand(layout, level, level_tokens, self.draft_sampling)
            counts = layout.child_counts[level]
            runs = [layout.tree.children[node] for node in nodes]
            noise = torch.zeros(len(nodes), max(counts), dtype=torch.float64)
            for row, run in enumerate(runs):
                noise[row, : len(run)] = uniforms[run.start : run.stop]
            drawn, probs = pick_children(
                probs,
                counts,
                noise,
                self.target.vocabulary,
                greedy=self.sampling.greedy,
                ids=self.draft.ids,
            )
            # The children of a level's nodes, one after the other, are the next level.
            tokens[runs[0].start : runs[-1].stop] = torch.cat(drawn).tolist()
            rows.update(zip(nodes, probs, strict=True))
            seconds.append(watch.lap())
        return tokens, rows, seconds

    def _verify(
        self,
        tree: TokenTree,
        tokens: list[int],
        logits: Tensor,
        rows: dict[int, Tensor],
        uniforms: list[float],
    ) -> Verdict:
        if self.sampling.greedy:
            return verify_greedy(tree, tokens, logits.max(-1).indices.tolist())  # argmax is slower

        def target_probs(node: int) -> Tensor:
            return probabilities(logits[node], self.sampling)

        return verify(tree, tokens, target_probs, rows.__getitem__, uniforms)

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
