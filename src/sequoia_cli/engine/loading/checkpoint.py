"""What a model folder says of its model: config and tokenizer, read before any weight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    __version__,
)
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from sequoia_cli.core.parsing import shown
from sequoia_cli.engine.loading.foreign import read_json, refusing
from sequoia_cli.engine.loading.published_heads import refuse_by_config
from sequoia_cli.engine.loading.sources import Source
from sequoia_cli.errors import BadInput

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)
#: What to check in a folder that is not a model's.
CONTENTS = "a model folder holds config.json, a tokenizer (tokenizer.json) and *.safetensors weights"


@dataclass(frozen=True)
class Checkpoint:
    """What a folder says of its model. `skeleton` is the model without storage: its class, names, shapes.

    `tokenizer` is None where the folder has none, which only a draft that shares its target's may do.
    """

    source: Source
    folder: Path
    config: PreTrainedConfig
    skeleton: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    notes: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding, padding included."""
        return int(self.config.get_text_config().vocab_size)


def describe(source: Source, folder: Path, trust_remote_code: bool) -> Checkpoint:
    """Read config and tokenizer of a model folder.

    Raises `BadInput` for a folder without config, and for one whose model is not a causal language model,
    is unknown, needs code that is not trusted, or has a damaged config or tokenizer.
    """
    config, skeleton = _config_and_skeleton(source, folder, trust_remote_code)
    tokenizer = None
    if any((folder / name).is_file() for name in _TOKENIZER_FILES) or list(folder.glob("*.tiktoken")):
        with refusing(f"{source}: its tokenizer cannot be loaded", CONTENTS):
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=trust_remote_code
            )
    notes = []
    wanted = [value for key, value in read_json(source, folder / "config.json").items() if "attn_impl" in key]
    if wanted and wanted[0] not in (None, "sdpa", "eager"):
        used = skeleton.config._attn_implementation
        notes.append(f"{source} asks for {wanted[0]}, which takes no tree mask; using {used} instead")
    return Checkpoint(source, folder, config, skeleton, tokenizer, tuple(notes))


def tokenizer_of(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    """The folder's tokenizer. Raises `BadInput` where it has none."""
    if checkpoint.tokenizer is None:
        raise BadInput(f"{checkpoint.source}: {checkpoint.folder} has no tokenizer", hint=CONTENTS)
    return checkpoint.tokenizer


def _config_and_skeleton(
    source: Source, folder: Path, trust_remote_code: bool
) -> tuple[PreTrainedConfig, PreTrainedModel]:
    if not (folder / "config.json").is_file():
        adapter = (folder / "adapter_config.json").is_file()
        hint = "it is an adapter; merge it into its base model and give that" if adapter else CONTENTS
        raise BadInput(f"{source}: {folder} has no config.json", hint=hint)
    raw = read_json(source, folder / "config.json")
    refuse_by_config(source, raw)
    _refuse_adapter(source, folder)
    _refuse_unknown_quantisation(source, raw)
    family, own_code = raw.get("model_type"), "auto_map" in raw
    if family not in CONFIG_MAPPING and not (own_code and trust_remote_code):
        raise BadInput(
            f"{source}: config.json has model_type '{family}', unknown to transformers {__version__}",
            hint="it brings its own code; --trust-remote-code runs that" if own_code else None,
        )
    remote = {"trust_remote_code": trust_remote_code}
    with refusing(f"{source}: config.json cannot be used"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **remote)
    if config.is_encoder_decoder:
        raise BadInput(f"{source} is an encoder-decoder model ({family}); a decoder-only one is needed")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not own_code:
        raise BadInput(
            f"{source} is a '{family}' model; transformers has no causal language model of that kind"
        )
    for attention in ("sdpa", "eager"):
        with refusing(f"{source}: no {family} model can be made of its config.json"):
            try:
                with torch.device("meta"):
                    skeleton = AutoModelForCausalLM.from_config(
                        config, attn_implementation=attention, **remote
                    )
                break
            except ValueError:  # how transformers says that a family has no such attention
                if attention == "eager":
                    raise
    # Some decoders carry that setting too, and read it nowhere.
    if getattr(config, "is_decoder", None) is False and any(
        getattr(module, "is_decoder", None) is False for module in skeleton.modules()
    ):
        raise BadInput(
            f"{source} is an encoder ({family}): its tokens attend to later tokens",
            hint="one that was trained as a decoder says so by is_decoder in its config.json",
        )
    return config, skeleton


def _refuse_adapter(source: Source, folder: Path) -> None:
    """transformers applies an adapter beside the weights where peft is installed, and nowhere else."""
    if (folder / "adapter_config.json").is_file():
        raise BadInput(
            f"{source}: {folder} has an adapter_config.json beside config.json: transformers applies that "
            "adapter only where peft is installed, so that the text would depend on it",
            hint="take adapter_config.json out of the folder if the adapter is merged into its weights; else "
            "merge it into its base model and give that",
        )


def _refuse_unknown_quantisation(source: Source, raw: dict[str, Any]) -> None:
    """transformers leaves out a quantisation that it does not know, and reads the numbers as weights."""
    nested = raw.get("text_config")
    for config in (raw, nested if isinstance(nested, dict) else {}):
        asked = config.get("quantization_config")
        if not isinstance(asked, dict) or asked.get("load_in_8bit") or asked.get("load_in_4bit"):
            continue
        if (method := asked.get("quant_method")) not in AUTO_QUANTIZATION_CONFIG_MAPPING:
            raise BadInput(
                f"{source}: config.json has quant_method {shown(method)}, unknown to transformers "
                f"{__version__}",
                hint="give the model as it was before it was quantised, or in a method that transformers has",
            )
