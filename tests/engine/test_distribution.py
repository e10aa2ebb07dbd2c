"""Texts have a distribution that depends on all tokens before, as that of a logits processor does."""

import itertools

import pytest
import torch

from decoding import TREE, decoder
from exhaustive import few
from models import near, tiny_model
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.verification import accept
from sequoia_cli.engine.verification.verifiers import VERIFIERS
from sequoia_cli.engine.warp import Sampling
from text_distributions import PROMPT, VOCABULARY, p_value, texts

WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


def random_table(seed):
    logits = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    return (1.5 * logits.double()).softmax(-1).tolist()


SAID, GUESSED = random_table(0), random_table(1)


def nothing_twice(logits, text):
    """No token that the text after the prompt has."""
    probs = logits.softmax(-1)
    probs[list(text[len(PROMPT) :])] = 0
    return probs / probs.sum()


def exact(length):
    """Probability of every text of `length` tokens."""
    rows = torch.tensor(SAID, dtype=torch.float64).log()
    found = {(): 1.0}
    for _ in range(length):
        found = {
            (*text, token): chance * p
            for text, chance in found.items()
            for token, p in enumerate(nothing_twice(rows[(*PROMPT, *text)[-1]], (*PROMPT, *text)).tolist())
            if p > 0
        }
    return found


def found(name="sequoia", drafts=1):
    run = Decoder(
        ScriptedTarget(SAID),
        [ScriptedDraft(GUESSED), ScriptedDraft(random_table(2))][:drafts],
        [WIDE, chain(4)][:drafts],
        Sampling(1.0),
        verifier=VERIFIERS[name],
        distribution=nothing_twice,
    )
    return texts(run, 3)


@pytest.mark.parametrize("name", few(list(VERIFIERS), "sequoia", "traversal"))
def test_texts_have_that_distribution(name):
    # A right program fails in one of a million seeds.
    assert p_value(found(name), exact(3)) > 1e-6


def test_texts_of_two_drafts_with_trees_of_their_own_have_it_as_well():
    assert p_value(found(drafts=2), exact(3)) > 1e-6


def test_the_check_sees_a_distribution_that_is_not_told_of_the_path(monkeypatch):
    right = accept.walk
    monkeypatch.setattr(
        accept,
        "walk",
        lambda run, drafted, ids, text, *rest: right(_Forgetful(run, len(text)), drafted, ids, text, *rest),
    )
    counts = found()
    assert any(len(set(text)) < len(text) for text in counts)


class _Forgetful:
    """A decoder whose distribution sees the text up to the root alone."""

    def __init__(self, run, length):
        self._run, self._length = run, length

    def __getattr__(self, name):
        return getattr(self._run, name)

    def probabilities(self, logits, text):
        return self._run.probabilities(logits, text[: self._length])


@pytest.mark.parametrize("tree", [chain(5), TREE], ids=["chain", "tree"])
def test_a_greedy_text_is_that_of_plain_decoding(tree):
    target = tiny_model("llama")

    def rule(logits, text):
        logits = logits.clone()
        logits[list(text)] -= 3.0
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()

    def written(*drafts, **options):
        steps = decoder(target, *drafts, distribution=rule, **options).decode(PROMPT, 40)
        return list(itertools.chain.from_iterable(step.tokens for step in steps))

    expected = written(tree=TokenTree((-1,)))
    assert written(near(target, 0.02), tree=tree) == expected
    plain = decoder(target, tree=TokenTree((-1,))).decode(PROMPT, 40)
    assert expected != list(itertools.chain.from_iterable(step.tokens for step in plain))
