"""Model folders for the loader's tests, with the tiny models of `models`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from models import tiny_model, tiny_tokenizer
from sequoia_cli.engine.loading.load import load_pair, load_target

CPU = {"dtype": torch.float32, "device": torch.device("cpu")}


def save(folder: Path, family: str = "llama", vocab: int = 64, tokenizer: Any = True, **options: Any) -> str:
    """Save a tiny model, by default with a tokenizer of the same vocabulary; returns the folder's name."""
    model = tiny_model(family, vocab, **options)
    model.save_pretrained(folder)
    if tokenizer is True:
        tokenizer = tiny_tokenizer(vocab)
    if tokenizer:
        tokenizer.save_pretrained(folder)
    return str(folder)


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file, made where it is missing."""
    data = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**data, **changes}))


def edit_weights(folder: Path, drop: tuple[str, ...] = (), **added: torch.Tensor) -> None:
    """Rewrite the weights without those whose names contain one of `drop`, and with those `added`."""
    path = Path(folder) / "model.safetensors"
    kept = {name: value for name, value in load_file(path).items() if not any(part in name for part in drop)}
    save_file({**kept, **added}, path, metadata={"format": "pt"})


def pair(target: str, *drafts: str, **options: Any):
    """`load_pair` in float32 on the CPU."""
    return load_pair(target, *drafts, **{**CPU, **options})


def alone(target: str, **options: Any):
    """`load_target` in float32 on the CPU."""
    return load_target(target, **{**CPU, **options})


def own_greedy(folder: str, prompt: str, count: int) -> tuple[list[int], list[int]]:
    """Ids of the prompt, and of the continuation that the model's own greedy `generate` gives."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    if tokenizer.chat_template:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
    else:
        ids = tokenizer(prompt)["input_ids"]
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0)
    return ids, out[0, len(ids) :].tolist()
