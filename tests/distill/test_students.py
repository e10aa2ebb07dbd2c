"""From a student to a folder and back: what was trained is what is loaded, for every family, cut or whole."""

import pytest
import torch

from distilling import written
from folders import pair, save
from models import SUPPORTED, tiny_model, tiny_tokenizer
from sequoia_cli.core.tree import chain
from sequoia_cli.distill import students
from sequoia_cli.distill.students import Design, Kept, new_student, own_head, resumed_student
from sequoia_cli.engine.head import output_head
from sequoia_cli.engine.layout import Layout
from sequoia_cli.engine.loading.vocabulary import write_vocabulary
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
    return Kept(student, head, target)


def levels(draft, text):
    """What a draft proposes at the end of a text, and two tokens further down."""
    draft.start(text.tokens[:8], 40, text.hidden[:7])
    layout = Layout(chain(3))
    tokens = text.tokens[7:9]
    return torch.cat([draft.expand(layout, n, tokens[n : n + 1], Sampling(1.0)) for n in range(2)])


def loaded(target, folder):
    """The draft in a folder as a command loads it, and its target's own parameters."""
    found = pair(target, str(folder))
    return make_draft(found.drafts[0], LanguageModel(found.target))


@pytest.mark.parametrize("kind", students.KINDS)
@pytest.mark.parametrize("family", SUPPORTED)
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


@pytest.mark.parametrize("kind", students.KINDS)
def test_neither_embedding_nor_head_of_the_target_is_in_the_folder(kind, tmp_path):
    target = LanguageModel(tiny_model("llama"))
    kept_of(target, kind).save(tmp_path / "d", "t", tiny_tokenizer(64))
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "d" / "model.safetensors")
    assert not any("embed" in name or "lm_head" in name for name in weights)
    assert not (tmp_path / "d" / "tokenizer.json").exists()


@pytest.mark.parametrize("kind", students.KINDS)
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


@pytest.mark.parametrize("kind", students.KINDS)
def test_a_loaded_draft_is_trained_further_but_for_what_is_its_targets(kind, tmp_path):
    name = save(tmp_path / "t", "llama")
    kept_of(LanguageModel(tiny_model("llama")), kind).save(tmp_path / "d", "t", tiny_tokenizer(64))
    found = pair(name, str(tmp_path / "d"))
    target = LanguageModel(found.target)
    draft = make_draft(found.drafts[0], target)
    student = resumed_student(draft, 2)
    trained = [p for p in student.model.parameters() if p.requires_grad]
    assert trained
    theirs = {id(parameter) for parameter in found.target.parameters()}
    assert not any(parameter.requires_grad for parameter in found.target.parameters())
    assert not theirs & {id(parameter) for parameter in trained}
    whole = output_head(target, "the target")
    assert own_head(draft, whole) is whole


def test_a_draft_with_ends_of_its_own_keeps_them_and_is_refused_once_its_head_was_cut(tmp_path):
    name, other = save(tmp_path / "t", "llama"), save(tmp_path / "o", "gpt2", seed=4)
    found = pair(name, other)
    target = LanguageModel(found.target)
    whole, draft = output_head(target, "the target"), make_draft(found.drafts[0], target)
    own = own_head(draft, whole)
    assert torch.equal(own.weight, found.drafts[0].model.get_output_embeddings().weight)
    kept = Kept(resumed_student(draft, 1), own, target)
    kept.save(tmp_path / "d", "t", tiny_tokenizer(64))
    text = written(target, rows=1, length=12)[0]
    assert torch.allclose(levels(loaded(name, tmp_path / "d"), text), levels(draft, text), atol=1e-6)
    write_vocabulary(tmp_path / "d", IDS.tolist(), {})
    with pytest.raises(BadInput, match="is its own and was cut already"):
        own_head(loaded(name, tmp_path / "d"), whole)


@pytest.mark.parametrize("kind", students.KINDS)
def test_a_full_disk_is_told_in_words(kind, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    from sequoia_cli.engine.loading import tensors

    def full(*arguments, **options):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensors, "save_file", full)
    kept = kept_of(LanguageModel(tiny_model("llama")), kind)
    with pytest.raises(SequoiaError, match="could not be written: I/O error: No space left") as caught:
        kept.save(tmp_path / "d", "t", tiny_tokenizer(64))
    assert "the same command goes on" in caught.value.hint


def test_a_config_whose_family_scales_its_logits_otherwise_is_refused():
    target = LanguageModel(tiny_model("llama"))
    design = Design(students.INDEPENDENT, config=tiny_model("cohere", logit_scale=0.5).config)
    with pytest.raises(BadInput, match="does not scale or cap its logits as the target does"):
        new_student(target, output_head(target, "the target"), design, (), 0)
