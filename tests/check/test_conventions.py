"""Prompts' ids and ends of text, beside what transformers makes of them."""

import pytest

from models import tiny_model
from sequoia_cli.check.conventions import wrong_eos_ids, wrong_prompt
from sequoia_cli.engine.text import encode_prompt
from tiny_tokenizers import byte_level

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
CHAT = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "Hello"})


@pytest.fixture
def tokenizer():
    return byte_level()


@pytest.mark.parametrize("template", [None, TEMPLATE])
@pytest.mark.parametrize("raw", [False, True])
def test_the_ids_of_a_text_are_those_of_transformers(tokenizer, template, raw):
    tokenizer.chat_template = template
    assert wrong_prompt(tokenizer, "Hello", encode_prompt(tokenizer, "Hello", raw=raw), raw=raw) is None


def test_the_ids_of_a_chat_are_those_of_the_rendered_template_and_others_are_named(tokenizer):
    tokenizer.chat_template = TEMPLATE
    ids = encode_prompt(tokenizer, CHAT, raw=False)
    assert wrong_prompt(tokenizer, CHAT, ids, raw=False) is None
    wrong = wrong_prompt(tokenizer, CHAT, [ids[0], *ids], raw=False)
    assert f"({len(ids) + 1} ids, expected {len(ids)})" in wrong
    assert "differ from those of transformers at" in wrong_prompt(tokenizer, CHAT, ids[:-1], raw=False)


def test_a_text_ends_at_the_ids_of_the_generation_config():
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [2, 7]
    assert wrong_eos_ids(model, (7, 2)) is None
    assert "ends at ids [2]; the target's generation config has [2, 7]" in wrong_eos_ids(model, (2,))
    model.generation_config.eos_token_id = None
    assert wrong_eos_ids(model, (2,)) is None
