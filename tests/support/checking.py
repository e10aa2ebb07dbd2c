"""Checks of small things: scripted models, whose distributions are tables, and tiny random ones."""

from __future__ import annotations

import torch

from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.check.findings import Findings
from sequoia_cli.check.run import Check, NamedPrompt, Subject
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification.verifiers import SEQUOIA

WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))

#: After each of six tokens: what the target says, and a draft that is often wrong.
SAID = [
    [0.30, 0.25, 0.20, 0.10, 0.10, 0.05],
    [0.05, 0.30, 0.10, 0.25, 0.20, 0.10],
    [0.20, 0.10, 0.30, 0.05, 0.10, 0.25],
    [0.10, 0.20, 0.05, 0.30, 0.25, 0.10],
    [0.25, 0.05, 0.25, 0.10, 0.30, 0.05],
    [0.10, 0.10, 0.10, 0.20, 0.20, 0.30],
]
GUESSED = [[row[(column + 2) % 6] for column in range(6)] for row in SAID]


class TableReference:
    """What a scripted target says itself."""

    def __init__(self, table):
        self._logits = torch.tensor(table, dtype=torch.float64).log()

    def plain(self, ids, count):
        return self._logits[list(ids)[-count:]]

    exact = plain


def checked(subject, reference, *, count=12, samples=250, prompts=([5, 3],), sample=True):
    """The findings of a whole check."""
    named = [NamedPrompt(str(number), ids) for number, ids in enumerate(prompts, 1)]
    check = Check(subject, reference, named, count, samples, seed=0)
    list(check.check_texts())
    if sample and subject.sampling:
        list(check.sample())
    return Findings(check)


def scripted(
    said=SAID,
    guessed=GUESSED,
    *,
    tree=WIDE,
    sampling=None,
    draft_sampling=None,
    verifier=SEQUOIA,
    drafts=1,
    **options,
):
    """The findings of a scripted pair, sampled at temperature 1."""
    pair = (
        ScriptedTarget(said),
        [ScriptedDraft([row[shift:] + row[:shift] for row in guessed]) for shift in range(drafts)],
    )
    whole = Sampling(1.0)
    subject = Subject(*pair, tree, sampling or whole, draft_sampling or whole, (), verifier)
    return checked(subject, TableReference(said), **options)


def tiny(target, draft, reference, *, eos_ids=(), tree=WIDE, prompts=([5, 17, 3, 42], [8, 11, 2]), **options):
    """The findings of greedy texts of a pair of real models."""
    model = LanguageModel(target)
    drafts = [IndependentDraft(LanguageModel(draft), model.vocabulary)]
    subject = Subject(model, drafts, tree, None, Sampling(1.0), eos_ids)
    return checked(subject, reference, count=32, prompts=prompts, **options)
