"""Small real tokenizers of the kinds that decode differently, built on the spot from a few lines."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LINES = [
    "Hello there, it's a fine day! Isn't it? They've said we're late.",
    "日本語のテキスト 🦄👩\u200d🚀🇫🇷 é café — naïve",
    "def f(x):\n    return x + 1  # ok",
]

#: Prints a start token, as the templates of many families do.
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT_WITHOUT_BOS = CHAT.removeprefix("{{ bos_token }}")


def byte_level(**options: Any) -> PreTrainedTokenizerFast:
    """Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM): most characters beyond ASCII are several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL.values()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL, **options)


def byte_fallback(*, add_bos: bool = True, **options: Any) -> PreTrainedTokenizerFast:
    """Llama 2's kind: `▁` for a space, one dropped at the start; characters without a token become bytes."""
    words = ["▁", "▁▁", "▁Hello", "▁the", "Hello", *"Helothrworld.,'!?\n[]", "日", "本", "é"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *dict.fromkeys(words)]
    vocabulary = {name: id for id, name in enumerate(names)}
    model = models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL, **options)


def metaspace(*, clean_up: bool = False) -> PreTrainedTokenizerFast:
    """A unigram vocabulary with the Metaspace decoder, with or without cleaning up of spaces."""
    words = [
        "▁",
        "▁▁",
        "▁the",
        "lo",
        *"Hntms'.,!?",
        "▁n",
        "▁'",
        "'t",
        "▁'m",
        "▁.",
        "'s",
        "▁'s",
        "re",
        "▁'re",
        "ve",
    ]
    model = models.Unigram([(name, -1.0) for name in ["<unk>", "<s>", "</s>", *words]], 0, False)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=clean_up, **SPECIAL
    )


def word_piece() -> PreTrainedTokenizerFast:
    """WordPiece with cleaning up: spaces between all tokens, some of them removed again."""
    words = ["a", "##b", "c", "'", "##'", "n", "##n", "t", "##t", "s", "n't", "'s", "re", "ve", *".,!?"]
    names = ["<unk>", "<s>", "</s>", *words]
    tokenizer = Tokenizer(models.WordPiece({name: id for id, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=True, **SPECIAL)


def word_end() -> PreTrainedTokenizerFast:
    """BPE with an end-of-word mark: the space after a word is printed only when another token follows."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=200, end_of_word_suffix="</w>", special_tokens=list(SPECIAL.values()), show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


KINDS = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    "metaspace, cleaned up": lambda: metaspace(clean_up=True),
    "word piece, cleaned up": word_piece,
    "word end": word_end,
}
