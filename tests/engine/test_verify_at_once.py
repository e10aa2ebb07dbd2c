"""Verification on the device: exactly the slow twins' on the same noise, and read by the host only once."""

import random
from dataclasses import replace

import pytest
import torch

from decoding import PROMPT, TREE
from exhaustive import exhaustive, few
from features import feature_draft
from models import near, tiny_model
from oracles import trees_up_to
from recording import reading_counted, recorded
from reference import inverse, normalised, ordered_draws, walk, without
from scripted import ScriptedDraft, ScriptedTarget
from sequoia_cli.core.tree import ROOT_ONLY, TokenTree, chain
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.draw import top_children
from sequoia_cli.engine.fast.capture import Recorder
from sequoia_cli.engine.merge import unmerged
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification.at_once import (
    DeviceResidual,
    DeviceWalk,
    TreeTable,
    read_walk,
    walk_on_device,
)
from sequoia_cli.engine.verification.verifiers import NAIVE, SEQUOIA, SPECINFER, SPECTR, TRAVERSAL
from sequoia_cli.engine.warp import Sampling, probabilities
from text_distributions import CUT, VOCABULARY, WHOLE, exact_distribution, p_value, table_distribution, texts

CPU = torch.device("cpu")
TREES = [*trees_up_to(5), TokenTree((-1, 0, 0, 0, 1, 1, 2, 4, 4, 5)), TokenTree((-1, 0, 0, 0, 0))]


def random_row(rng, size, zeros):
    row = [0.0 if zeros and rng.random() < 0.5 else rng.random() ** 3 for _ in range(size)]
    row[rng.randrange(size)] += 0.05
    return normalised(row)


def drawn_tokens(rng, tree, rows, verifier=SEQUOIA):
    """Tokens drawn as the verifier has it; without replacement from all ids, where no mass is left."""
    tokens = [0] * tree.size
    for node in range(tree.size):
        tried = []
        for rank, child in enumerate(tree.children[node]):
            if verifier is NAIVE:
                tokens[child] = sorted(range(len(rows[node])), key=lambda token: -rows[node][token])[rank]
                continue
            once = tried and verifier is SEQUOIA
            tokens[child] = inverse(without(rows[node], tried) if once else rows[node], rng.random())
            tried.append(tokens[child])
    return tokens


def on_device(tree, tokens, target, draft, uniforms, verifier=SEQUOIA):
    """The walk for rows of all nodes."""
    table = TreeTable(tree, CPU)
    rows, proposed = torch.stack(target), torch.stack(draft)
    found = walk_on_device(
        table,
        verifier.on_device,
        rows.__getitem__,
        proposed.__getitem__,
        torch.tensor(tokens)[None],
        torch.tensor(uniforms, dtype=torch.float64)[None],
    )
    return read_walk(found[0].tolist(), len(table.most))


def host(tree, tokens, target, draft, uniforms, verifier=SEQUOIA):
    alone = unmerged(tree, tokens)
    rows = dict(enumerate(draft))
    return verifier.judge(tokens, target.__getitem__, lambda node: alone.drawn(node, [rows]), uniforms)


RULES = [SEQUOIA, SPECINFER, SPECTR, NAIVE]


@pytest.mark.parametrize("verifier", RULES, ids=lambda verifier: verifier.name)
def test_every_tree_is_verified_as_the_slow_twins_do_on_the_same_noise(verifier):
    rng, lengths = random.Random(0), set()
    for trial, tree in enumerate(TREES * 12):
        size, zeros = rng.choice((4, 6, 9)), trial % 2 == 0
        target, draft = ([random_row(rng, size, zeros) for _ in range(tree.size)] for _ in range(2))
        tokens = drawn_tokens(rng, tree, draft, verifier)
        uniforms = [rng.random() for _ in range(tree.size + 1)]
        rows, columns = ([torch.tensor(row, dtype=torch.float64) for row in part] for part in (target, draft))
        found = on_device(tree, tokens, rows, columns, uniforms, verifier)
        assert found == host(tree, tokens, rows, columns, uniforms, verifier)
        if verifier is SEQUOIA:
            expected = walk(tree, tokens, target.__getitem__, draft.__getitem__, uniforms)
            assert (found.path, found.next_token) == expected
        lengths.add(len(found.path))
    assert {1, 2, 3} <= lengths


def test_leaf_first_verification_is_left_to_the_host():
    assert TRAVERSAL.on_device is None


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.float32, torch.float64)], ids=["float32", "mixed"]
)
def test_narrow_rows_are_verified_as_by_the_host(dtypes):
    rng = random.Random(1)
    for trial in range(200):
        tree, size = TREES[-2 + trial % 2], 50
        target, draft = (
            [torch.tensor(random_row(rng, size, trial % 3 == 0)).to(dtype) for _ in range(tree.size)]
            for dtype in dtypes
        )
        tokens = drawn_tokens(rng, tree, [row.tolist() for row in draft])
        uniforms = [rng.random() for _ in range(tree.size + 1)]
        assert on_device(tree, tokens, target, draft, uniforms) == host(tree, tokens, target, draft, uniforms)


def test_an_exhausted_draft_and_an_emptied_residual_are_verified_as_by_the_host():
    star, fallbacks = TokenTree((-1, 0, 0, 0)), 0
    rows = [torch.tensor(row) for row in ([1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0, 0, 0.5, 0.5])]
    rng = random.Random(2)
    for target in rows:
        for draft in rows:
            for _ in range(20):
                tokens = drawn_tokens(rng, star, [draft.tolist()] * 4)
                # 1.0 rejects what can only be accepted, which rounding alone does.
                uniforms = [rng.choice((0.0, 0.3, 0.9, 1.0)) for _ in range(4)] + [rng.random()]
                found = on_device(star, tokens, [target] * 4, [draft] * 4, uniforms)
                assert found == host(star, tokens, [target] * 4, [draft] * 4, uniforms)
                fallbacks += found.fallbacks
    assert fallbacks > 20


def grid_error(target, draft, cells=24, **changed):
    """How far the distribution of the token after two children is from the target's, by a grid of noise.

    All probabilities below are multiples of 1/8 and all tests change at borders of cells, so that shares of
    cells are the distribution itself. `verified_by` is the negative control.
    """
    draws = list(ordered_draws(draft, 2))
    points = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    first, second = (part.flatten() for part in torch.meshgrid(points, points, indexing="ij"))
    count = len(draws) * len(first)  # texts side by side, each with a root and two children
    pairs = torch.tensor([tokens for tokens, _ in draws]).repeat_interleave(len(first), 0)
    tokens = torch.cat((torch.zeros(count, 1, dtype=torch.long), pairs), 1)
    tests = torch.stack((first, second), 1).repeat(len(draws), 1)
    weights = torch.tensor([chance for _, chance in draws], dtype=torch.float64).repeat_interleave(len(first))
    found = torch.zeros(len(target), dtype=torch.float64)
    wanted, offered = (
        torch.tensor(row, dtype=torch.float64).expand(count, -1)
        for row in (target, changed.get("verified_by", draft))
    )
    table = TreeTable(TokenTree((-1, 0, 0)), CPU)
    for last in points:
        zeros, lasts = torch.zeros(count, 1, dtype=torch.float64), last.expand(count, 1)
        uniforms = torch.cat((zeros, tests, lasts), 1)
        rows = walk_on_device(
            table, SEQUOIA.on_device, lambda node: wanted, lambda node: offered, tokens, uniforms
        )
        accepted, after = rows[:, 0], rows[:, 1]
        given = torch.where(accepted > 0, tokens.gather(1, accepted[:, None])[:, 0], after)
        found.index_add_(0, given, weights)
    found /= len(first) * cells
    return float((found - torch.tensor(target, dtype=torch.float64)).abs().max())


DISTRIBUTIONS = [
    ([0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]),
    ([0.125, 0.125, 0.5, 0.25], [0.5, 0.25, 0.25, 0.0]),
    ([0.0, 0.5, 0.5], [0.75, 0.25, 0.0]),
]


@pytest.mark.parametrize(("target", "draft"), DISTRIBUTIONS)
def test_the_distribution_over_all_draws_and_a_grid_of_noise_is_the_targets(target, draft):
    assert grid_error(target, draft) < 1e-9


@pytest.mark.parametrize(("target", "draft"), DISTRIBUTIONS[1:])
def test_the_grid_sees_children_that_were_drawn_from_another_distribution(target, draft):
    assert grid_error(target, draft, verified_by=draft[::-1]) > 0.03


#: Behind each of four tokens: what the target says, and a draft that is wrong.
SAID = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.0, 0.5], [0.25, 0.25, 0.25, 0.25]]
GUESSED = [[0.05, 0.05, 0.1, 0.8], [0.0, 0.0, 0.9, 0.1]] * 2
WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


def scripted_p_value(tree, samplings=(WHOLE, WHOLE), verifier=SEQUOIA):
    """Of three tokens behind the last of the prompt."""
    drafts = [ScriptedDraft(GUESSED)] if tree.size > 1 else []
    decoder = Decoder(ScriptedTarget(SAID), drafts, tree, *samplings, verifier=verifier, at_once=True)
    return p_value(texts(decoder, 3), table_distribution(SAID, samplings[0], 3))


@pytest.mark.parametrize("tree", few([ROOT_ONLY, chain(3), TokenTree((-1, 0, 0, 0, 0)), WIDE], WIDE), ids=str)
@pytest.mark.parametrize("samplings", [(WHOLE, WHOLE), (CUT, Sampling(3.0, 0, 0.5))], ids=["whole", "cut"])
def test_texts_of_three_tokens_have_the_targets_distribution(tree, samplings):
    """A right program fails in one of a million seeds (see `text_distributions`)."""
    assert scripted_p_value(tree, samplings) > 1e-6


def test_the_check_sees_children_that_are_not_drawn_but_the_most_probable():
    assert scripted_p_value(WIDE, verifier=replace(SEQUOIA, draw=lambda *given: top_children(*given))) < 1e-6


def test_the_check_sees_a_residual_that_is_not_brought_up_to_date(monkeypatch):
    monkeypatch.setattr(DeviceResidual, "residual", lambda rule, where: rule._target)
    assert scripted_p_value(WIDE) < 1e-6


@exhaustive
def test_texts_of_a_model_and_its_draft_have_the_targets_distribution():
    target = tiny_model("llama", vocab=VOCABULARY)
    draft = IndependentDraft(LanguageModel(near(target, 0.05)), VOCABULARY)
    decoder = Decoder(LanguageModel(target), [draft], WIDE, CUT, at_once=True)
    assert p_value(texts(decoder, 2), exact_distribution(target, CUT, 2)) > 1e-6


@pytest.mark.parametrize("kind", ["plain", "independent", "feature"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8), Sampling(1.0, 20)], ids=str)
def test_the_host_reads_once_in_a_step(kind, sampling, monkeypatch):
    target = tiny_model("llama")
    model = LanguageModel(target)
    model.fix_buffers(recorded)
    if kind == "feature":
        drafts = [feature_draft(model)]
        drafts[0].fix_buffers(recorded)
    else:
        drafts = [IndependentDraft(LanguageModel(near(target, 0.02)), 64)] if kind == "independent" else []
    tree = TREE if drafts else ROOT_ONLY
    steps = Decoder(model, drafts, tree, sampling, at_once=True).decode(PROMPT, 30)
    next(steps)
    reads, count = reading_counted(monkeypatch), 0
    for step in steps:
        count += 1
        assert step.size >= 1
    assert reads == ["tolist"] * count
    assert count > 3


def test_the_count_sees_the_host_asking_for_each_node(monkeypatch):
    target = tiny_model("llama")
    draft = IndependentDraft(LanguageModel(near(target, 0.02)), 64)
    steps = Decoder(LanguageModel(target), [draft], TREE, Sampling(0.8), at_once=False).decode(PROMPT, 30)
    reads = reading_counted(monkeypatch)
    count = sum(1 for _ in steps)
    assert len(reads) > 2 * count


@pytest.mark.parametrize("verifier", RULES, ids=lambda verifier: verifier.name)
def test_a_walk_that_is_recorded_is_as_one_that_is_not(verifier):
    sampling = Sampling(0.7, 9, 0.9)
    rows = sum(map(len, TREE.expanded))
    generator = torch.Generator().manual_seed(0)
    walks = [
        DeviceWalk(TREE, CPU, verifier.on_device, sampling, recorder)
        for recorder in (None, Recorder(recorded, "the walk"))
    ]
    verdicts = set()
    for _ in range(8):
        logits = 3 * torch.randn(TREE.size, 40, generator=generator)
        draft = probabilities(logits[:rows] + torch.randn(rows, 40, generator=generator), Sampling(1.0))
        tokens = logits.argmax(-1)[[max(parent, 0) for parent in TREE.parents]]
        tokens[torch.rand(TREE.size, generator=generator) < 0.5] = 7
        uniforms = torch.rand(TREE.size + 1, generator=generator, dtype=torch.float64)
        plain, replayed = (each(logits, draft, tokens, uniforms) for each in walks)
        assert torch.equal(plain, replayed)
        verdicts.add(walks[0].read(plain.tolist())[1].path)
    assert walks[1]._recorder.refusal is None
    assert len(verdicts) > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, 20, 0.9)], ids=str)
def test_the_host_waits_once_in_a_step_on_a_gpu(sampling, recwarn):
    target = tiny_model("llama").to("cuda")
    models = LanguageModel(target), LanguageModel(near(target, 0.02))
    for model in models:
        model.make_fast()
    decoder = Decoder(models[0], [IndependentDraft(models[1], 64)], TREE, sampling)
    list(decoder.decode(PROMPT, 40))
    list(decoder.decode(PROMPT, 40))  # by now everything is recorded
    steps = decoder.decode(PROMPT, 40)
    next(steps)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        recwarn.clear()
        next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([each for each in recwarn if "synchroniz" in str(each.message)]) == 1
