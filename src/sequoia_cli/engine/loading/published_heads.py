"""Draft heads of other projects, which are not read here: recognised, so that they can be refused by name.

Their folders look like small causal language models that lack something.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from sequoia_cli.core.artifact import shown
from sequoia_cli.engine.loading.sources import Source
from sequoia_cli.errors import BadInput

_MEDUSA_WEIGHT = re.compile(r"(medusa_head\.|heads\.)?\d+\.\d+\.(linear\.)?(weight|bias)")


def refuse_by_config(source: Source, config: Mapping[str, Any]) -> None:
    """Raise `BadInput` where config.json, as it was read, is that of a published head."""
    family = str(config.get("model_type") or "").lower()
    classes = " ".join(map(str, config.get("architectures") or [])).lower()
    if "speculators_model_type" in config:
        _refuse(source, f"a head in the format of speculators ({shown(config['speculators_model_type'])})")
    if "medusa_num_heads" in config or "medusa" in family + classes:
        _refuse(source, "a Medusa head")
    if "eagle3" in family + classes or "draft_vocab_size" in config:
        _refuse(source, "an EAGLE-3 head")
    if "eagle" in family + classes:
        _refuse(source, "an EAGLE head")
    if "mlp_speculator" in family or "mlpspeculator" in classes:
        _refuse(source, "an MLP speculator")


def refuse_by_weights(source: Source, names: Collection[str]) -> None:
    """Raise `BadInput` where these are the weights of a published head whose config.json does not say so."""
    if "d2t" in names or any(name.startswith("midlayer.") for name in names):
        _refuse(source, "an EAGLE-3 head")
    if "fc.weight" in names:
        _refuse(source, "an EAGLE head")
    if names and all(_MEDUSA_WEIGHT.fullmatch(name) for name in names):
        _refuse(source, "a Medusa head")


def refuse_by_look(source: Source, folder: Path, layers: int | None) -> None:
    """Raise `BadInput` for one pickled layer without a tokenizer, as EAGLE heads were published first."""
    pickled = any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors"))
    if pickled and layers == 1:
        _refuse(source, "an EAGLE head, by its one layer without a tokenizer")


def _refuse(source: Source, what: str) -> None:
    raise BadInput(
        f"{source} is {what}, which is not read here",
        hint="`sequoia distill` makes a draft for a target; a small model of the target's family is one, too",
    )
