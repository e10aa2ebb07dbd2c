"""Testing each causal language model type of transformers (FAMILIES.md).

`make families` writes the table; a test compares it with the results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, __version__
from transformers.integrations.heterogeneity.configuration_utils import AmbiguousGlobalPerLayerAttributeError
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from decoding import PROMPT, TREE, own_greedy
from folders import alone
from models import random_model, tiny_tokenizer
from sequoia_cli.engine import model as engine_model
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.draft import IndependentDraft
from sequoia_cli.engine.fast.block import FastBlock
from sequoia_cli.engine.model import LanguageModel
from sequoia_cli.engine.selftest import check_tree_attention
from sequoia_cli.errors import BadInput
from tiny_configs import VOCABULARY, tiny_config

TABLE = Path(__file__).parents[2] / "FAMILIES.md"

WORKS, REFUSED, UNTRIED = "supported", "refused", "not tested"

#: Types without a tiny model for the test.
NOT_TRIED = {
    "dots3_note": "several models in one, for images and audio",
    "gemma3n": "several models in one, for images and audio; its text model is gemma3n_text",
    "gemma4_assistant": "a draft that reads Gemma 4's hidden states, not a model of its own",
    "gemma4_unified_assistant": "a draft that reads Gemma 4's hidden states, not a model of its own",
    "musicgen": "several models in one, for music",
    "musicgen_melody": "several models in one, for music",
}
#: Variants of a type, besides its default.
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "falcon (ALiBi)": ("falcon", {"alibi": True}),
}
NAMES = (*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *KINDS)

#: Weights are multiplied by this: with less or more, some families repeat two tokens forever.
_SCALE, _SCALES = 12, {"nanochat": 4}

#: Prompts longer than the windows of the tiny models, and the size of prefill pieces here.
LONG_PROMPTS = [
    torch.randint(0, VOCABULARY, (21,), generator=torch.Generator().manual_seed(seed)).tolist()
    for seed in range(4)
]
PIECE = 8
#: The original context of models whose rotary frequencies change beyond it.
ORIGINAL = 40

#: Ranks of a path through TREE if the root's best child is proposed second.
_RANKS = (1, 0, 0)


class Outcome(NamedTuple):
    """The result of a test: `kind` is WORKS, REFUSED or UNTRIED; `detail` says how or why."""

    kind: str
    detail: str


def outcome(name: str, folder: Path) -> Outcome:
    """Make a tiny model of this type in `folder`, use it as users do, and see if it works or is refused."""
    if name in NOT_TRIED:
        return Outcome(UNTRIED, NOT_TRIED[name])
    save(name, folder)
    try:
        target = opened(folder, torch.float32)
    except BadInput as error:
        assert KINDS.get(name, (name,))[0] in error.message
        with pytest.raises(BadInput):  # in bfloat16 too, where rounding hides more
            opened(folder, torch.bfloat16)
        return Outcome(REFUSED, _reason(error, folder))
    opened(folder, torch.bfloat16).make_fast()
    prompt, expected = telling_text(AutoModelForCausalLM.from_pretrained(folder).eval())
    require_equal(target, expected, prompt)
    target.make_fast()
    require_equal(target, expected, prompt)
    if (long_rope := with_long_rope(name)) is not None:
        require_the_context_to_end(long_rope)
    whole = any(isinstance(module, FastBlock) for module in target.model.modules())
    return Outcome(WORKS, "whole layers" if whole else "parts of layers")


def save(name: str, folder: Path) -> PreTrainedModel:
    """Save a tiny model with a tokenizer; the saved config is the type's, not a nested one."""
    model_type, settings = KINDS.get(name, (name, {}))
    model = random_model(tiny_config(model_type, **settings), scale=_SCALES.get(name, _SCALE))
    model.save_pretrained(folder)
    tiny_config(model_type, **settings).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


def opened(folder: Path, dtype: torch.dtype) -> LanguageModel:
    """The model in a folder, opened as the commands do."""
    model = LanguageModel(alone(str(folder), dtype=dtype).model)
    check_tree_attention(model, f"target '{folder}'")
    return model


class _SecondFirst(IndependentDraft):
    """A draft that ranks its best token after the root second, so that rows after the first are kept."""

    def extend(self, parents, tokens):
        proposals = super().extend(parents, tokens)
        if parents[0] < 0:
            logits = proposals.logits.clone()
            best, second = logits[0].topk(2).indices.tolist()
            logits[0, [best, second]] = logits[0, [second, best]]
            return proposals._replace(logits=logits)
        return proposals


def telling_text(model: PreTrainedModel) -> tuple[list[int], list[int]]:
    """The prompt whose greedy text has the most different tokens, and that text: few tokens test little."""
    texts = [(prompt, own_greedy(model, prompt)) for prompt in LONG_PROMPTS]
    return max(texts, key=lambda pair: len(set(pair[1])))


def require_equal(target: LanguageModel, expected: list[int], prompt: list[int] = PROMPT) -> None:
    """Decode with a tree; the target drafts for itself, so that its forward by levels is tested too."""
    draft = _SecondFirst(target, target.vocabulary)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_model, "PREFILL_TOKENS", PIECE)
        steps = list(Decoder(target, [draft], TREE).decode(prompt, len(expected)))
    assert [token for step in steps for token in step.tokens] == expected
    assert len(set(expected)) > 4, f"a text of few tokens tests little: {sorted(set(expected))}"
    full = [step for step in steps if step.depth == TREE.depth]
    assert sum(step.ranks == _RANKS for step in full) >= 0.8 * len(full)


def with_long_rope(name: str) -> PreTrainedConfig | None:
    """The same type with frequencies that change after ORIGINAL positions; None without rotary frequencies.

    Nested by kind of layer if the type does so. There are as many factors as frequencies.
    """
    model_type, settings = KINDS.get(name, (name, {}))
    config = tiny_config(model_type, **settings)
    rope = getattr(config.get_text_config(), "rope_parameters", None)
    buffers = {key.rpartition(".")[2]: value for key, value in random_model(config).named_buffers()}

    def longer(rope: dict[str, Any], count: int) -> dict[str, Any]:
        factors = {"short_factor": [1.0] * count, "long_factor": [4.0 + 3 * place for place in range(count)]}
        scales = {"short_mscale": 1.0, "long_mscale": 1.2}  # of phimoe
        kind = {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": ORIGINAL}
        return {**rope, **kind, **factors, **scales}

    if not rope or not any(key.endswith("inv_freq") for key in buffers):
        return None
    if "rope_type" in rope:
        longrope = longer(rope, buffers["inv_freq"].numel())
    else:
        longrope = {
            kind: longer(one, buffers[f"{kind}_inv_freq"].numel()) if one else one
            for kind, one in rope.items()
        }
    top = {"rope_parameters": longrope, "original_max_position_embeddings": ORIGINAL}
    if config is not config.get_text_config():
        own = next(
            key for key in type(config).sub_configs if getattr(config, key) is config.get_text_config()
        )
        top = {own: {**getattr(config, own).to_dict(), **top}}
    try:
        changed = tiny_config(model_type, **{**settings, **top})
        random_model(changed)
    except AmbiguousGlobalPerLayerAttributeError:  # Gemma 4: transformers has no such frequencies for it
        return None
    return changed


def require_the_context_to_end(config: PreTrainedConfig) -> None:
    """Texts end where the frequencies change: beyond that the rows in the cache are wrong."""
    model = random_model(config, scale=_SCALES.get(config.model_type, _SCALE))
    target = LanguageModel(model)
    assert target.context_limit == ORIGINAL
    draft = _SecondFirst(target, target.vocabulary)
    prompt, _ = telling_text(model)
    text = [token for step in Decoder(target, [draft], TREE).decode(prompt, 60) for token in step.tokens]
    assert len(prompt) + len(text) >= ORIGINAL
    assert text == own_greedy(model, prompt, len(text))
    # The rows change one position later, so the limit is not one token too low.
    ids = torch.tensor([[*prompt, *text, *text]])
    within, past = (
        model(input_ids=ids[:, :n], use_cache=False).logits[0, :20] for n in (ORIGINAL, ORIGINAL + 1)
    )
    before = model(input_ids=ids[:, : len(prompt)], use_cache=False).logits[0, :20]
    assert torch.allclose(before, within, rtol=1e-3, atol=1e-3 * float(before.abs().max()))
    assert (past - within).abs().max() > 1e-2 * within.abs().max()


def _reason(error: BadInput, folder: Path) -> str:
    """The reason in the message, without names and numbers of this run."""
    said = error.message.removeprefix(f"target '{folder}'").removeprefix(": ").strip()
    said = re.sub(r"^models of the family '.*?' cannot verify a token tree: ", "", said)
    return re.sub(r"( by [\d.e+-]+)? \((rounding|[A-Z]\w*(Error|Exception)).*", "", said).replace("|", "/")


def table(outcomes: Mapping[str, Outcome]) -> str:
    """The text of FAMILIES.md."""
    parts = [_HEAD.format(version=__version__)]
    for kind, title in _TITLES.items():
        rows = {name: found.detail for name, found in outcomes.items() if found.kind == kind}
        parts.append(f"## {title.format(count=len(rows))}\n\n{_COLUMNS[kind]}\n|---|---|\n")
        parts[-1] += "".join(f"| {name} | {detail} |\n" for name, detail in sorted(rows.items()))
    return "\n".join(parts)


def stated(text: str) -> tuple[str, dict[str, Outcome]]:
    """The version of transformers and the outcomes in a table."""
    version = re.search(r"of transformers (\S+)\.", text)
    assert version
    found, kind = {}, ""
    titles = {title.partition(" (")[0]: kind for kind, title in _TITLES.items()}
    for line in text.splitlines():
        if line.startswith("## "):
            kind = titles[line[3:].partition(" (")[0]]
        elif line.startswith("| ") and not line.startswith("| model type"):
            name, detail = line.strip("| ").split(" | ")
            found[name] = Outcome(kind, detail)
    return version[1], found


_HEAD = """# Families

Every causal language model type of transformers {version}. For each, a tiny model with random weights is
saved, loaded as a user's model is, and decoded greedily with a tree. Made by `make families`; a test compares
this table with the results.
"""
_TITLES = {
    WORKS: "Supported ({count}): greedy ids equal the family's own `generate`",
    REFUSED: "Refused by name ({count})",
    UNTRIED: "Not tested ({count})",
}
_COLUMNS = {
    WORKS: "| model type | `--forward fast` prepares |",
    REFUSED: "| model type | because |",
    UNTRIED: "| model type | because it is |",
}


def _swept(names: Iterable[str]) -> dict[str, Outcome]:
    found = {}
    for name in names:
        with TemporaryDirectory() as folder:
            found[name] = outcome(name, Path(folder))
        print(name, *found[name], sep=": ", file=sys.stderr)
    return found


if __name__ == "__main__":
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    TABLE.write_text(table(_swept(NAMES)), encoding="utf-8")
