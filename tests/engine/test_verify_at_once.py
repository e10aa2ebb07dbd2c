"""Verification on the device: exactly the slow twin's on the same noise, and read by the host but once."""

import random
from dataclasses import replace
from types import SimpleNamespace

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
from sequoia_cli.engine.draw import draw_rows, top_children
from sequoia_cli.engine.fast.capture import Recorder
from sequoia_cli.engine.merge import unmerged
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.verification import accept
from sequoia_cli.engine.verification import at_once as module
from sequoia_cli.engine.verification.at_once import Families, Judge, judge, read_verdict
from sequoia_cli.engine.verification.verifiers import SEQUOIA
from sequoia_cli.engine.verification.walk import verify
from sequoia_cli.engine.warp import Sampling, probabilities
from text_laws import CUT, VOCABULARY, WHOLE, exact_law, p_value, table_law, texts

CPU = torch.device("cpu")
TREES = [*trees_up_to(5), TokenTree((-1, 0, 0, 0, 1, 1, 2, 4, 4, 5)), TokenTree((-1, 0, 0, 0, 0))]


def random_row(rng, size, zeros):
    row = [0.0 if zeros and rng.random() < 0.5 else rng.random() ** 3 for _ in range(size)]
    row[rng.randrange(size)] += 0.05
    return normalised(row)


def drawn_tokens(rng, tree, rows):
    """Tokens drawn without replacement: from all ids, where zeros leave a draft nothing."""
    tokens = [0] * tree.size
    for node in range(tree.size):
        tried = []
        for child in tree.children[node]:
            tokens[child] = inverse(without(rows[node], tried) if tried else rows[node], rng.random())
            tried.append(tokens[child])
    return tokens


def judged(tree, tokens, target, draft, uniforms):
    """`judge` for rows of all nodes."""
    expanded = [node for level in tree.expanded for node in level]
    return read_verdict(
        judge(
            Families(tree, CPU),
            torch.stack(target),
            torch.stack(draft)[expanded],
            torch.tensor(tokens),
            torch.tensor(uniforms, dtype=torch.float64),
        ).tolist()
    )


def host(tree, tokens, target, draft, uniforms):
    alone = unmerged(tree, tokens)
    rows = dict(enumerate(draft))
    return verify(tokens, target.__getitem__, lambda node: alone.drawn(node, [rows]), uniforms)


def test_every_tree_is_judged_as_the_slow_twins_do_on_the_same_noise():
    rng, lengths = random.Random(0), set()
    for trial, tree in enumerate(TREES * 12):
        size, zeros = rng.choice((4, 6, 9)), trial % 2 == 0
        target, draft = ([random_row(rng, size, zeros) for _ in range(tree.size)] for _ in range(2))
        tokens = drawn_tokens(rng, tree, draft)
        uniforms = [rng.random() for _ in range(tree.size + 1)]
        rows, columns = ([torch.tensor(row, dtype=torch.float64) for row in law] for law in (target, draft))
        found = judged(tree, tokens, rows, columns, uniforms)
        assert found == host(tree, tokens, rows, columns, uniforms)
        assert (found.path, found.next_token) == walk(
            tree, tokens, target.__getitem__, draft.__getitem__, uniforms
        )
        lengths.add(len(found.path))
    assert {1, 2, 3, 4} <= lengths


@pytest.mark.parametrize(
    "dtypes", [(torch.float32, torch.float32), (torch.float32, torch.float64)], ids=["float32", "mixed"]
)
def test_narrow_rows_are_judged_as_by_the_host(dtypes):
    rng = random.Random(1)
    for trial in range(200):
        tree, size = TREES[-2 + trial % 2], 50
        target, draft = (
            [torch.tensor(random_row(rng, size, trial % 3 == 0)).to(dtype) for _ in range(tree.size)]
            for dtype in dtypes
        )
        tokens = drawn_tokens(rng, tree, [row.tolist() for row in draft])
        uniforms = [rng.random() for _ in range(tree.size + 1)]
        assert judged(tree, tokens, target, draft, uniforms) == host(tree, tokens, target, draft, uniforms)


def test_an_exhausted_draft_and_an_emptied_residual_are_judged_as_by_the_host():
    star, fallbacks = TokenTree((-1, 0, 0, 0)), 0
    rows = [torch.tensor(row) for row in ([1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4, [0, 0, 0.5, 0.5])]
    rng = random.Random(2)
    for target in rows:
        for draft in rows:
            for _ in range(20):
                tokens = drawn_tokens(rng, star, [draft.tolist()] * 4)
                # 1.0 rejects what can only be accepted, which rounding alone does.
                uniforms = [rng.choice((0.0, 0.3, 0.9, 1.0)) for _ in range(4)] + [rng.random()]
                found = judged(star, tokens, [target] * 4, [draft] * 4, uniforms)
                assert found == host(star, tokens, [target] * 4, [draft] * 4, uniforms)
                fallbacks += found.fallbacks
    assert fallbacks > 20


def grid_error(target, draft, cells=24, **changed):
    """How far the law of the token behind two children is from the target's, by the middles of a grid.

    All probabilities below are multiples of 1/8 and all tests change at borders of cells, so that shares of
    cells are the law itself. `judged_by` is the negative control.
    """
    draws = list(ordered_draws(draft, 2))
    points = (torch.arange(cells, dtype=torch.float64) + 0.5) / cells
    first, second = (part.flatten() for part in torch.meshgrid(points, points, indexing="ij"))
    count = len(draws) * len(first)  # families, each with the two nodes behind all of them
    families = SimpleNamespace(
        parents=torch.arange(count),
        rows=torch.arange(count),
        eldest=count + 2 * torch.arange(count),
        having=[count, count],
    )
    pairs = torch.tensor([tokens for tokens, _ in draws]).repeat_interleave(len(first), 0)
    tokens = torch.cat((torch.zeros(count, dtype=torch.long), pairs.flatten()))
    tests = torch.stack((first, second), 1).repeat(len(draws), 1).flatten()
    weights = torch.tensor([chance for _, chance in draws], dtype=torch.float64).repeat_interleave(len(first))
    law = torch.zeros(len(target), dtype=torch.float64)
    laws = [torch.tensor(row, dtype=torch.float64) for row in (target, changed.get("judged_by", draft))]
    for last in points:
        uniforms = torch.cat((torch.zeros(count, dtype=torch.float64), tests, last[None]))
        found = judge(families, laws[0].expand(3 * count, -1), laws[1].expand(count, -1), tokens, uniforms)
        accepted, behind = found[:count, 1], found[:count, 2]
        law.index_add_(0, torch.where(accepted > 0, tokens[accepted], behind), weights)
    law /= len(first) * cells
    return float((law - torch.tensor(target, dtype=torch.float64)).abs().max())


LAWS = [
    ([0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25]),
    ([0.125, 0.125, 0.5, 0.25], [0.5, 0.25, 0.25, 0.0]),
    ([0.0, 0.5, 0.5], [0.75, 0.25, 0.0]),
]


@pytest.mark.parametrize(("target", "draft"), LAWS)
def test_the_law_over_all_draws_and_a_grid_of_noise_is_the_targets(target, draft):
    assert grid_error(target, draft) < 1e-9


@pytest.mark.parametrize(("target", "draft"), LAWS[1:])
def test_the_grid_sees_children_that_were_drawn_from_another_law(target, draft):
    assert grid_error(target, draft, judged_by=draft[::-1]) > 0.03


#: Behind each of four tokens: what the target says, and a draft that is wrong.
SAID = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.0, 0.5, 0.0, 0.5], [0.25, 0.25, 0.25, 0.25]]
GUESSED = [[0.05, 0.05, 0.1, 0.8], [0.0, 0.0, 0.9, 0.1]] * 2
WIDE = TokenTree((-1, 0, 0, 1, 1, 2, 3))


def scripted_p_value(tree, samplings=(WHOLE, WHOLE), verifier=SEQUOIA):
    """Of three tokens behind the last of the prompt."""
    drafts = [ScriptedDraft(GUESSED)] if tree.size > 1 else []
    decoder = Decoder(ScriptedTarget(SAID), drafts, tree, *samplings, verifier=verifier, at_once=True)
    return p_value(texts(decoder, 3), table_law(SAID, samplings[0], 3))


@pytest.mark.parametrize("tree", few([ROOT_ONLY, chain(3), TokenTree((-1, 0, 0, 0, 0)), WIDE], WIDE), ids=str)
@pytest.mark.parametrize("samplings", [(WHOLE, WHOLE), (CUT, Sampling(3.0, 0, 0.5))], ids=["whole", "cut"])
def test_texts_of_three_tokens_have_the_targets_law(tree, samplings):
    """A right program fails in one of a million seeds (see `text_laws`)."""
    assert scripted_p_value(tree, samplings) > 1e-6


def test_the_check_sees_children_that_are_not_drawn_but_the_most_probable():
    assert scripted_p_value(WIDE, verifier=replace(SEQUOIA, draw=lambda *given: top_children(*given))) < 1e-6


def test_the_check_sees_a_residual_that_is_not_brought_up_to_date(monkeypatch):
    def forgetful(families, target, draft, tokens, uniforms):
        found = judge(families, target, draft, tokens, uniforms).clone()
        found[:, 2] = draw_rows(target, uniforms[-1:])
        return found

    monkeypatch.setattr(module, "judge", forgetful)
    assert scripted_p_value(WIDE) < 1e-6


@exhaustive
def test_texts_of_a_model_and_its_draft_have_the_targets_law():
    target = tiny_model("llama", vocab=VOCABULARY)
    draft = IndependentDraft(LanguageModel(near(target, 0.05)), VOCABULARY)
    decoder = Decoder(LanguageModel(target), [draft], WIDE, CUT, at_once=True)
    assert p_value(texts(decoder, 2), exact_law(target, CUT, 2)) > 1e-6


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


def test_a_judge_that_is_recorded_judges_as_one_that_is_not():
    sampling = Sampling(0.7, 9, 0.9)
    rows = sum(map(len, TREE.expanded))
    generator = torch.Generator().manual_seed(0)
    judges = [Judge(TREE, CPU, sampling, recorder) for recorder in (None, Recorder(recorded, "the judge"))]
    for _ in range(4):
        logits = 3 * torch.randn(TREE.size, 40, generator=generator)
        draft = torch.rand(rows, 40, generator=generator) ** 4
        draft /= draft.sum(-1, keepdim=True)
        tokens = torch.randint(0, 40, (TREE.size,), generator=generator)
        uniforms = torch.rand(TREE.size + 1, generator=generator, dtype=torch.float64)
        plain, replayed = (each(logits, draft, tokens, uniforms) for each in judges)
        assert torch.equal(plain, replayed)
        assert torch.equal(
            plain,
            judge(Families(TREE, CPU), probabilities(logits, sampling), draft, tokens, uniforms),
        )
    assert judges[1]._recorder.refusal is None


def test_too_many_logits_are_left_to_the_host(monkeypatch):
    monkeypatch.setattr(accept, "_AT_ONCE", 0)
    monkeypatch.setattr(module, "judge", None)
    decoder = Decoder(ScriptedTarget(SAID), [ScriptedDraft(GUESSED)], WIDE, CUT, at_once=True)
    assert sum(len(step.tokens) for step in decoder.decode([1, 3], 20)) == 20


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
