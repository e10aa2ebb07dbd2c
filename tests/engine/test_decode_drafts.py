"""The decoding loop with several drafts on tiny random models: the target's own text, caches that keep up."""

import pytest
import torch

from decoding import PROMPT, TREE, decoder, new_ids, own_greedy
from exhaustive import few
from models import near, tiny_model
from sequoia_cli.core.tree import TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput

WIDE = TokenTree((-1, 0, 0, 0, 1, 1, 2, 3, 4, 6))


class CheckedDraft(IndependentDraft):
    """A draft that compares what its cache gives at the root of every step with a run over the whole text."""

    taps = (-1,)

    def start(self, prompt, capacity, hidden):
        super().start(prompt, capacity, hidden)
        self.text, self.left_early, self.checked = prompt.tolist(), 0, 0
        assert [len(states) for states in hidden] == [len(prompt) - 1]

    def extend(self, parents, tokens):
        proposals = super().extend(parents, tokens)
        if parents[0] < 0:
            assert tokens.tolist() == self.text[-1:]
            logits = self.model.model(input_ids=torch.tensor([self.text])).logits[0, -1:]
            assert torch.allclose(proposals.logits, logits, atol=1e-9)
            self.checked += 1
        return proposals

    def commit(self, path, tokens, hidden):
        assert [len(states) for states in hidden] == [len(tokens)]
        self.left_early += len(path) < len(tokens)
        self.text += tokens
        super().commit(path, tokens, hidden)


def checked_decoder(tree, temperature, *scales):
    target = tiny_model("llama").double()
    drafts = [CheckedDraft(LanguageModel(near(target, scale, seed)), 64) for seed, scale in enumerate(scales)]
    return Decoder(LanguageModel(target), drafts, tree, Sampling(temperature)), drafts


@pytest.mark.parametrize("tree", few([chain(5), TREE, WIDE], WIDE), ids=["chain", "tree", "wide"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_drafts_cache_holds_the_text_wherever_the_path_left_its_tree(tree, temperature):
    decoder, drafts = checked_decoder(tree, temperature, 0.06, 0.06, 0.06)
    steps = list(decoder.decode(PROMPT, 100, generator=torch.Generator().manual_seed(1)))
    text = PROMPT + [token for step in steps for token in step.tokens]
    assert len(text) == len(PROMPT) + 100
    for draft in drafts:
        assert draft.text[: len(text)] == text
        assert draft.checked >= len(steps) - 1
    assert sum(draft.left_early for draft in drafts) >= 5


@pytest.mark.parametrize("family", few(["llama", "gpt2", "gemma2", "gemma3", "mistral"], "gpt2", "gemma3"))
@pytest.mark.parametrize("tree", [chain(5), TREE], ids=["chain", "tree"])
def test_greedy_ids_equal_the_targets_own_with_drafts_of_different_quality(family, tree):
    window = {"sliding_window": 6} if family in ("gemma2", "gemma3", "mistral") else {}
    target = tiny_model(family, **window)
    drafts = near(target, 0.05), tiny_model("llama", seed=9), near(target, 0.02, seed=1)
    assert new_ids(decoder(target, *drafts, tree=tree)) == own_greedy(target)
    assert new_ids(decoder(target, *reversed(drafts), tree=tree)) == own_greedy(target)


def test_each_draft_may_have_a_tree_of_its_own():
    target = tiny_model("llama")
    drafts, trees = (near(target, 0.05), target), [WIDE, chain(5)]
    run = decoder(target, *drafts, tree=trees)
    steps = list(run.decode(PROMPT, 200))
    assert [token for step in steps for token in step.tokens] == own_greedy(target, count=200)
    assert all(len(step.tokens) == 5 for step in steps[:-1])  # the second draft's chain, whose depth it has
    assert max(step.size for step in steps) > WIDE.size
    with pytest.raises(BadInput, match="1 trees are given for 2 drafts"):
        decoder(target, *drafts, tree=[WIDE])


@pytest.mark.parametrize("place", [0, 1])
def test_a_draft_equal_to_the_target_takes_every_greedy_step_to_the_last_layer_beside_another(place):
    target = tiny_model("llama")
    drafts = [near(target, 0.05)]
    drafts.insert(place, target)
    steps = list(decoder(target, *drafts, tree=chain(5)).decode(PROMPT, 200))
    assert all(len(step.tokens) == step.depth for step in steps)
    assert {step.size for step in steps} & {6, 7, 8, 9}


def test_the_merged_tree_is_what_the_step_reports():
    target = tiny_model("llama")
    drafts = tiny_model("gpt2", seed=9), near(target, 0.02)
    run = decoder(target, *drafts, sampling=Sampling(1.0))
    steps = list(run.decode(PROMPT, 60, generator=torch.Generator().manual_seed(2)))
    assert all(TREE.size <= step.size <= 2 * TREE.size - 1 for step in steps if step.depth == TREE.depth)
    for step in steps:
        assert len(step.level_seconds) == len(step.level_widths) == 2 * (step.depth - 1)
        assert sum(step.level_seconds) == pytest.approx(step.seconds["draft"])
        assert len(step.tokens) <= len(step.ranks) + 1
    # Ranks beyond those of one draft's tree are children that only the second one proposed.
    assert any(rank >= TREE.max_branch for step in steps for rank in step.ranks)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_two_drafts_that_agree_are_as_one(temperature):
    target = tiny_model("llama")
    draft = near(target, 0.02)
    alone = list(decoder(target, draft).decode(PROMPT, 40))
    both = list(decoder(target, draft, draft).decode(PROMPT, 40))
    assert [step.tokens for step in both] == [step.tokens for step in alone]
    assert [step.size for step in both] == [step.size for step in alone]


def test_where_one_drafts_context_ends_the_text_goes_on_with_the_other():
    target = tiny_model("gpt2", n_positions=128)
    short, prompt = tiny_model("gpt2", n_positions=32), list(range(20))
    for drafts in ((short, target), (target, short)):
        steps = list(decoder(target, *drafts, tree=chain(5)).decode(prompt, 60))
        assert [token for step in steps for token in step.tokens] == own_greedy(target, prompt, 60)
        assert {len(step.level_widths) for step in steps} >= {8, 4}
        assert [len(step.tokens) for step in steps[-5:-1]] == [5] * 4
    steps = list(decoder(target, short, target, tree=chain(5)).decode(list(range(40)), 20))
    assert {len(step.level_widths) for step in steps} == {4}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_may_know_fewer_ids_than_the_target_each_its_own(temperature):
    target, whole = tiny_model("llama"), LanguageModel(tiny_model("llama", seed=2))
    ids = torch.arange(1, 64, 2)
    cut = tiny_model("llama", seed=3)
    cut.lm_head.weight.data = cut.lm_head.weight.data[ids]
    drafts = [
        IndependentDraft(LanguageModel(cut), 64, ids),
        IndependentDraft(LanguageModel(tiny_model("llama", vocab=50, seed=4)), 64),
        IndependentDraft(whole, 64),
    ]
    run = Decoder(LanguageModel(target), drafts, TREE, Sampling(temperature))
    found = new_ids(run, generator=torch.Generator().manual_seed(0))
    assert len(found) == 40
    if temperature == 0:
        assert found == own_greedy(target)


def test_the_same_seed_gives_the_same_text_with_several_drafts():
    target = tiny_model("llama")
    run = decoder(target, near(target, 0.02), near(target, 0.1), sampling=Sampling(1.0))
    texts = [new_ids(run, generator=torch.Generator().manual_seed(seed)) for seed in (17, 17, 18)]
    assert texts[0] == texts[1] != texts[2]
