"""Drafts before and after training: made for a target, and saved as folders that the loader reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from sequoia_cli.distill import FEATURE, INDEPENDENT
from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.feature_student import FeatureStudent
from sequoia_cli.distill.independent_student import (
    IndependentStudent,
    first_layers,
    from_config,
    probe_model,
    require_layers,
)
from sequoia_cli.engine.draft import Draft, IndependentDraft
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.feature_model import FeatureConfig, FeatureModel
from sequoia_cli.engine.head import OutputHead, output_head
from sequoia_cli.engine.loading.feature import save_feature
from sequoia_cli.engine.loading.sharing import end_names, share_ends, share_whole_head
from sequoia_cli.engine.loading.tensors import WITH_MORE_ROOM, save_tensors
from sequoia_cli.engine.loading.tokenizers import tokenizer_digest
from sequoia_cli.engine.loading.vocabulary import cut_head
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput, SequoiaError

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Design:
    """The kind of a draft and its number of layers; a feature draft is trained for `passes` levels.

    `config`, a transformers configuration, is for an independent draft not made of the target's layers.
    """

    kind: str = FEATURE
    layers: int = 1
    passes: int = 3
    config: Any = None


def new_student(
    target: LanguageModel, head: OutputHead, design: Design, texts: Sequence[Text], seed: int
) -> FeatureStudent | IndependentStudent:
    """An untrained draft, initialised from `seed`. Raises `BadInput` as `require_design` does."""
    require_design(target, head, design)
    dtype = _training_dtype(target)
    if design.kind == INDEPENDENT:
        model = (
            from_config(target.model, design.config, seed)
            if design.config
            else first_layers(target.model, design.layers)
        )
        return IndependentStudent(_in_dtype(model, dtype))
    with torch.device("meta"):
        network = FeatureModel(feature_config(target, head, design.layers))
    network = network.to_empty(device="cpu")
    _initialise(network, texts, torch.Generator().manual_seed(seed % (1 << 64)))
    network = network.to(target.device, dtype)
    return FeatureStudent(network, target.model.get_input_embeddings(), design.passes)


def require_design(target: LanguageModel, head: OutputHead, design: Design) -> None:
    """Raise `BadInput` if no draft of this design can be made for a target whose head is `head`.

    Checks without making the draft.
    """
    if design.kind != INDEPENDENT:
        return
    if not design.config:
        require_layers(target.model, design.layers)
        return
    probe = probe_model(target.model, design.config)
    family, hint = probe.config.model_type, "give a --config of the target's own family"
    own = output_head(LanguageModel(probe), "a model of the draft's config")
    if (own.scale, own.cap) != (head.scale, head.cap):
        raise BadInput(
            f"a model of family {family} does not scale or cap its logits as the target does, whose output "
            "head it would share",
            hint=hint,
        )
    if (own.bias is None) != (head.bias is None):
        which = (
            "no bias, and the target's has one" if own.bias is None else "a bias, and the target's has none"
        )
        raise BadInput(
            f"the output head of a model of family {family} has {which}: it cannot share that", hint=hint
        )


def _training_dtype(target: LanguageModel) -> torch.dtype:
    """The dtype of training: the target's, but float32 for float16, in which small gradients underflow."""
    return torch.float32 if target.dtype == torch.float16 else target.dtype


def _in_dtype(network: M, dtype: torch.dtype) -> M:
    """The network itself if it has that dtype, else a converted copy."""
    if next(network.parameters()).dtype == dtype:
        return network
    return copy.deepcopy(network).to(dtype)


def feature_config(target: LanguageModel, head: OutputHead, layers: int) -> FeatureConfig:
    """The shape of a feature draft whose layers are as wide as the target's."""
    config, width = target.config, head.weight.shape[1]
    heads = getattr(config, "num_attention_heads", None) or max(1, width // 64)
    head_width = getattr(config, "head_dim", None) or width // heads
    rope = getattr(config, "rope_parameters", None) or {}
    return FeatureConfig(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=head_width,
        inner_width=getattr(config, "intermediate_size", None) or 4 * width,
        rope_theta=float(rope.get("rope_theta") or 10_000.0),
    )


@torch.no_grad()
def _initialise(network: FeatureModel, texts: Sequence[Text], generator: torch.Generator) -> None:
    """Fill matrices with small random values; set the last norm so that states have the target's scale."""
    for parameter in network.parameters():
        if parameter.ndim == 2:
            parameter.normal_(0, 0.02, generator=generator)
        else:
            parameter.fill_(1)
    sample = torch.cat([text.hidden[:256].float() for text in texts[:64]])
    network.norm.weight.copy_(sample.pow(2).mean(0).sqrt())


def resumed_student(draft: Draft, target: LanguageModel, passes: int) -> FeatureStudent | IndependentStudent:
    """A loaded draft of `target`, to be trained further.

    A head that was cut to some ids, and that `own_head` accepts, is replaced by the target's whole head.
    """
    dtype = _training_dtype(target)
    if isinstance(draft, FeatureDraft):
        network = _in_dtype(draft.model, dtype).requires_grad_(True)
        return FeatureStudent(network, draft.embedding, passes)
    assert isinstance(draft, IndependentDraft)
    model = draft.model.model
    shares = _shares_embedding(model, target)
    if draft.ids is not None:
        model = _sharing_weights(model)
        share_whole_head(model, target.model)
    model = _in_dtype(model, dtype)
    model.requires_grad_(True)
    for end in (model.get_input_embeddings(), model.get_output_embeddings()):
        end.requires_grad_(False)
    return IndependentStudent(model, shares=shares)


def own_head(draft: Draft, target: LanguageModel, head: OutputHead) -> OutputHead:
    """The output head of a loaded draft for all its ids: the target's, `head`, or its own.

    A draft with a head of its own may have more or fewer ids than the target. Raises `BadInput` if such a
    head was cut: its other rows are lost.
    """
    if isinstance(draft, FeatureDraft):
        return head
    assert isinstance(draft, IndependentDraft)
    own = output_head(draft.model, "the draft")
    if draft.ids is not None:
        if not _shares_embedding(draft.model.model, target):
            raise BadInput(
                "the output head of this draft is its own and was cut already",
                hint="start from the draft as it was before the cut",
            )
        own = replace(own, weight=head.weight, bias=head.bias)
    return head if _equal(own, head) else own


def _shares_embedding(model: PreTrainedModel, target: LanguageModel) -> bool:
    """Whether the embedding is the target's. Then the head is too, and neither is in the draft's folder."""
    mine, theirs = (each.get_input_embeddings().weight for each in (model, target.model))
    return mine is theirs


def _equal(first: OutputHead, second: OutputHead) -> bool:
    """Whether two heads give the same logits for the same ids."""
    pairs = ((first.weight, second.weight), (first.bias, second.bias))
    return (first.scale, first.cap) == (second.scale, second.cap) and all(
        mine is theirs or (mine is not None and theirs is not None and torch.equal(mine, theirs))
        for mine, theirs in pairs
    )


def sharing_weights(target: LanguageModel) -> LanguageModel:
    """A copy of the target that shares its weights but not its modules, so it can be prepared for speed."""
    return LanguageModel(_sharing_weights(target.model))


def _sharing_weights(model: M) -> M:
    """A copy of the modules with the same weights."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


@dataclass(frozen=True)
class TrainedDraft:
    """A trained student, to be run and saved. `own` is its output head for all its ids."""

    student: FeatureStudent | IndependentStudent
    own: OutputHead
    target: LanguageModel

    def draft(self, ids: Tensor | None) -> Draft:
        """The draft with a head for these ids, None for all.

        Shares weights with the student if both have the same dtype, but no modules: the draft can be prepared
        for speed and the student still trained further.
        """
        target, network = self.target, self._network
        if isinstance(network, FeatureModel):
            embedding = target.model.get_input_embeddings()
            return FeatureDraft(
                _sharing_weights(network), embedding, self.own.only(ids), target.context_limit, ids
            )
        model = _sharing_weights(network)
        if ids is not None:
            cut_head(model, ids)
        return IndependentDraft(LanguageModel(model), target.vocabulary, ids)

    @cached_property
    def _network(self) -> FeatureModel | PreTrainedModel:
        """The student's network in the target's dtype, in which it is run and saved."""
        student, target = self.student, self.target
        if isinstance(student, FeatureStudent):
            return _in_dtype(student.model, target.dtype)
        model = _in_dtype(student.model, target.dtype)
        if model is not student.model and student.shares:
            share_ends(model, target.model)
        return model

    def save(self, folder: Path, name: str, tokenizer: Any) -> None:
        """Write config and weights, except those shared with the target; `name` is the target's.

        Raises `SequoiaError` if that fails.
        """
        try:
            self._write(folder, name, tokenizer)
        except OSError as error:
            raise SequoiaError(f"{folder} could not be written: {error.strerror}", WITH_MORE_ROOM) from None

    def _write(self, folder: Path, name: str, tokenizer: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        network, student = self._network, self.student
        if isinstance(student, FeatureStudent):
            assert isinstance(network, FeatureModel)
            digest = tokenizer_digest(tokenizer)
            save_feature(folder, network, name, self.target.vocabulary, digest)
            return
        assert not isinstance(network, FeatureModel)
        network.config.save_pretrained(folder)
        shared = end_names(network) if student.shares else frozenset()
        if not student.shares:
            tokenizer.save_pretrained(folder)
        weights = {key: value for key, value in network.state_dict().items() if key not in shared}
        save_tensors(folder / "model.safetensors", weights, {"format": "pt"})
