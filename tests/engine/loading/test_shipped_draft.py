"""The draft, the rates and the profile that the project ships belong together."""

import torch

from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import package_data, shipped
from sequoia_cli.engine.loading.drafts import LoadedDraft
from sequoia_cli.engine.loading.feature import describe_feature, load_feature
from sequoia_cli.engine.loading.sources import DRAFT_ALIAS, locate
from sequoia_cli.engine.loading.vocabulary import read_vocabulary


def test_the_shipped_rates_are_of_the_shipped_draft():
    """By the fingerprint of its weights, which changes when it is trained again."""
    conditions = read_document(shipped("profiles", "smollm2_cpu_rates.yaml")).data["conditions"]
    source, folder = locate("draft", DRAFT_ALIAS), package_data("drafts", DRAFT_ALIAS)
    found = describe_feature(source, folder)
    model = load_feature(found, getattr(torch, conditions["dtype"]))
    draft = LoadedDraft(model, read_vocabulary(source, folder, found.vocabulary), source, ())
    assert draft.fingerprint == conditions["draft_weights"]


def test_the_shipped_profile_and_rates_are_of_the_same_pair():
    profile, rates = (
        read_document(shipped("profiles", name)).data["conditions"]
        for name in ("smollm2_cpu.yaml", "smollm2_cpu_rates.yaml")
    )
    for key in ("target", "draft", "dtype", "quantize", "quantize_draft"):
        assert profile[key] == rates[key]
