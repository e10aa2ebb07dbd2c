"""The decoding loop: draft a tree, run the target over it, keep the path that it accepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from sequoia_cli.core.ending import cut
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import top_children
from sequoia_cli.engine.fast.capture import Recorder
from sequoia_cli.engine.finite import NotFinite
from sequoia_cli.engine.grow import FixedShape, Grown, Shape, grow
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
from sequoia_cli.engine.target import Target
from sequoia_cli.engine.upload import upload
from sequoia_cli.engine.verification.accept import Drafted, accept, accept_by_paths
from sequoia_cli.engine.verification.at_once import DeviceWalk, MakeRule
from sequoia_cli.engine.verification.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.warp import Distribution, Sampling, probabilities
from sequoia_cli.errors import BadInput


@lru_cache(maxsize=32)
def _device_walk(
    tree: TokenTree,
    device: torch.device,
    make_rule: MakeRule,
    sampling: Sampling,
    recorder: Recorder | None,
) -> DeviceWalk:
    # Kept across decoders: recording one takes as long as several steps.
    return DeviceWalk(tree, device, make_rule, sampling, recorder)


class Decoder:
    """A target, its drafts and a tree, ready to continue texts.

    Of several drafts each grows a tree, of that shape or of its own where `tree` is a list, and the trees are
    merged (SpecInfer, arXiv 2305.09781). `shape` makes what decides in a text which nodes of such a tree each
    step has (default: all of them). Where a draft's context ends, the text goes on with the others. Without
    drafts, or with a tree that is the root alone, each step is plain decoding: the same loop, the same code,
    one token a step.

    `draft_sampling` shapes the proposals (default: as the target's) and has no influence on the distribution
    of the output; nor has `verifier`, which says how children are drawn and accepted. `distribution` stands
    in for `sampling` where it gives the target's distribution from its logits and the ids before them.
    `at_once` (default: on CUDA) draws and verifies on the device, so that the host reads
    the result of a step and nothing before; else the host asks for each node as it comes to it, which touches
    less.

    Raises `BadInput` for a tree without a draft, a tree with more children at a node than the target has ids,
    a greedy draft for a sampled target, or several drafts where the verifier takes one.
    """

    def __init__(
        self,
        target: Target,
        drafts: Sequence[Draft] = (),
        tree: TokenTree | Sequence[TokenTree] = ROOT_ONLY,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        *,
        verifier: Verifier = SEQUOIA,
        shape: Callable[[TokenTree], Shape] = FixedShape,
        distribution: Distribution | None = None,
        at_once: bool | None = None,
    ) -> None:
        self.target, self.drafts, self.shape = target, tuple(drafts), shape
        trees = [tree] * max(1, len(drafts)) if isinstance(tree, TokenTree) else list(tree)
        self.trees, self.tree = trees, max(trees, key=lambda each: each.depth)
        if not isinstance(tree, TokenTree) and len(trees) != len(drafts):
            raise BadInput(f"{len(trees)} trees are given for {len(drafts)} drafts")
        self.sampling, self.verifier, self.distribution = sampling or Sampling(), verifier, distribution
        self.draft_sampling = draft_sampling or default_draft_sampling(self.sampling)
        if self.tree.size > 1 and not drafts:
            raise BadInput("a tree is given but no draft")
        if (most := max(each.max_branch for each in trees)) > target.vocabulary:
            raise BadInput(f"the tree has {most} children at a node; the target has {target.vocabulary} ids")
        if self.draft_sampling.greedy:
            raise BadInput(
                "a draft temperature of 0 proposes the same tokens always; a number above 0 is needed"
            )
        verifier.check_drafts(len(self.drafts))
        #: How children are drawn: a greedy target wants the most probable, by every rule.
        self.draw = top_children if self.sampling.greedy else verifier.draw
        self.at_once = target.device.type == "cuda" if at_once is None else at_once
        self.walks_on_device = self.at_once and verifier.on_device is not None and distribution is None

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
        text = DecodedText(self, prompt, max_new_tokens, generator)
        while text.remaining > 0:
            step = text.step(eos_ids)
            yield step
            if step.finish:
                return

    def probabilities(self, logits: Tensor, text: Sequence[int]) -> Tensor:
        """The target's distribution (vocabulary,) after `text`, from its logits there."""
        return self.distribution(logits, text) if self.distribution else probabilities(logits, self.sampling)

    def device_walk(self, tree: TokenTree) -> DeviceWalk:
        """What verifies such a tree on the device."""
        assert self.verifier.on_device is not None
        rule, device = self.verifier.on_device, self.target.device
        return _device_walk(tree, device, rule, self.sampling, self.target.recorder)


class DecodedText:
    """One text being continued: what the target and the drafts have read of it, and what is left to write."""

    def __init__(
        self, decoder: Decoder, prompt: Sequence[int], budget: int, generator: torch.Generator | None
    ) -> None:
        self.decoder, self.target, self.generator = decoder, decoder.target, generator
        self.ids, self.remaining, self.steps = list(prompt), budget, 0
        limit = self.target.context_limit
        if not prompt:
            raise BadInput("the prompt has no tokens")
        if len(prompt) > limit:
            raise BadInput(f"the prompt has {len(prompt)} tokens; the context ends at {limit}")
        drafts = decoder.drafts if decoder.tree.size > 1 else ()
        self.drafts = _with_room(drafts, len(prompt) - 1)
        self.taps = tuple(sorted({tap for draft in self.drafts for tap in draft.taps}))
        self._shapes = {
            id(draft): decoder.shape(tree) for draft, tree in zip(decoder.drafts, decoder.trees, strict=False)
        }
        if budget <= 0:
            return
        if decoder.at_once:
            seed = int(torch.randint(1 << 62, (), generator=generator))
            self._device_noise = torch.Generator(self.target.device).manual_seed(seed)
        watch = Stopwatch(self.target.device)
        tokens = torch.tensor(self.ids, device=self.target.device)
        largest = max(tree.size for tree in decoder.trees)
        capacity = min(len(prompt) + budget, limit) + largest + 1
        others = max(0, len(self.drafts) - 1) * (largest - 1)
        self.text, states = self.target.open(tokens[:-1], capacity + others, self.taps)
        for draft in self.drafts:
            draft.start(tokens, capacity, self._tapped(draft, states))
        if self.target.device.type == "cuda":
            torch.cuda.synchronize(self.target.device)
        watch.awaited(PREFILL)
        self._prefill = {PREFILL: sum(watch.seconds(PREFILL))}

    def step(self, eos_ids: Sequence[int]) -> Step:
        """Draft, run the target, verify, commit."""
        watch = Stopwatch(self.target.device)
        self.steps += 1
        prefix = self.text.length
        self.drafts = _with_room(self.drafts, prefix)
        layers = self._layers(prefix)
        sizes = [self._shapes[id(draft)].start(layers) for draft in self.drafts]
        # A number for every node, to draw it by, then one to test it by, and one for the token after them.
        nodes = max(1, sum(sizes))
        noise = torch.rand(2 * nodes + 1, generator=self.generator, dtype=torch.float64)
        uniforms = noise[nodes:]
        watch.lap(OTHER)

        grown = self._grow(sizes, noise, watch)
        drafted = Drafted.of(grown, self.ids[-1], self.target.device)
        watch.lap(OTHER)
        output = self.text.run(drafted.tree.parents, drafted.tokens, taps=self.taps)
        watch.lap(TARGET)

        try:
            ids, verdict = accept(self.decoder, drafted, output.logits, self.ids, uniforms, watch)
            kept = verdict.path
        except NotFinite as found:
            where = f"step {self.steps}"
            ids, verdict, output = accept_by_paths(
                self.decoder, drafted, self.text, self.ids, uniforms, self.taps, found, where
            )
            kept = tuple(range(len(verdict.path)))
            watch.awaited(VERIFY)
        new = [ids[node] for node in verdict.path[1:]] + [verdict.next_token]
        self.text.keep(kept)
        self._commit(
            drafted, ids, verdict.path, new, [states[upload(kept, states.device)] for states in output.hidden]
        )
        watch.lap(VERIFY)

        emitted, finish = self._emit(new, eos_ids)
        watch.lap(OTHER)
        seconds = {stage: sum(watch.seconds(stage)) for stage in (DRAFT, TARGET, VERIFY, OTHER)}
        seconds |= self._prefill
        self._prefill = {}
        ranks = tuple(drafted.tree.ranks[node] for node in verdict.path[1:])
        for draft in self.drafts:
            self._shapes[id(draft)].learn(ranks)
        return Step(
            tokens=emitted,
            ranks=ranks,
            size=drafted.tree.size,
            depth=drafted.tree.depth,
            seconds=seconds,
            level_seconds=watch.seconds(DRAFT),
            level_widths=tuple(len(level.nodes) for one in grown for level in one.levels),
            fallbacks=verdict.fallbacks,
            finish=finish,
            path=verdict.path,
        )

    def _layers(self, prefix: int) -> int:
        """Layers of the next tree: no node may stand where no token can be used, or a draft cannot go."""
        if not self.drafts:
            return 1
        contexts = [self.target.context_limit, *(draft.context_limit for draft in self.drafts)]
        return min(self.decoder.tree.depth, self.remaining, *(limit - prefix for limit in contexts))

    def _grow(self, sizes: Sequence[int], noise: Tensor, watch: Stopwatch) -> list[Grown]:
        """Each draft's tree, by numbers of its own, or by those of the device."""
        grown, first, decoder = [], 0, self.decoder
        for draft, size in zip(self.drafts, sizes, strict=True):
            own = self._device_noise if decoder.at_once else noise[first : first + size]
            first += size
            grown.append(
                grow(
                    draft,
                    self._shapes[id(draft)],
                    size,
                    self.ids[-1],
                    self.target.vocabulary,
                    self.target.device,
                    decoder.draft_sampling,
                    own,
                    decoder.draw,
                    watch,
                )
            )
        return grown

    def _commit(
        self,
        drafted: Drafted,
        ids: Sequence[int],
        path: Sequence[int],
        new: Sequence[int],
        states: list[Tensor],
    ) -> None:
        """Let all drafts take over the accepted path and the new tokens; the last is the next root."""
        sources = drafted.sources(ids)
        for number, (draft, grown) in enumerate(zip(self.drafts, drafted.grown, strict=True)):
            own = [grown.numbers[node] for node in sources.own_path(number, path) if node in grown.numbers]
            draft.commit(own, new, self._tapped(draft, states))

    def _tapped(self, draft: Draft, states: Sequence[Tensor]) -> list[Tensor]:
        """The states that a draft asks for, of those of all taps."""
        return [states[self.taps.index(tap)] for tap in draft.taps] if states else []

    def _emit(self, new: list[int], eos_ids: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
        """The new tokens that count: up to an end-of-text id, wherever it stands, and the budget."""
        new = cut(new, eos_ids, self.remaining)
        self.ids += new
        self.remaining -= len(new)
        if new[-1] in eos_ids:
            return tuple(new), STOP
        if self.remaining == 0:
            return tuple(new), LENGTH
        return tuple(new), CONTEXT if self.text.length >= self.target.context_limit else None


def _with_room(drafts: Sequence[Draft], prefix: int) -> tuple[Draft, ...]:
    """The drafts whose context has room for the root after `prefix` tokens and for one proposal."""
    return tuple(draft for draft in drafts if draft.context_limit - prefix > 1)


def default_draft_sampling(sampling: Sampling) -> Sampling:
    """The draft's sampling for a target's: its temperature alone.

    Cutting the draft's tail as well only takes proposals away (the published runs do not, either). Below 0.2
    a float32 softmax has so few tokens with mass that the tree's siblings would be drawn blindly, and a
    greedy target needs a ranking, not a sample.
    """
    return Sampling(temperature=1.0 if sampling.greedy else max(sampling.temperature, 0.2))
