"""The decoding loop: what continues texts with a target, its drafts and a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from sequoia_cli.core.tree import ROOT_ONLY, TokenTree
from sequoia_cli.engine.continuation import Continuation
from sequoia_cli.engine.draft import Draft
from sequoia_cli.engine.draw import top_children
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.step import Step
from sequoia_cli.engine.verifiers import SEQUOIA, Verifier
from sequoia_cli.engine.verify_at_once import Judge
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput


class Decoder:
    """A target, its drafts and a tree, ready to continue texts.

    Of several drafts each grows a tree of that shape, and the trees are merged (SpecInfer, arXiv 2305.09781).
    Where a draft's context ends, the text goes on with the others. Without drafts, or with a tree that is
    the root alone, each step is plain decoding: the same loop, the same code, one token a step.
    `draft_sampling` shapes the proposals (default: as the target's) and has no influence on the law of the
    output; nor has `verifier`, which says how children are drawn and judged. `at_once` (default: on CUDA)
    draws and, by Sequoia's rule, verifies on the device, so that the host reads what came of a step and
    nothing before; else the host asks for each node as it comes to it, which touches less. Raises `BadInput`
    for a tree without a draft, a tree with more children at a node than the target has ids, a greedy draft
    for a sampled target, or several drafts where the verifier takes one.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafts: Sequence[Draft] = (),
        tree: TokenTree = ROOT_ONLY,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        *,
        verifier: Verifier = SEQUOIA,
        at_once: bool | None = None,
    ) -> None:
        self.target, self.drafts, self.tree = target, tuple(drafts), tree
        self.sampling, self.verifier = sampling or Sampling(), verifier
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
        verifier.check_drafts(len(self.drafts))
        #: How children are drawn: a greedy target wants the most probable, by every rule.
        self.draw = top_children if self.sampling.greedy else verifier.draw
        self.at_once = target.device.type == "cuda" if at_once is None else at_once
        self.judges_at_once = self.at_once and verifier.at_once
        self._layouts: dict[int, Layout] = {}
        self._judges: dict[Layout, Judge] = {}

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
        text = Continuation(self, prompt, max_new_tokens, generator)
        while text.remaining > 0:
            step = text.step(eos_ids)
            yield step
            if step.finish:
                return

    def layout(self, depth: int) -> Layout:
        """The tree cut to `depth` layers, as tensors."""
        if depth not in self._layouts:
            self._layouts[depth] = Layout(self.tree.limited(depth), self.target.device)
        return self._layouts[depth]

    def judge(self, layout: Layout) -> Judge:
        """What verifies the trees of a layout at once."""
        if layout not in self._judges:
            self._judges[layout] = Judge(layout, self.sampling, self.target.recorder)
        return self._judges[layout]


def default_draft_sampling(sampling: Sampling) -> Sampling:
    """The draft's sampling for a target's: its temperature alone.

    Cutting the draft's tail as well only takes proposals away (the published runs do not, either). Below 0.2
    a float32 softmax has so few tokens with mass that the tree's siblings would be drawn blindly, and a
    greedy target needs a ranking, not a sample.
    """
    return Sampling(temperature=1.0 if sampling.greedy else max(sampling.temperature, 0.2))
