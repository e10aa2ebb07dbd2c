"""The distribution of texts with feature drafts and reduced ids is the target's own, ids never proposed too.

Fixed seeds. A right program fails each of these chi-squared tests in one of a million seeds.
"""

import pytest
import torch
from torch import nn

from exhaustive import exhaustive
from features import tiny_feature
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.tree import TokenTree
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.grow import Grown
from sequoia_cli.engine.head import OutputHead
from text_distributions import CUT, VOCABULARY, WHOLE, p_value, table_distribution, texts

WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))
ODD = torch.arange(1, VOCABULARY, 2)


def random_table(seed, columns=VOCABULARY):
    logits = torch.randn(VOCABULARY, columns, generator=torch.Generator().manual_seed(seed))
    return (1.5 * logits.double()).softmax(-1).tolist()


SAID = random_table(0)


class StatefulTarget(ScriptedTarget):
    """A scripted target with a last hidden state behind each token, as wide as a feature draft's."""

    def open(self, prompt, capacity, taps=()):
        text, _ = super().open(prompt, capacity, taps)
        run = text.run

        def with_states(parents, tokens, *, taps=()):
            return run(parents, tokens)._replace(hidden=tuple(STATES[tokens] for _ in taps))

        text.run = with_states
        return text, tuple(STATES[prompt] for _ in taps) if len(prompt) else ()


STATES = torch.randn(VOCABULARY, 16, generator=torch.Generator().manual_seed(1))


def feature(ids=None):
    weights = torch.randn(2, VOCABULARY, 16, generator=torch.Generator().manual_seed(2))
    embedding, head = nn.Embedding.from_pretrained(weights[0]), OutputHead(weights[1] / 4)
    network = tiny_feature(16, heads=2, kv_heads=1)
    return FeatureDraft(network, embedding, head.only(ids) if ids is not None else head, 1000, ids)


def scripted(ids):
    return ScriptedDraft(random_table(3, len(ids)), ids=ids)


def found(drafts, sampling, length):
    """Counts of texts, and their distribution."""
    run = Decoder(StatefulTarget(SAID), drafts, WIDE, sampling)
    return texts(run, length), table_distribution(SAID, sampling, length)


def test_texts_of_three_tokens_have_the_targets_distribution():
    assert p_value(*found([feature()], CUT, 3)) > 1e-6


@exhaustive
def test_texts_of_two_kinds_of_drafts_with_different_ids_have_the_targets_distribution():
    assert p_value(*found([feature(ODD), scripted(ODD - 1)], CUT, 3)) > 1e-6


def without_a_column(by_text):
    """The part of texts that have none of the draft's ids."""
    return sum(part for text, part in by_text.items() if not set(text) & set(ODD.tolist()))


@pytest.mark.parametrize("draft", [feature, scripted])
def test_ids_that_a_draft_lacks_come_out_as_often_as_the_target_says(draft):
    counts, distribution = found([draft(ODD)], WHOLE, 2)
    assert p_value(counts, distribution) > 1e-6
    assert without_a_column(distribution) > 0.1 and without_a_column(counts) > 0


@pytest.mark.parametrize("draft", [feature, scripted])
def test_the_check_sees_ids_that_a_draft_lacks_taken_for_proposed(draft, monkeypatch):
    def mixed(grown, node, vocabulary):
        return 0.5 * right(grown, node, vocabulary) + 0.5 / VOCABULARY

    right = Grown.probs
    monkeypatch.setattr(Grown, "probs", mixed)
    assert p_value(*found([draft(ODD)], WHOLE, 2)) < 1e-6
