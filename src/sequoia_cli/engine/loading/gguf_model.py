"""A GGUF file turned into an ordinary model folder, through transformers' own GGUF support."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(source: Path, folder: Path) -> None:
    """Write config, bfloat16 weights, generation config and tokenizer of the GGUF `source` into `folder`."""
    with redirect_stderr(StringIO()):  # a progress bar that nothing else turns off, for two seconds
        loaded = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.bfloat16
        )
    # A model that came from GGUF refuses to be saved, so its weights move into one that did not.
    config = loaded.config
    del config.quantization_config, config._name_or_path
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    fresh.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    # What GGUF calls the pre-tokenizer "smollm": each digit by itself, then GPT-2's rule. The reader leaves
    # the digits out, and so cuts runs of spaces before a number unlike the model's training did.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
