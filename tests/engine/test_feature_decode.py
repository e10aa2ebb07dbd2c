"""The decoding loop with feature drafts and reduced ids: the target's own text, whatever they propose."""

import pytest
import torch

from decoding import TREE, new_ids, own_greedy
from features import feature_draft, twin_logits
from models import near, tiny_model
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling

VOCABULARY, PROMPT = 12, [5, 3, 8, 1]
FULL = TokenTree((-1, *[0] * 4, *[1] * 3, *[2] * 3, *[3] * 3, 5, 5, 8, 11))
ODD = torch.arange(1, VOCABULARY, 2)


def tiny(family="llama", vocab=VOCABULARY):
    return LanguageModel(tiny_model(family, vocab))


def independent(target, scale=0.05, ids=None):
    """A draft close to the target; with `ids` its head has only those rows."""
    model = near(target.model, scale)
    if ids is not None:
        model.lm_head.weight.data = model.lm_head.weight.data[ids]
    return IndependentDraft(LanguageModel(model), target.vocabulary, ids)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma2", "opt"])
@pytest.mark.parametrize("tree", [chain(5), FULL], ids=["chain", "tree"])
def test_greedy_ids_equal_the_targets_own(family, tree):
    target = tiny(family)
    own = own_greedy(target.model, PROMPT)
    assert new_ids(Decoder(target, [feature_draft(target, layers=2)], tree), PROMPT) == own
    for prompt in ([5], list(range(12)) * 3):
        run = Decoder(target, [feature_draft(target)], tree)
        assert new_ids(run, prompt, 12) == own_greedy(target.model, prompt, 12)


@pytest.mark.parametrize("ids", [ODD, ODD[:1]], ids=["half", "one"])
@pytest.mark.parametrize("tree", [chain(4), FULL], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_of_few_ids_decodes_with_any_tree(ids, tree, temperature):
    target = tiny()
    for draft in (feature_draft(target, ids), independent(target, ids=ids)):
        run = Decoder(target, [draft], tree, Sampling(temperature))
        found = new_ids(run, PROMPT, generator=torch.Generator().manual_seed(0))
        assert len(found) == 40
        assert set(found) - set(ids.tolist())
        if temperature == 0:
            assert found == own_greedy(target.model, PROMPT)


@pytest.mark.parametrize("feature_first", [True, False])
def test_greedy_ids_equal_the_targets_own_beside_a_draft_of_the_other_kind(feature_first):
    target = tiny()
    drafts = [feature_draft(target), independent(target, ids=ODD), independent(target)]
    run = Decoder(target, drafts if feature_first else drafts[::-1], FULL)
    steps = list(run.decode(PROMPT, 40))
    assert [token for step in steps for token in step.tokens] == own_greedy(target.model, PROMPT)
    assert max(len(step.tokens) for step in steps) == FULL.depth


class CheckedFeatureDraft(FeatureDraft):
    """A draft that compares what it gives behind every node with its slow twin on the text so far."""

    def start(self, prompt, capacity, hidden):
        super().start(prompt, capacity, hidden)
        self.text, self.below, self.checked = prompt.tolist(), 0, 0

    def extend(self, parents, tokens):
        proposals = super().extend(parents, tokens)
        if parents[0] < 0:
            assert tokens.tolist() == self.text[-1:]
            self.paths = [[]]  # the tokens from the root down to each node, the root's left out
        else:
            self.paths += [
                [*self.paths[up], token] for up, token in zip(parents, tokens.tolist(), strict=True)
            ]
        for row, path in enumerate(self.paths[-len(tokens) :]):
            expected = twin_logits(self, self.target, self.text, path)
            assert torch.allclose(proposals.logits[row], expected, rtol=0, atol=1e-9)
            self.checked += 1
        return proposals

    def commit(self, path, tokens, hidden):
        self.below += len(path) - 1
        self.text += tokens
        super().commit(path, tokens, hidden)


@pytest.mark.parametrize("tree", [chain(4), TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_draft_holds_the_text_wherever_the_path_left_its_tree(tree, temperature):
    target = LanguageModel(tiny_model("llama", VOCABULARY).double())
    draft = feature_draft(target, kind=CheckedFeatureDraft, layers=2)
    draft.target = target
    run = Decoder(target, [draft, independent(target)], tree, Sampling(temperature))
    steps = list(run.decode(PROMPT, 40, generator=torch.Generator().manual_seed(1)))
    text = PROMPT + [token for step in steps for token in step.tokens]
    assert draft.text[: len(text)] == text
    assert draft.checked >= len(steps) - 1
    accepted = sum(len(step.ranks) for step in steps)
    assert 0 < draft.below < accepted  # some nodes of its own were accepted, and some only of the other's
