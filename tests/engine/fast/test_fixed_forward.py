"""The forward over fixed buffers against its slow twin, and recorded as a CUDA graph would be."""

import gc
import warnings

import pytest
import torch

from decoding import PROMPT, TREE, new_ids, own_greedy
from exhaustive import few
from models import SUPPORTED, near, tiny_model
from recording import recorded
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast import fixed_cache
from sequoia_cli.engine.fast.capture import Recorder, cuda_graphs
from sequoia_cli.engine.fast.fixed_cache import FixedCache, RowPool
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.nodes import chain_block
from sequoia_cli.engine.target import LAST

EXACT = {torch.float64: 1e-13, torch.float32: 1e-5}
#: Families by what their masks are: full, both kinds, all sliding; learned positions.
WINDOWS = {
    "llama": {},
    "gemma3": {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": {"sliding_window": 6},
    "gpt2": {},
}
STAR = TokenTree((-1, *[0] * 12))
#: Trees by turns, so that each size is run as it is, recorded, and replayed behind several lengths.
TREES = [TREE, STAR, ROOT_ONLY, chain(5)]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    monkeypatch.setattr(fixed_cache, "BUCKET", 16)


@pytest.fixture
def no_refusal():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


def as_it_is(function):
    """What stands for recording where nothing can be recorded."""
    return function


def twins(family, dtype, capture, **overrides):
    slow, fixed = (LanguageModel(tiny_model(family, **overrides).to(dtype)) for _ in range(2))
    fixed.fix_buffers(capture)
    return slow, fixed


def outputs(model, trees, hidden=False):
    """Logits and hidden states of every tree, each after a path of the one before it."""
    text, _ = model.open(torch.tensor(PROMPT), 80)
    ids = torch.Generator().manual_seed(0)
    found = []
    for tree in trees:
        tokens = torch.randint(0, 64, (tree.size,), generator=ids)
        output = text.run(tree.parents, tokens, taps=LAST if hidden else ())
        found.append((output.logits, *output.hidden))
        text.keep(tree.path(tree.size - 1))
    assert text.length > 32, "the text crosses no border of a bucket"
    return found


def assert_close(found, expected, dtype):
    for one, other in zip(found, expected, strict=True):
        for part, twin in zip(one, other, strict=True):
            assert (part - twin).abs().max() <= EXACT[dtype] * twin.abs().max()


@pytest.mark.parametrize("capture", [as_it_is, recorded])
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("family", few(WINDOWS, "llama", "gemma3"))
@pytest.mark.parametrize("hidden", [False, True])
def test_logits_of_trees_are_those_of_the_ordinary_forward(family, dtype, capture, hidden, no_refusal):
    slow, fixed = twins(family, dtype, capture, **WINDOWS[family])
    assert isinstance(fixed.new_cache(8), FixedCache)
    trees = TREES * 4
    assert_close(outputs(fixed, trees, hidden), outputs(slow, trees, hidden), dtype)


@pytest.mark.parametrize("family", few(SUPPORTED, "llama", "gemma3", "gpt2"))
def test_greedy_ids_equal_the_familys_own_generate(family, no_refusal):
    target = tiny_model(family)
    model, draft = LanguageModel(target), LanguageModel(near(target, 0.02))
    for each in (model, draft):
        each.fix_buffers(recorded)
    decoder = Decoder(model, [IndependentDraft(draft, model.vocabulary)], TREE)
    for count in (20, 12):  # the second text meets what the first has recorded
        assert new_ids(decoder, count=count) == own_greedy(target, count=count)


@pytest.mark.parametrize(
    "tree", few([ROOT_ONLY, chain(5), STAR], chain(5)), ids=lambda tree: f"{tree.size}x{tree.depth}"
)
def test_greedy_texts_of_several_lengths_by_turns_are_the_targets_own(tree, no_refusal):
    target = tiny_model("llama")
    model, draft = LanguageModel(target), LanguageModel(near(target, 0.02))
    for each in (model, draft):
        each.fix_buffers(recorded)
    decoder = Decoder(model, [IndependentDraft(draft, 64)], tree)
    for prompt, count in ((PROMPT, 30), (PROMPT[:1], 60), (PROMPT * 4, 9), (PROMPT, 30)):
        assert new_ids(decoder, prompt, count) == own_greedy(target, prompt, count)


def test_two_texts_at_once_do_not_share_rows(no_refusal):
    target = tiny_model("llama")
    model = LanguageModel(target)
    model.fix_buffers(recorded)
    runs = [Decoder(model).decode(prompt, 20) for prompt in (PROMPT, PROMPT[::-1])]
    steps = list(zip(*runs, strict=True))
    for prompt, texts in zip((PROMPT, PROMPT[::-1]), zip(*steps, strict=True), strict=True):
        assert [step.tokens[0] for step in texts] == own_greedy(target, prompt, 20)


def test_rows_and_recordings_are_used_again_once_their_text_is_gone():
    pool = RowPool()
    first = pool.lease(2, 20)
    rows = first.rows
    second = pool.lease(2, 20)
    assert second.rows is not rows
    first.advance(5)
    del first
    gc.collect()
    again = pool.lease(2, 10)
    assert (again.rows, again.length, again.capacity) == (rows, 0, 32)
    assert pool.lease(2, 33).capacity == 48


def test_a_forward_that_was_run_twice_runs_no_more_python(no_refusal):
    _, fixed = twins("llama", torch.float32, recorded)
    expected = outputs(fixed, TREES * 3)
    outputs(fixed, TREES * 3)
    calls = []
    for layer in fixed.model.model.layers:
        layer.register_forward_hook(lambda *_: calls.append(1))
    assert_close(outputs(fixed, TREES * 3), expected, torch.float32)
    assert len(calls) == fixed.config.num_hidden_layers  # the prompt's


def test_only_the_latest_forwards_are_kept_and_texts_stay_the_targets_own(monkeypatch, no_refusal):
    monkeypatch.setattr(fixed_cache, "MOST_FORWARDS", 2)
    target = tiny_model("llama")
    model = LanguageModel(target)
    model.fix_buffers(recorded)
    decoder = Decoder(model, [IndependentDraft(LanguageModel(near(target, 0.02)), 64)], TREE)
    for count in (40, 20):
        assert new_ids(decoder, count=count) == own_greedy(target, count=count)
    assert len(model.new_cache(8).rows._forwards) == 2


def test_what_a_replay_gave_is_not_overwritten_by_the_next(no_refusal):
    _, fixed = twins("llama", torch.float32, recorded)
    cache, logits = fixed.new_cache(8), []
    for place in range(6):
        logits.append(fixed.forward(torch.tensor([place]), torch.tensor([place]), cache, None).logits)
    assert len({float(row[0, 0]) for row in logits}) == 6


def test_memory_that_was_never_written_does_not_reach_the_logits(monkeypatch):
    slow, fixed = twins("llama", torch.float64, as_it_is)
    right = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **o: right(*a, **o).fill_(float("nan")))
    assert_close(outputs(fixed, TREES * 4), outputs(slow, TREES * 4), torch.float64)


def test_more_rows_than_the_cache_has_are_refused():
    _, fixed = twins("llama", torch.float32, as_it_is)
    cache = fixed.new_cache(16)
    with pytest.raises(ValueError, match="17 rows do not fit into a cache of 16"):
        tokens, masks = torch.arange(17), fixed.masks(chain_block(17), 40)
        fixed.forward(tokens, tokens, cache, masks)


def test_a_model_whose_length_is_recorded_is_not_replayed(monkeypatch):
    model = LanguageModel(tiny_model("llama"))
    right = model._run

    def by_the_length(tokens, positions, cache, mask, hidden, keep):
        return right(tokens, positions * 0 + cache.get_seq_length(), cache, mask, hidden, keep)

    monkeypatch.setattr(model, "_run", by_the_length)
    with pytest.warns(RuntimeWarning, match="wrong when it is replayed"):
        model.fix_buffers(recorded)
    assert not isinstance(model.new_cache(8), FixedCache)


def test_a_function_that_cannot_be_recorded_is_run_as_it_is_and_that_is_said_once():
    recorder = Recorder(recorded, "the model")
    values = torch.ones(3)

    def reads():
        return (values * values.sum().item(),)

    with pytest.warns(RuntimeWarning, match="the model runs without CUDA graphs: operation not permitted"):
        assert recorder(reads) is reads
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert recorder(lambda: (values,))()[0] is values
    assert "_local_scalar_dense" in recorder.refusal
    assert recorder.other("the rest").refusal is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["llama", "gemma3", "mistral"])
def test_cuda_graphs_give_the_logits_of_the_ordinary_forward(family, no_refusal):
    cuda = torch.device("cuda")
    slow, fixed = (LanguageModel(tiny_model(family, **WINDOWS[family]).double().to(cuda)) for _ in range(2))
    fixed.fix_buffers(cuda_graphs(cuda))
    with torch.device(cuda):
        assert_close(outputs(fixed, TREES * 4), outputs(slow, TREES * 4), torch.float64)
