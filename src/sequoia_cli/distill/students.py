"""Drafts to be trained: made for a target, and kept as the folders that the loader reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sequoia_cli.distill.corpus import Text
from sequoia_cli.distill.feature_student import FeatureStudent
from sequoia_cli.distill.independent_student import IndependentStudent, first_layers, from_config
from sequoia_cli.engine.draft import Draft, IndependentDraft
from sequoia_cli.engine.feature_draft import FeatureDraft
from sequoia_cli.engine.feature_model import FeatureConfig, FeatureModel
from sequoia_cli.engine.head import OutputHead, output_head
from sequoia_cli.engine.loading.feature import save_feature
from sequoia_cli.engine.loading.sharing import end_names
from sequoia_cli.engine.loading.tensors import WITH_MORE_ROOM, save_tensors
from sequoia_cli.engine.loading.vocabulary import cut_head
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.errors import BadInput, SequoiaError

FEATURE, INDEPENDENT = KINDS = ("feature", "independent")


@dataclass(frozen=True)
class Design:
    """What kind of draft, of how many layers; a feature draft is trained for `passes` levels.

    `config` is a transformers configuration for an independent draft that is no part of its target.
    """

    kind: str = FEATURE
    layers: int = 1
    passes: int = 3
    config: Any = None


def new_student(
    target: LanguageModel, head: OutputHead, design: Design, texts: Sequence[Text], seed: int
) -> FeatureStudent | IndependentStudent:
    """A draft of this design before training. Raises `BadInput` where the target does not lend itself."""
    torch.manual_seed(seed % (1 << 64))
    if design.kind == INDEPENDENT:
        model = target.model
        if not design.config:
            return IndependentStudent(first_layers(model, design.layers))
        small = from_config(model, design.config)
        own = output_head(LanguageModel(small), "a model of the draft's config")
        if (own.scale, own.cap) != (head.scale, head.cap):
            raise BadInput(
                f"a model of family {small.config.model_type} does not scale or cap its logits as the target "
                "does, whose output head it would share",
                hint="give a --config of the target's own family",
            )
        return IndependentStudent(small)
    network = FeatureModel(feature_config(target, head, design.layers))
    _initialise(network, texts)
    network = network.to(target.device, target.dtype)
    return FeatureStudent(network, target.model.get_input_embeddings(), design.passes)


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
def _initialise(network: FeatureModel, texts: Sequence[Text]) -> None:
    """Small random matrices; the last norm gives states of the size that the target's head is used to."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(0, 0.02)
    sample = torch.cat([text.hidden[:256].float() for text in texts[:64]])
    network.norm.weight.copy_(sample.pow(2).mean(0).sqrt())


def resumed_student(draft: Draft, passes: int) -> FeatureStudent | IndependentStudent:
    """A draft that was loaded, to be trained further."""
    if isinstance(draft, FeatureDraft):
        draft.model.requires_grad_(True)
        return FeatureStudent(draft.model, draft.embedding, passes)
    assert isinstance(draft, IndependentDraft)
    model = draft.model.model
    model.requires_grad_(True)
    for end in (model.get_input_embeddings(), model.get_output_embeddings()):
        end.requires_grad_(False)
    return IndependentStudent(model)


def own_head(draft: Draft, target: OutputHead) -> OutputHead:
    """The output head of a loaded draft for all ids: the target's, or its own where it brought one.

    Raises `BadInput` for one that was cut and is not the target's: the rows are gone.
    """
    if isinstance(draft, FeatureDraft):
        return target
    assert isinstance(draft, IndependentDraft)
    head = output_head(draft.model, "the draft")
    ids = draft.ids if draft.ids is not None else torch.arange(len(head.weight), device=head.weight.device)
    if head.weight.shape[1] == target.weight.shape[1] and torch.equal(head.weight, target.weight[ids]):
        return target
    if draft.ids is not None:
        raise BadInput(
            "the output head of this draft is its own and was cut already",
            hint="start from the draft as it was before",
        )
    return head


@dataclass(frozen=True)
class Kept:
    """A trained student, to be run and written down. `own` is its output head, for all ids."""

    student: FeatureStudent | IndependentStudent
    own: OutputHead
    target: LanguageModel

    def draft(self, ids: Tensor | None) -> Draft:
        """The draft with a head for these ids. Shares all weights with the student but those of the head."""
        model, target = self.student.model, self.target
        if isinstance(model, FeatureModel):
            assert isinstance(self.student, FeatureStudent)
            head = self.own.only(ids) if ids is not None else self.own
            return FeatureDraft(model, self.student.embedding, head, target.context_limit, ids)
        parts = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        twin = copy.deepcopy(model, parts)
        if ids is not None:
            cut_head(twin, ids)
        return IndependentDraft(LanguageModel(twin), target.vocabulary, ids)

    def save(self, folder: Path, name: str, tokenizer: Any) -> None:
        """Write config and weights, without what is the target's; `name` is the target's.

        Raises `SequoiaError` where that fails.
        """
        try:
            self._write(folder, name, tokenizer)
        except OSError as error:
            raise SequoiaError(f"{folder} could not be written: {error.strerror}", WITH_MORE_ROOM) from None

    def _write(self, folder: Path, name: str, tokenizer: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        model = self.student.model
        if isinstance(model, FeatureModel):
            save_feature(folder, model, name, self.target.vocabulary)
            return
        model.config.save_pretrained(folder)
        theirs = self.target.model.get_input_embeddings().weight
        shares = model.get_input_embeddings().weight is theirs
        shared = end_names(model) if shares else frozenset()
        if not shares:
            tokenizer.save_pretrained(folder)
        weights = {key: value for key, value in model.state_dict().items() if key not in shared}
        save_tensors(folder / "model.safetensors", weights, {"format": "pt"})
