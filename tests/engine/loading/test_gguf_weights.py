"""The integers of a GGUF file, for the model that has its values."""

import gguf
import pytest
import torch

from models import tiny_model
from sequoia_cli.engine.integer.gguf_blocks import Q4_1, Q8_0
from sequoia_cli.engine.loading.gguf_weights import read_integers
from sequoia_cli.errors import SequoiaError

SETTINGS = {"head_dim": 16, "tie_word_embeddings": True}
SHORT = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "mlp.down_proj": "ffn_down"}


def write(path, model, heads=True):
    """Some of a model's matrices as GGUF; the model gets the values that they have there, in bfloat16."""
    writer = gguf.GGUFWriter(path, "llama")
    parts = {"lm_head": ("token_embd", Q8_0)}
    parts |= {f"model.layers.1.{name}": (f"blk.1.{short}", Q4_1) for name, short in SHORT.items()}
    for place, (name, kind) in parts.items():
        weight = model.get_submodule(place).weight
        weight.copy_(torch.from_numpy(gguf.dequantize(gguf.quantize(weight.float().numpy(), kind), kind)))
        rows = weight.float().clone()
        if heads and name.endswith(("attn_q", "attn_k")):
            # The halves of each head are interleaved.
            rows = torch.stack(rows.unflatten(0, (-1, 2, 8)).unbind(1), 2).reshape(rows.shape)
        writer.add_tensor(f"{name}.weight", gguf.quantize(rows.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def test_layers_get_the_values_of_the_file_in_the_models_order(tmp_path):
    model = tiny_model("llama", **SETTINGS)
    write(tmp_path / "it.gguf", model)
    found = read_integers(tmp_path / "it.gguf", model)
    names = {module: name for name, module in model.named_modules()}
    assert {names[module] for module in found} == {
        "lm_head",
        *(f"model.layers.1.{name}" for name in SHORT),
    }
    for module, integers in found.items():
        assert torch.equal(integers.rows(), module.weight)


@torch.no_grad()
def test_a_file_of_other_weights_is_refused(tmp_path):
    model = tiny_model("llama", **SETTINGS)
    write(tmp_path / "it.gguf", model, heads=False)
    with pytest.raises(SequoiaError, match=r"blk\.1\.attn_q\.weight in .* has other weights"):
        read_integers(tmp_path / "it.gguf", model)


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    (tmp_path / "it.gguf").write_bytes(b"nothing of the kind")
    with pytest.raises(SequoiaError, match=r"it\.gguf cannot be read as GGUF"):
        read_integers(tmp_path / "it.gguf", tiny_model("llama"))
