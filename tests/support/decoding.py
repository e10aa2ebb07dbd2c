"""Texts decoded with tiny models and a tree, and the target's own to compare them with."""

from __future__ import annotations

import torch

from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.target import LAST

PROMPT = [5, 17, 3, 42, 8, 11, 2]
TREE = TokenTree((-1, 0, 0, 0, 1, 1, 2, 4, 4, 6, 7))


def decoder(target, *drafts, tree=TREE, **options) -> Decoder:
    target = LanguageModel(target)
    drafted = [IndependentDraft(LanguageModel(draft), target.vocabulary) for draft in drafts]
    return Decoder(target, drafted, tree, **options)


def new_ids(decoder: Decoder, prompt=PROMPT, count=40, **options) -> list[int]:
    return [token for step in decoder.decode(prompt, count, **options) for token in step.tokens]


def own_greedy(model, prompt=PROMPT, count=40, **options) -> list[int]:
    """The target's own greedy `generate`."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        **options,
    )
    return output[0, len(prompt) :].tolist()


def tree_logits(model, tree):
    """Logits of a tree after a prompt, and of a token after a path of it that was kept; its hidden states."""
    text, _ = model.open(torch.tensor(PROMPT), len(PROMPT) + tree.size + 1)
    found = text.run(tree.parents, torch.arange(3, 3 + tree.size), taps=LAST)
    text.keep(tree.path(tree.size - 1))
    after = text.run((-1,), torch.tensor([7]))
    return torch.cat((found.logits, after.logits)), found.hidden[0]
