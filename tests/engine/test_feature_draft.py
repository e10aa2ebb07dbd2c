"""A feature draft's probabilities behind every node of its trees equal a plain pass over the whole path."""

from typing import NamedTuple

import pytest
import torch

from decoding import PROMPT, TREE
from features import feature_draft, true_states, twin_logits
from models import tiny_model
from recording import recorded
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine import model as model_module
from sequoia_cli.engine.fast import fixed_cache
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling, probabilities

SAMPLING = Sampling(1.0)
#: Far below what any mistake gives (see the last tests), and far above rounding in float64.
EXACT, SEEN = 1e-10, 1e-3


class Taken(NamedTuple):
    """A step: its tree, the accepted path, and how many tokens another draft's tree added behind it."""

    tree: TokenTree
    path: tuple[int, ...]
    others: int = 0


#: Leaves, inner nodes and nothing accepted; no speculation, also twice; a path that leaves the draft's tree.
STEPS = [
    Taken(TREE, (0, 2, 6, 9)),
    Taken(TREE, (0,)),
    Taken(TREE, (0, 1)),
    Taken(ROOT_ONLY, (0,)),
    Taken(chain(4), (0, 1, 2, 3)),
    Taken(ROOT_ONLY, (0,)),
    Taken(ROOT_ONLY, (0,)),
    Taken(TREE, (0, 1, 4), 2),
    Taken(TREE, (0, 3)),
    Taken(chain(3), (0,), 1),
    Taken(TREE, (0, 1, 4, 7, 10)),
    Taken(TREE, (0,)),
]


class Walk:
    """A draft beside a text that grows by random tokens; `worst` is its largest error so far."""

    def __init__(self, family="llama", prompt=PROMPT, draft=None, capture=None, **options):
        self.target = LanguageModel(tiny_model(family).double())
        self.draft = draft or feature_draft(self.target, **options)
        if capture:
            self.draft.fix_buffers(capture)
        self.text, self.worst, self.compared = list(prompt), 0.0, 0
        self.random = torch.Generator().manual_seed(0)
        self.start(self.draft)

    def start(self, draft):
        hidden = [true_states(self.target, self.text[:-1])] if len(self.text) > 1 else []
        draft.start(torch.tensor(self.text), 80, hidden)

    def tokens(self, count):
        return torch.randint(0, 64, (count,), generator=self.random).tolist()

    def grow(self, tree, tokens, draft=None):
        """Probabilities after every node that has children, in the order in which the draft runs them."""
        rows, numbers = {}, {-1: -1}
        for nodes in tree.expanded:
            given = torch.tensor([tokens[node] for node in nodes])
            parents = [numbers[tree.parents[node]] for node in nodes]
            proposals = (draft or self.draft).extend(parents, given)
            rows.update(zip(nodes, proposals.probabilities(SAMPLING).probs, strict=True))
            numbers |= {node: len(numbers) - 1 + row for row, node in enumerate(nodes)}
        return rows

    def step(self, taken):
        tree, path, others = taken
        tokens = [self.text[-1], *self.tokens(tree.size - 1)]
        ran = self.grow(tree, tokens)
        for node, probs in ran.items():
            below = [tokens[each] for each in tree.path(node)[1:]]
            logits = twin_logits(self.draft, self.target, self.text, below)
            self.worst = max(self.worst, float((probs - probabilities(logits[None], SAMPLING)).abs().max()))
            self.compared += 1
        new = [tokens[node] for node in path[1:]] + self.tokens(others + 1)
        hidden = true_states(self.target, self.text + new[:-1])[-len(new) :]
        self.draft.commit([list(ran).index(node) for node in path if node in ran], new, [hidden])
        self.text += new
        return self


def walked(walk, steps=STEPS):
    for taken in steps:
        walk.step(taken)
    return walk


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gemma"])
@pytest.mark.parametrize("layers", [1, 2])
def test_every_node_of_every_tree_equals_a_plain_pass_over_its_path(family, layers):
    walk = walked(Walk(family, layers=layers))
    assert walk.worst < EXACT
    assert walk.compared == sum(len(level) for taken in STEPS for level in taken.tree.expanded) > 40


@pytest.mark.parametrize("layers", [1, 2])
def test_every_node_equals_that_pass_where_levels_are_recorded_and_replayed(layers, monkeypatch):
    monkeypatch.setattr(fixed_cache, "BUCKET", 40)
    walk = Walk(capture=recorded, layers=layers)
    passes = []
    monkeypatch.setattr(walk.draft, "_pass", counting(walk.draft._pass, passes))
    walked(walk)
    assert walk.worst < EXACT
    assert isinstance(walk.draft._cache, fixed_cache.FixedCache)
    assert len(passes) < sum(len(taken.tree.expanded) for taken in STEPS)  # the others were replayed


def counting(right, calls):
    def count(*arguments):
        calls.append(1)
        return right(*arguments)

    return count


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 7, 8])
def test_prompts_of_one_token_and_of_several_prefill_pieces(length, monkeypatch):
    monkeypatch.setattr(model_module, "PREFILL_TOKENS", 3)
    walk = walked(Walk(prompt=[*PROMPT, 9][:length], layers=2), STEPS[:3])
    assert walk.worst < EXACT


@pytest.mark.parametrize("ids", [range(0, 64, 3), range(64), [63]])
def test_a_reduced_draft_gives_the_probabilities_among_its_ids(ids):
    walk = walked(Walk(ids=torch.tensor(ids)), STEPS[:4])
    assert walk.worst < EXACT


@pytest.mark.parametrize("steps", [1, 3, 7, 9, len(STEPS)])
def test_after_any_commits_a_draft_is_as_one_freshly_started_on_the_text(steps):
    walk = walked(Walk(layers=2), STEPS[:steps])
    fresh = feature_draft(walk.target, layers=2)
    walk.start(fresh)
    tokens = [walk.text[-1], *walk.tokens(TREE.size - 1)]
    expected = walk.grow(TREE, tokens, fresh)
    for node, probs in walk.grow(TREE, tokens).items():
        assert torch.allclose(probs, expected[node], rtol=0, atol=EXACT)
    for mine, theirs in zip(walk.draft._cache.layers, fresh._cache.layers, strict=True):
        assert mine.length == theirs.length
        for states, same in ((mine.keys, theirs.keys), (mine.values, theirs.values)):
            assert torch.allclose(states[:, :, : mine.length], same[:, :, : mine.length], rtol=0, atol=EXACT)


def test_a_second_text_knows_nothing_of_the_first():
    walk = walked(Walk(), STEPS[:5])
    again = Walk(prompt=[7, 7, 1], draft=walk.draft)
    assert walked(again, STEPS[:5]).worst < EXACT


def test_a_tree_that_comes_again_is_masked_for_the_longer_text():
    walk = Walk()
    for taken in [STEPS[0], STEPS[4], STEPS[3], STEPS[2], STEPS[4], STEPS[0]]:
        walk.step(taken)
    assert walk.worst < EXACT


class SeesOtherBranches(FeatureDraft):
    def _mask(self, block, capacity):
        mask = super()._mask(block, capacity)
        mask._buffer = torch.zeros_like(mask._buffer)
        return mask


class StandsOneFurther(FeatureDraft):
    def _run(self, tokens, before, positions, block):
        return super()._run(tokens, before, positions + (len(block.column_depths) > len(tokens)), block)


class KeepsPredictedRows(FeatureDraft):
    def commit(self, path, tokens, hidden):
        first, rows = self._committed, self._cache.length
        super().commit(path, tokens, hidden)
        if len(path) > 1:
            for layer in self._cache.layers:
                layer.length = rows
            self._cache.keep(first, path)
            self._committed = self._cache.length
            self._pending = tuple(part[len(path) - 1 :] for part in self._pending)


class ForgetsTheRoot(FeatureDraft):
    def commit(self, path, tokens, hidden):
        super().commit(path, tokens, hidden)
        if path:
            self._committed -= 1
            self._cache.keep(self._committed, [])


class TakesTheStateBehindTheToken(FeatureDraft):
    def commit(self, path, tokens, hidden):
        (states,) = hidden
        super().commit(path, tokens, [torch.cat((states[1:], states[-1:]))])


class ReadsItsFirstParent(FeatureDraft):
    def extend(self, parents, tokens):
        proposals = super().extend(parents, tokens)
        self._states = self._states[:1].expand_as(self._states)
        return proposals


class ForgetsATokenWithoutSpeculation(FeatureDraft):
    def commit(self, path, tokens, hidden):
        super().commit(path, tokens, hidden)
        if not path:
            self._pending = tuple(part[-1:] for part in self._pending)


@pytest.mark.parametrize(
    "wrong",
    [
        SeesOtherBranches,
        StandsOneFurther,
        KeepsPredictedRows,
        ForgetsTheRoot,
        TakesTheStateBehindTheToken,
        ReadsItsFirstParent,
        ForgetsATokenWithoutSpeculation,
    ],
)
def test_the_comparison_sees_a_draft_that(wrong):
    assert walked(Walk(kind=wrong)).worst > SEEN


def test_the_comparison_sees_a_prompt_run_without_a_mask(monkeypatch):
    right = FeatureDraft._append
    monkeypatch.setattr(FeatureDraft, "_append", lambda *given: right(*given[:-1], None))
    assert Walk(layers=2).step(STEPS[1]).worst > SEEN  # the rows of a single layer read no other row
