"""A GGUF file of a Llama-family model with a byte-level tokenizer, written as an ordinary model folder.

The `gguf` library reads and dequantises; here are the names, the layout of rotary weights and the tokenizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from sequoia_cli.errors import SequoiaError

_CONTROL = 3  # the token type of GGUF that marks `<|im_end|>` and its like


def convert(source: Path, folder: Path) -> None:
    """Write config, bfloat16 weights, generation config and tokenizer of the GGUF `source` into `folder`.

    Raises `SequoiaError` where the file's tensors are not those of its own description.
    """
    reader = gguf.GGUFReader(source)
    config = _config(reader)
    folder.mkdir(parents=True)
    save_file(_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    _tokenizer(reader).save_pretrained(folder)


def _field(reader: gguf.GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _config(reader: gguf.GGUFReader) -> LlamaConfig:
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=len(_field(reader, "tokenizer.ggml.tokens")),
        hidden_size=_field(reader, "llama.embedding_length"),
        intermediate_size=_field(reader, "llama.feed_forward_length"),
        num_hidden_layers=_field(reader, "llama.block_count"),
        num_attention_heads=_field(reader, "llama.attention.head_count"),
        num_key_value_heads=_field(reader, "llama.attention.head_count_kv"),
        max_position_embeddings=_field(reader, "llama.context_length"),
        rms_norm_eps=_field(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": _field(reader, "llama.rope.freq_base")},
        tie_word_embeddings=all(tensor.name != "output.weight" for tensor in reader.tensors),
        bos_token_id=_field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_field(reader, "tokenizer.ggml.padding_token_id"),
    )


def _weights(reader: gguf.GGUFReader, config: LlamaConfig) -> dict[str, Tensor]:
    """Every weight the architecture has, under its name there; none may be missing or left over."""
    with torch.device("meta"):
        expected = dict(LlamaForCausalLM(config).named_parameters())  # a tied head is listed once
    stored = {tensor.name: tensor for tensor in reader.tensors}
    gguf_names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    weights = {}
    for name, parameter in expected.items():
        tensor = stored.pop(gguf_names.get_name(name, try_suffixes=(".weight",)) or "", None)
        if tensor is None:
            raise SequoiaError(f"the GGUF file lacks weight {name}")
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        if values.shape != parameter.shape:
            raise SequoiaError(f"GGUF weight {name} is {tuple(values.shape)}, not {tuple(parameter.shape)}")
        if "q_proj" in name:
            values = _split_rotary_halves(values, config.num_attention_heads)
        if "k_proj" in name:
            values = _split_rotary_halves(values, config.num_key_value_heads)
        weights[name] = values.to(torch.bfloat16).contiguous()
    if stored:
        raise SequoiaError(f"the GGUF file has weights of no known place: {', '.join(sorted(stored))}")
    return weights


def _split_rotary_halves(weight: Tensor, heads: int) -> Tensor:
    """GGUF keeps the two parts of each rotary pair in neighbouring rows; transformers keeps all first parts
    of a head before all second parts."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _tokenizer(reader: gguf.GGUFReader) -> PreTrainedTokenizerFast:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    if _field(reader, "tokenizer.ggml.pre") != "smollm":
        raise SequoiaError(
            f"pre-tokenizer '{_field(reader, 'tokenizer.ggml.pre')}' is not known; only smollm"
        )
    backend = Tokenizer(models.BPE(vocab={token: id for id, token in enumerate(tokens)}, merges=merges))
    # What "smollm" stands for: each digit by itself, then GPT-2's rule. transformers' own GGUF reader leaves
    # the digits out, and so cuts runs of spaces before a number unlike the model's training did.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = _field(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])

    def special(role: str) -> str:
        return tokens[_field(reader, f"tokenizer.ggml.{role}_token_id")]

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=special("bos"),
        eos_token=special("eos"),
        pad_token=special("padding"),
        unk_token=special("unknown"),
        model_max_length=_field(reader, "llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _field(reader, "tokenizer.chat_template")
    return tokenizer
