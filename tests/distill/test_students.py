"""From a student to a folder and back: what was trained is what is loaded, for every family, cut or whole."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from distilling import heads_of, written
from exhaustive import few
from folders import pair, save
from models import SUPPORTED, tiny_model, tiny_tokenizer
from sequoia_cli.distill import INDEPENDENT, KINDS, students
from sequoia_cli.distill.batches import collate
from sequoia_cli.distill.independent_student import from_config
from sequoia_cli.distill.objective import divergence
from sequoia_cli.distill.students import (
    Design,
    TrainedDraft,
    new_student,
    own_head,
    require_design,
    resumed_student,
)
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.head import output_head
from sequoia_cli.engine.loading.vocabulary import cut_head, write_vocabulary
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput, SequoiaError
from sequoia_cli.measure.session import make_draft

IDS = torch.tensor([1, 4, 7, 9, 20, 33, 50, 63])


def kept_of(target, kind, seed=0):
    """A student of a target, its weights moved a little, as if it had been trained."""
    head = output_head(target, "the target")
    student = new_student(target, head, Design(kind, 1, 2), written(target, rows=2, length=12), seed)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in student.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=noise))
    return TrainedDraft(student, head, target)


def levels(draft, text):
    """What a draft proposes at the end of a text, and two tokens further down."""
    draft.start(text.tokens[:8], 40, [text.hidden[:7]])
    tokens = text.tokens[7:9]
    proposals = [draft.extend((n - 1,), tokens[n : n + 1]) for n in range(2)]
    return torch.cat([each.probabilities(Sampling(1.0)).probs for each in proposals])


def loaded(target, folder):
    """The draft in a folder as a command loads it, and its target's own parameters."""
    found = pair(target, str(folder))
    return make_draft(found.drafts[0], LanguageModel(found.target))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", few(SUPPORTED, "llama", "gpt2", "gemma3", "qwen3", "mixtral"))
def test_the_folder_holds_what_was_trained(family, kind, tmp_path):
    name = save(tmp_path / "t", family)
    target = LanguageModel(tiny_model(family))
    kept, text = kept_of(target, kind), written(target, rows=1, length=12, seed=2)[0]
    kept.save(tmp_path / "d", "t", tiny_tokenizer(64))
    expected = levels(kept.draft(None), text)
    assert torch.allclose(levels(loaded(name, tmp_path / "d"), text), expected, atol=1e-5)
    # Cut to some ids: the same columns, renormalised.
    cut = levels(kept.draft(IDS), text)
    columns = expected[:, IDS]
    assert torch.allclose(cut, columns / columns.sum(-1, keepdim=True), atol=1e-5)
    write_vocabulary(tmp_path / "d", IDS.tolist(), {})
    assert torch.allclose(levels(loaded(name, tmp_path / "d"), text), cut, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_neither_embedding_nor_head_of_the_target_is_in_the_folder(kind, tmp_path):
    target = LanguageModel(tiny_model("llama"))
    kept_of(target, kind).save(tmp_path / "d", "t", tiny_tokenizer(64))
    weights = load_file(tmp_path / "d" / "model.safetensors")
    assert not any("embed" in name or "lm_head" in name for name in weights)
    assert not (tmp_path / "d" / "tokenizer.json").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_draft_shares_the_weights_of_its_student_which_keeps_its_whole_head(kind):
    target = LanguageModel(tiny_model("llama"))
    kept = kept_of(target, kind)
    before = target.model.get_output_embeddings().weight.shape
    draft = kept.draft(IDS)
    inner = draft.model if kind == "feature" else draft.model.model
    mine = {id(parameter) for parameter in kept.student.model.parameters()}
    theirs = {id(p) for p in inner.parameters() if p.shape[0] != len(IDS)}
    assert theirs <= mine
    assert target.model.get_output_embeddings().weight.shape == before == (64, 32)


def test_one_seed_gives_one_student_and_states_of_the_size_of_the_targets():
    target = LanguageModel(tiny_model("llama"))
    texts, head = written(target, rows=4, length=20), output_head(target, "the target")
    make = [new_student(target, head, Design(layers=2), texts, seed).model.state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(make[0][name], make[1][name]) for name in make[0])
    assert not torch.equal(make[0]["join.weight"], make[2]["join.weight"])
    hidden = torch.cat([text.hidden for text in texts])
    assert torch.allclose(make[0]["norm.weight"], hidden.pow(2).mean(0).sqrt(), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_draft_is_trained_further_but_for_what_is_its_targets(kind, tmp_path):
    name = save(tmp_path / "t", "llama")
    kept_of(LanguageModel(tiny_model("llama")), kind).save(tmp_path / "d", "t", tiny_tokenizer(64))
    found = pair(name, str(tmp_path / "d"))
    target = LanguageModel(found.target)
    draft = make_draft(found.drafts[0], target)
    student = resumed_student(draft, target, 2)
    trained = [p for p in student.model.parameters() if p.requires_grad]
    assert trained
    theirs = {id(parameter) for parameter in found.target.parameters()}
    assert not any(parameter.requires_grad for parameter in found.target.parameters())
    assert not theirs & {id(parameter) for parameter in trained}
    whole = output_head(target, "the target")
    assert own_head(draft, target, whole) is whole


def test_a_draft_without_a_tokenizer_remembers_what_ids_meant_to_its_target(tmp_path):
    (kind,) = set(KINDS) - {INDEPENDENT}
    kept_of(LanguageModel(tiny_model("llama")), kind).save(tmp_path / "d", "t", tiny_tokenizer(64))
    swapped = tiny_tokenizer(64, tokens={10: "w11", 11: "w10"})
    for folder, tokenizer, told in (("t", True, False), ("other/t", swapped, True)):
        notes = pair(save(tmp_path / folder, tokenizer=tokenizer), str(tmp_path / "d")).notes
        assert any("ids mean other tokens" in note for note in notes) == told


@pytest.mark.parametrize("family", ["llama", "phi", "gpt2"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_draft_whose_head_was_cut_has_a_whole_one_again(family, kind, tmp_path):
    name = save(tmp_path / "t", family)
    kept = kept_of(LanguageModel(tiny_model(family)), kind)
    kept.save(tmp_path / "d", "t", tiny_tokenizer(64))
    write_vocabulary(tmp_path / "d", IDS.tolist(), {})
    found = pair(name, str(tmp_path / "d"))
    target = LanguageModel(found.target)
    draft, whole = make_draft(found.drafts[0], target), output_head(target, "the target")
    own = own_head(draft, target, whole)
    assert own is whole
    again = TrainedDraft(resumed_student(draft, target, 2), own, target)
    text = written(target, rows=1, length=12, seed=2)[0]
    others = torch.tensor([0, 2, 9, 62])
    for ids in (None, IDS, others):
        assert torch.allclose(levels(again.draft(ids), text), levels(kept.draft(ids), text), atol=1e-5)
    again.save(tmp_path / "again", "t", tiny_tokenizer(64))
    assert torch.allclose(
        levels(loaded(name, tmp_path / "again"), text), levels(kept.draft(None), text), atol=1e-5
    )
    # The draft that was loaded is as it was.
    assert levels(draft, text).shape[1] == len(IDS)


@pytest.mark.parametrize("rows", [60, 64, 72])
def test_a_draft_with_ends_of_its_own_keeps_them_and_is_refused_once_its_head_was_cut(rows, tmp_path):
    name, other = save(tmp_path / "t", "llama"), save(tmp_path / "o", "gpt2", rows, seed=4)
    found = pair(name, other)
    target = LanguageModel(found.target)
    whole, draft = output_head(target, "the target"), make_draft(found.drafts[0], target)
    own = own_head(draft, target, whole)
    assert torch.equal(own.weight, found.drafts[0].model.get_output_embeddings().weight)
    kept = TrainedDraft(resumed_student(draft, target, 1), own, target)
    kept.save(tmp_path / "d", "t", tiny_tokenizer(64))
    text = written(target, rows=1, length=12)[0]
    expected = levels(draft, text)
    assert expected.shape[1] == min(rows, 64)
    assert torch.allclose(levels(loaded(name, tmp_path / "d"), text), expected, atol=1e-6)
    few = IDS[:-1]
    cut = expected[:, few] / expected[:, few].sum(-1, keepdim=True)
    assert torch.allclose(levels(kept.draft(few), text), cut, atol=1e-5)
    write_vocabulary(tmp_path / "d", few.tolist(), {})
    with pytest.raises(BadInput, match="is its own and was cut already"):
        own_head(loaded(name, tmp_path / "d"), target, whole)


def test_a_head_like_the_targets_but_for_its_bias_is_the_drafts_own():
    target = LanguageModel(tiny_model("phi"))
    other = tiny_model("phi")
    whole = output_head(target, "the target")
    assert own_head(IndependentDraft(LanguageModel(other), 64), target, whole) is whole
    other.lm_head.bias.data += 1
    own = own_head(IndependentDraft(LanguageModel(other), 64), target, whole)
    assert own is not whole
    assert own.bias is other.lm_head.bias


def test_a_cut_head_that_scales_otherwise_has_the_targets_rows_again_and_its_own_scale():
    target = LanguageModel(tiny_model("llama"))
    whole = output_head(target, "the target")
    model = from_config(target.model, tiny_model("cohere", logit_scale=0.5).config)
    uncut = IndependentDraft(LanguageModel(copy.deepcopy(model)), 64)
    cut_head(model, IDS)
    draft = IndependentDraft(LanguageModel(model), 64, IDS)
    own = own_head(draft, target, whole)
    assert own.scale == 0.5
    assert torch.equal(own.weight, whole.weight)
    text = written(target, rows=1, length=12)[0]
    again = TrainedDraft(resumed_student(draft, target, 1), own, target).draft(None)
    assert torch.allclose(levels(again, text), levels(uncut, text), atol=1e-6)


# --- float16


def test_half_precision_is_trained_in_float32_and_written_as_it_is_run(tmp_path):
    for kind in KINDS:
        target = LanguageModel(tiny_model("llama").half())
        kept, text = kept_of(target, kind), written(target, rows=1, length=12, seed=2)[0]
        assert {p.dtype for p in kept.student.model.parameters()} == {torch.float32}
        kept.save(tmp_path / kind, "t", tiny_tokenizer(64))
        weights = load_file(tmp_path / kind / "model.safetensors")
        assert {value.dtype for value in weights.values()} == {torch.float16}
        assert not any("embed" in name or "lm_head" in name for name in weights)
        draft = kept.draft(IDS)
        proposed = levels(draft, text)
        save(tmp_path / f"target-{kind}", "llama")
        found = pair(str(tmp_path / f"target-{kind}"), str(tmp_path / kind), dtype=torch.float16)
        there = LanguageModel(found.target)
        again = make_draft(found.drafts[0], there)
        columns = levels(again, text)[:, IDS]
        assert torch.allclose(proposed, columns / columns.sum(-1, keepdim=True), atol=1e-3)
        # Trained further, it is float32 again, and the loaded draft is not.
        student = resumed_student(again, there, 2)
        assert {p.dtype for p in student.model.parameters()} == {torch.float32}
        inner = again.model if kind == "feature" else again.model.model
        assert {p.dtype for p in inner.parameters()} == {torch.float16}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes_are_trained_as_they_are(kind, dtype):
    kept = kept_of(LanguageModel(tiny_model("llama").to(dtype)), kind)
    assert {p.dtype for p in kept.student.model.parameters()} == {dtype}


@pytest.mark.parametrize("kind", KINDS)
def test_small_gradients_of_a_half_precision_target_are_not_lost(kind):
    """The slope of a loss that is far below the range of float16 still reaches every weight."""
    target = LanguageModel(tiny_model("llama").half())
    texts = written(target, rows=4, length=12)
    heads, batch = heads_of(target), collate(texts, torch.device("cpu"))

    def slopes(factor):
        student = new_student(target, heads.full, Design(kind, 1, 2), texts, 0)
        (divergence(student, batch, heads) * factor).backward()
        return {n: p.grad for n, p in student.model.named_parameters() if p.requires_grad}

    small, whole = slopes(2.0**-20), slopes(1.0)
    assert small
    for name, slope in small.items():
        assert torch.allclose(slope * 2**20, whole[name], rtol=1e-4, atol=1e-7)
        assert whole[name].abs().max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_told_in_words(kind, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from sequoia_cli.engine.loading import tensors

    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensors, "save_file", full)
    kept = kept_of(LanguageModel(tiny_model("llama")), kind)
    with pytest.raises(SequoiaError, match="could not be written: I/O error: No space left") as caught:
        kept.save(tmp_path / "d", "t", tiny_tokenizer(64))
    assert "the same command resumes" in caught.value.hint


# --- designs that a target does not lend itself to


@pytest.mark.parametrize(
    ("family", "config", "line"),
    [
        ("llama", ("cohere", {"logit_scale": 0.5}), "does not scale or cap its logits as the target does"),
        ("llama", ("phi", {}), "family phi has a bias, and the target's has none"),
        ("phi", ("llama", {}), "family llama has no bias, and the target's has one"),
    ],
)
def test_a_config_whose_head_cannot_be_the_targets_is_refused_before_a_draft_is_made(
    family, config, line, monkeypatch
):
    target = LanguageModel(tiny_model(family))
    name, options = config
    design = Design(INDEPENDENT, config=tiny_model(name, **options).config)
    monkeypatch.setattr(students, "from_config", None)
    for make in (require_design, lambda *given: new_student(*given, (), 0)):
        with pytest.raises(BadInput, match=line) as caught:
            make(target, output_head(target, "the target"), design)
        assert "of the target's own family" in caught.value.hint


@pytest.mark.parametrize("family", few(SUPPORTED, "llama", "gpt2", "gemma3", "qwen3", "mixtral"))
def test_a_config_of_the_targets_own_family_is_taken_and_loads_again(family, tmp_path):
    target = LanguageModel(tiny_model(family))
    head = output_head(target, "the target")
    config = tiny_model(family, pad_token_id=63, eos_token_id=62).config
    student = new_student(target, head, Design(INDEPENDENT, config=config), (), 0)
    TrainedDraft(student, head, target).save(tmp_path / "d", "t", tiny_tokenizer(64))
    loaded(save(tmp_path / "t", family), tmp_path / "d")


@pytest.mark.parametrize("config", [None, "llama"])
def test_whether_a_design_fits_is_seen_without_making_a_draft(config, monkeypatch):
    """No layer of the draft's is made for it but one, and no row of embedding or head but a few."""
    target = LanguageModel(tiny_model("llama", 4096, num_hidden_layers=4))
    small = tiny_model("llama", 4096, num_hidden_layers=3).config if config else None
    made = []
    empty = nn.Module.register_parameter

    def register(module, name, parameter):
        if parameter is not None and not parameter.is_meta:
            made.append(parameter.numel())
        empty(module, name, parameter)

    head = output_head(target, "the target")
    monkeypatch.setattr(nn.Module, "register_parameter", register)
    require_design(target, head, Design(INDEPENDENT, 3, config=small))
    assert max(made, default=0) <= 64 * 64
    assert len(made) <= 14


@pytest.mark.parametrize("config", [None, "llama"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_draft_leaves_torchs_own_generator_as_it_was(kind, config):
    target = LanguageModel(tiny_model("llama"))
    texts, head = written(target, rows=2, length=12), output_head(target, "the target")
    design = Design(kind, config=tiny_model("llama").config if config else None)
    before = torch.get_rng_state()
    made = [new_student(target, head, design, texts, seed).model.state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(made[0][name], made[1][name]) for name in made[0])
    other = any(not torch.equal(made[0][name], made[2][name]) for name in made[0])
    assert other == (
        kind == "feature" or config is not None
    )  # first layers are the target's, whatever the seed
