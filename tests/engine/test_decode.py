"""The decoding loop on tiny random models: equal to the target's own `generate`, whatever tree and draft."""

import itertools

import pytest
import torch

from decoding import PROMPT, TREE, decoder, new_ids, own_greedy
from exhaustive import few
from models import SUPPORTED, near, tiny_model
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.grow import FixedShape
from sequoia_cli.engine.masks import TreeMask
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput

TREES = [ROOT_ONLY, chain(5), TREE, TokenTree((-1, *[0] * 20))]


@pytest.mark.parametrize("family", few(SUPPORTED, "llama", "gpt2", "gemma2", "falcon", "mixtral"))
def test_greedy_ids_equal_the_familys_own_generate(family):
    target = tiny_model(family)
    assert new_ids(decoder(target, near(target, 0.02))) == own_greedy(target)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.size}x{tree.depth}")
def test_the_tree_changes_the_steps_but_not_the_greedy_text(tree):
    target = tiny_model("llama")
    assert new_ids(decoder(target, near(target, 0.02), tree=tree)) == own_greedy(target)


def test_an_unrelated_draft_changes_nothing_but_the_steps():
    target = tiny_model("llama")
    assert new_ids(decoder(target, tiny_model("gpt2", seed=9))) == own_greedy(target)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3"])
def test_text_beyond_a_sliding_window_equals_the_familys_own(family):
    target = tiny_model(family, sliding_window=6)
    assert new_ids(decoder(target, near(target, 0.02))) == own_greedy(target)
    unwindowed = tiny_model(family, sliding_window=200)
    assert own_greedy(target) != own_greedy(unwindowed)


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_fast_models_sliding_layers_read_their_window_alone(family, monkeypatch):
    target = tiny_model(family, sliding_window=6)
    expected = own_greedy(target)
    model = LanguageModel(target)
    model.make_fast()
    widths, plain = [], TreeMask.over

    def watched(self, length, **options):
        found = plain(self, length, **options)
        widths.append((length, found.shape[-1]))
        return found

    monkeypatch.setattr(TreeMask, "over", watched)
    drafts = [IndependentDraft(LanguageModel(near(target, 0.02)), model.vocabulary)]
    assert new_ids(Decoder(model, drafts, TREE)) == expected
    assert model.reads_windows and not drafts[0].model.reads_windows
    narrow = [width for length, width in widths if width < length]
    assert narrow and max(narrow) < 6 + TREE.size
    assert len(narrow) < len(widths)  # the draft is not fast: its masks are whole


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_both_attention_implementations_give_the_same_text(attention):
    target = tiny_model("qwen2")
    expected = own_greedy(target)
    target.set_attn_implementation(attention)
    assert new_ids(decoder(target, near(target, 0.02))) == expected


def test_a_prompt_longer_than_a_prefill_piece_equals_generate():
    target = tiny_model("llama", max_position_embeddings=2048)
    prompt = torch.randint(0, 64, (1100,), generator=torch.Generator().manual_seed(0)).tolist()
    assert new_ids(decoder(target, near(target, 0.02)), prompt, 12) == own_greedy(target, prompt, 12)


def test_logits_of_every_node_equal_a_plain_forward_over_its_path():
    model = LanguageModel(tiny_model("llama").double())
    prefix, nodes = torch.tensor(PROMPT), torch.arange(TREE.size) + 20
    text, _ = model.open(prefix, 40)
    logits = text.run(TREE.parents, nodes).logits
    for node in range(TREE.size):
        path = torch.cat((prefix, nodes[TREE.path(node)]))
        expected = model.model(input_ids=path[None]).logits[0, -1]
        assert torch.allclose(logits[node], expected, atol=1e-12)


def test_the_cache_after_a_commit_equals_a_fresh_prefill():
    model = LanguageModel(tiny_model("llama").double())
    path = TREE.path(9)
    prefix, nodes = torch.tensor(PROMPT), torch.arange(TREE.size) + 20
    text, _ = model.open(prefix, 40)
    text.run(TREE.parents, nodes)
    text.keep(path)
    cache = text._cache
    fresh = model.new_cache(40)
    model.prefill(torch.cat((prefix, nodes[path])), fresh)
    assert cache.length == fresh.length
    for layer, expected in zip(cache.layers, fresh.layers, strict=True):
        rows = slice(0, fresh.length)
        assert torch.allclose(layer.keys[:, :, rows], expected.keys[:, :, rows], atol=1e-12)
        assert torch.allclose(layer.values[:, :, rows], expected.values[:, :, rows], atol=1e-12)


@pytest.mark.parametrize("tree", [chain(5), TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_equal_to_the_target_is_accepted_to_the_last_layer_in_every_step(tree, temperature):
    # Its cache would drift, and acceptance with it, if one committed token were never run or one row kept.
    target = tiny_model("llama")
    sampling = Sampling(temperature)
    steps = list(decoder(target, target, tree=tree, sampling=sampling).decode(PROMPT, 200))
    assert sum(len(step.tokens) for step in steps) == 200
    if tree.is_chain or temperature == 0:
        assert all(len(step.tokens) == step.depth for step in steps)
    else:  # the children after the first are other samples, so only the first is certain to be accepted
        assert all(step.ranks[:1] == (0,) for step in steps[:-1])


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9])
def test_exactly_as_many_tokens_as_asked_for(count):
    target = tiny_model("llama")
    steps = list(decoder(target, target, tree=chain(8)).decode(PROMPT, count))
    ids = [token for step in steps for token in step.tokens]
    assert ids == own_greedy(target)[:count]
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["length"] * bool(count)


@pytest.mark.parametrize("tree", [chain(8), TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("place", range(8))
def test_text_ends_at_an_end_id_wherever_it_stands_in_a_step(tree, place):
    target = tiny_model("llama")
    own = own_greedy(target)
    end = own[place]
    steps = list(decoder(target, target, tree=tree).decode(PROMPT, 40, eos_ids=(63, end)))
    ids = [token for step in steps for token in step.tokens]
    assert ids == own[: own.index(end) + 1]
    assert steps[-1].finish == "stop"


def test_text_ends_where_the_context_does_and_is_right_up_to_there():
    target = tiny_model("gpt2", n_positions=32)
    prompt = list(range(20, 48))
    for count in (4, 5):
        assert new_ids(decoder(target, target), prompt, count) == own_greedy(target, prompt, count)
    steps = list(decoder(target, target).decode(prompt, 8))
    assert [token for step in steps for token in step.tokens] == own_greedy(target, prompt, 5)
    assert steps[-1].finish == "context"
    assert len(new_ids(decoder(target, target), list(range(32)), 5)) == 1
    with pytest.raises(BadInput, match="33 tokens; the context ends at 32"):
        new_ids(decoder(target, target), list(range(33)), 5)


@pytest.mark.parametrize("prompt_tokens", [20, 32, 40])
def test_where_the_drafts_context_ends_the_text_goes_on_without_it(prompt_tokens):
    target, draft = tiny_model("gpt2", n_positions=64), tiny_model("gpt2", n_positions=32)
    prompt = list(range(prompt_tokens))
    steps = list(decoder(target, draft).decode(prompt, 22))
    assert [token for step in steps for token in step.tokens] == own_greedy(target, prompt, 22)
    assert steps[-2].size == 1


@pytest.mark.parametrize(("target_ids", "draft_ids"), [(64, 50), (50, 64)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_vocabularies_may_differ_in_size(target_ids, draft_ids, temperature):
    target, draft = tiny_model("llama", vocab=target_ids), tiny_model("llama", vocab=draft_ids, seed=2)
    generator = torch.Generator().manual_seed(0)
    prompt = [*PROMPT, target_ids - 1]
    ids = new_ids(decoder(target, draft, sampling=Sampling(temperature)), prompt, generator=generator)
    assert len(ids) == 40 and max(ids) < target_ids
    if temperature == 0:
        assert ids == own_greedy(target, prompt)


def test_the_same_seed_gives_the_same_text_and_another_seed_another():
    target = tiny_model("llama")
    run = decoder(target, near(target, 0.02), sampling=Sampling(1.0))
    texts = [new_ids(run, generator=torch.Generator().manual_seed(seed)) for seed in (17, 17, 18)]
    assert texts[0] == texts[1] != texts[2]


def test_every_step_takes_fresh_noise():
    target = tiny_model("llama")
    run = decoder(target, near(target, 0.02), tree=ROOT_ONLY, sampling=Sampling(1.0))
    generator = torch.Generator().manual_seed(0)
    states = []
    for _ in run.decode(PROMPT, 5, generator=generator):
        states.append(generator.get_state())
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(states))


def test_the_stages_of_a_step_are_timed():
    target = tiny_model("llama")
    steps = list(decoder(target, near(target, 0.02)).decode(PROMPT, 20))
    assert set(steps[0].seconds) == {"prefill", "draft", "target", "verify", "other"}
    assert set(steps[1].seconds) == {"draft", "target", "verify", "other"}
    assert len(steps[0].level_seconds) == TREE.depth - 1
    assert sum(steps[0].level_seconds) == pytest.approx(steps[0].seconds["draft"])


def test_impossible_combinations_are_refused():
    target = tiny_model("llama")
    with pytest.raises(BadInput, match="no draft"):
        decoder(target)
    with pytest.raises(BadInput, match="65 children"):
        decoder(target, target, tree=TokenTree((-1, *[0] * 65)))
    with pytest.raises(BadInput, match="draft temperature"):
        decoder(target, target, sampling=Sampling(1.0), draft_sampling=Sampling(0.0))
    with pytest.raises(BadInput, match="no tokens"):
        new_ids(decoder(target, target), [])


class EveryOther(FixedShape):
    """Two children for every other node that the draft runs, so that trees differ and some nodes get none."""

    def __init__(self, tree):
        super().__init__(tree)
        self.turn, self.most = 0, tree.size

    def start(self, layers):
        self.layers, self.total = layers, 1
        return self.most

    def run(self, nodes):
        self.layers -= 1
        return tuple(nodes) if self.layers > 0 else ()

    def children(self, nodes, largest):
        counts = []
        for _ in nodes:
            self.turn += 1
            counts.append(2 if self.turn % 2 and self.total + 2 <= self.most else 0)
            self.total += counts[-1]
        return counts


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_shape_may_leave_nodes_that_were_run_without_children(temperature, at_once):
    target = tiny_model("llama")
    draft = IndependentDraft(LanguageModel(near(target, 0.02)), 64)
    run = Decoder(
        LanguageModel(target), [draft], TREE, Sampling(temperature), shape=EveryOther, at_once=at_once
    )
    steps = list(run.decode(PROMPT, 60, generator=torch.Generator().manual_seed(0)))
    assert all(len(step.level_widths) == len(step.level_seconds) for step in steps)
    assert len({step.size for step in steps}) > 1
    if not temperature:
        assert [token for step in steps for token in step.tokens] == own_greedy(target, count=60)
