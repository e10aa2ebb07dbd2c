"""This project's engine: plain decoding, the compiled tree, or a chain."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sequoia_cli.bench.engines import OnTokens, Unavailable
from sequoia_cli.bench.workload import Workload
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.verification.verifiers import verifier_named
from sequoia_cli.measure.session import open_session


class OwnEngine:
    """This project's decoding loop with one tree."""

    packages = ("torch", "transformers")

    def __init__(self, work: Workload, tree: TokenTree) -> None:
        session = open_session(
            work.target,
            work.drafts if tree.size > 1 else (),
            device=work.device,
            dtype=work.dtype,
            trust_remote_code=work.trust_remote_code,
            forward=work.forward,
            quantize=work.quantize,
            quantize_draft=work.quantize_draft,
            threads=work.threads,
        )
        self._work = work
        rule = verifier_named(work.verifier)
        self._decoder = Decoder(session.target, session.drafts, tree, work.sampling, verifier=rule)

    def generate(self, prompt: Sequence[int], seed: int, on_tokens: OnTokens) -> None:
        work = self._work
        generator = torch.Generator().manual_seed(seed)
        steps = self._decoder.decode(prompt, work.max_new_tokens, eos_ids=work.eos_ids, generator=generator)
        for step in steps:
            on_tokens(step.tokens)


def make(work: Workload, name: str) -> OwnEngine:
    """Load the engine. Raises `Unavailable` for a tree or chain that is plain decoding."""
    trees = {"plain": ROOT_ONLY, "tree": TokenTree(work.tree), "chain": chain(work.chain)}
    tree = trees[name]
    if name != "plain" and tree.size == 1:
        raise Unavailable(f"the plan has no {name}: plain decoding is faster")
    return OwnEngine(work, tree)
