"""The integers of a GGUF file's matrices, for a model that was made of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from sequoia_cli.engine.integer.arithmetic import spread_ids
from sequoia_cli.engine.integer.gguf_blocks import KINDS, of_blocks
from sequoia_cli.engine.integer.weights import BySpan
from sequoia_cli.errors import SequoiaError

#: The matrices of a Llama layer, by their names in GGUF.
_IN_A_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

#: Rounded to bfloat16 once, as the model's are.
_TOLERANCE = 2**-8

#: Outputs of a layer that are compared with the model's.
_COMPARED = 64


def read_integers(path: Path, model: PreTrainedModel) -> dict[nn.Module, BySpan]:
    """The weights of a Llama model's linear layers as the file at `path` has them.

    Its embedding is its output head. Layers that the file has in another form are left out. Raises
    `SequoiaError` where the file cannot be read or is not what the model was made of.
    """
    try:
        tensors = {tensor.name: tensor for tensor in GGUFReader(str(path)).tensors}
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise SequoiaError(f"{path} cannot be read as GGUF: {error}") from error
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    names = {"token_embd.weight": ("lm_head", None)} if config.tie_word_embeddings else {}
    for layer in range(config.num_hidden_layers):
        for short, name in _IN_A_LAYER.items():
            names[f"blk.{layer}.{short}.weight"] = f"model.layers.{layer}.{name}", heads.get(short)
    found: dict[nn.Module, BySpan] = {}
    for name, (place, turned) in names.items():
        tensor, module = tensors.get(name), model.get_submodule(place)
        if tensor is None or tensor.tensor_type not in KINDS:
            continue
        blocks = _in_order(tensor, turned)
        integers = of_blocks(blocks, tensor.tensor_type, int(tensor.shape[0]))
        _require_same(integers, module.weight, f"{name} in {path}")
        found[module] = integers.to(module.weight.device)
    return found


def _in_order(tensor: Any, heads: int | None) -> NDArray[np.uint8]:
    """(outputs, bytes) in the model's order: GGUF has the two halves of each of some `heads` interleaved."""
    rows = np.array(tensor.data)
    if heads is None:
        return rows
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _require_same(integers: BySpan, weight: Tensor, what: str) -> None:
    """Compare some outputs, among them the first and the last."""
    same = (integers.outputs, integers.width) == tuple(weight.shape)
    if same:
        ids = spread_ids(len(weight), _COMPARED)
        values, given = integers.rows(ids), weight.detach()[ids.to(weight.device)].cpu().float()
        same = bool((abs(values - given) <= _TOLERANCE * abs(values)).all())
    if not same:
        raise SequoiaError(
            f"{what} has other weights than the loaded model",
            hint="remove both from the folder `models` in sequoia's cache; they are then fetched anew",
        )
