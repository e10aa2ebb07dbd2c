"""Prompts into ids, and ids into streamed text: nothing lost, doubled, split or taken back."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

import tiny_tokenizers as tiny
from sequoia_cli.engine.text import REPLACEMENT, TextStream, encode_prompt
from sequoia_cli.errors import BadInput

HARD = "Hi 🦄👩\u200d🚀日本🇫🇷é, nai\u0308ve — café!\n  x"


# ---- prompts ----------------------------------------------------------------------------------------------


def test_a_text_becomes_one_user_turn_of_the_chat_template():
    tokenizer = tiny.byte_level(chat_template=tiny.CHAT)
    ids = encode_prompt(tokenizer, "Hello")
    assert tokenizer.decode(ids) == "<s>[user]Hello\n[assistant]"
    assert ids == encode_prompt(tokenizer, [{"role": "user", "content": "Hello"}])


def test_a_chat_keeps_its_turns_in_order():
    tokenizer = tiny.byte_level(chat_template=tiny.CHAT)
    chat = [{"role": r, "content": c} for r, c in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    assert (
        tokenizer.decode(encode_prompt(tokenizer, chat)) == "<s>[user]a\n[assistant]b\n[user]c\n[assistant]"
    )


@pytest.mark.parametrize(("template", "starts"), [(tiny.CHAT, 1), (tiny.CHAT_WITHOUT_BOS, 0)])
def test_the_template_alone_decides_on_the_start_token(template: str, starts: int):
    tokenizer = tiny.byte_fallback(add_bos=True, chat_template=template)
    ids = encode_prompt(tokenizer, "Hello")
    assert ids.count(tokenizer.bos_token_id) == starts
    chat = [{"role": "user", "content": "Hello"}]
    assert ids == tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)


@pytest.mark.parametrize("tokenizer", [tiny.byte_fallback(), tiny.byte_fallback(chat_template=tiny.CHAT)])
def test_raw_is_the_tokenizers_ordinary_encoding_with_its_special_tokens(tokenizer: Any):
    ids = encode_prompt(tokenizer, "Hello world", raw=True)
    assert ids == tokenizer("Hello world")["input_ids"]
    assert ids[0] == tokenizer.bos_token_id
    assert ids == encode_prompt(tokenizer, [{"role": "user", "content": "Hello world"}], raw=True)


def test_a_text_needs_no_chat_template():
    tokenizer = tiny.byte_fallback()
    assert encode_prompt(tokenizer, "Hello") == encode_prompt(tokenizer, "Hello", raw=True)


def test_an_empty_text_is_the_start_token_or_refused():
    tokenizer = tiny.byte_level()
    assert encode_prompt(tokenizer, "", raw=True) == [tokenizer.bos_token_id]
    tokenizer.bos_token = None
    with pytest.raises(BadInput, match="the prompt is empty"):
        encode_prompt(tokenizer, "", raw=True)


@pytest.mark.parametrize(
    ("prompt", "raw", "complaint"),
    [
        ([], False, "empty list of messages"),
        ([{"role": "user", "content": "a"}], False, "has no chat template"),
        ([{"role": "system", "content": "a"}], True, "chat of 1 messages"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], True, "chat of 2 messages"),
    ],
)
def test_a_chat_without_a_template_is_refused(prompt: Any, raw: bool, complaint: str):
    with pytest.raises(BadInput, match=complaint):
        encode_prompt(tiny.byte_level(), prompt, raw=raw)


@pytest.mark.parametrize("raw", [True, False])
def test_bytes_of_the_command_line_that_are_no_text_are_refused(raw: bool):
    tokenizer = tiny.byte_level(chat_template=tiny.CHAT)
    typed = b"caf\xe9".decode("utf-8", errors="surrogateescape")
    with pytest.raises(BadInput, match="not UTF-8"):
        encode_prompt(tokenizer, typed, raw=raw)


def test_what_a_template_raises_becomes_one_line():
    tokenizer = tiny.byte_level(chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadInput, match=r"refuses the prompt: roles must alternate") as caught:
        encode_prompt(tokenizer, "Hello")
    assert "--raw" in (caught.value.hint or "")


# ---- streaming --------------------------------------------------------------------------------------------


def blocks(ids: Sequence[int], cut: random.Random) -> list[Sequence[int]]:
    """`ids` cut at random: single ones more often than not, as at low acceptance."""
    result, start = [], 0
    while start < len(ids):
        length = cut.choice((1, 1, 1, 2, 3, 9))
        result.append(ids[start : start + length])
        start += length
    return result


def stream(tokenizer: Any, parts: Sequence[Sequence[int]], **options: Any) -> tuple[TextStream, list[str]]:
    """Push the parts one after the other, finish, and return the stream with the pieces it gave."""
    text = TextStream(tokenizer, **options)
    pieces = [text.push(part) for part in parts] + [text.finish()]
    assert "".join(pieces) == text.text
    return text, pieces


def random_ids(tokenizer: Any, draw: random.Random) -> list[int]:
    """Ids of the whole vocabulary and of its padding, or of a few only, so that rare runs are met often."""
    everything = range(len(tokenizer) + 3)
    few = [draw.choice(everything) for _ in range(draw.choice((2, 4, 6)))]
    return draw.choices(draw.choice((everything, few)), k=draw.choice((0, 1, 3, 10, 60, 200)))


@pytest.mark.parametrize("kind", tiny.KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_pieces_join_to_the_full_decoding_of_any_ids_in_any_blocks(kind: str, skip: bool):
    tokenizer, draw = tiny.KINDS[kind](), random.Random(1)
    for _ in range(300):
        ids = random_ids(tokenizer, draw)
        text, _ = stream(tokenizer, blocks(ids, draw), skip_special_tokens=skip)
        assert text.text == tokenizer.decode(ids, skip_special_tokens=skip)
        assert (text.stopped, text.token_count) == (False, len(ids))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_pieces_join_to_the_full_decoding_when_the_same_id_comes_for_ever(kind: str):
    tokenizer = tiny.KINDS[kind]()
    for ids in ([id] * 60 for id in range(len(tokenizer))):
        text, _ = stream(tokenizer, [[id] for id in ids])
        assert text.text == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_stop_cuts_where_it_is_complete_first_whatever_the_blocks(kind: str):
    tokenizer, draw = tiny.KINDS[kind](), random.Random(2)
    for _ in range(200):
        ids = random_ids(tokenizer, draw)
        full = tokenizer.decode(ids, skip_special_tokens=True)
        if len(full) < 5:
            continue
        starts = [draw.randrange(len(full) - 4) for _ in range(3)]
        stops = [full[start : start + draw.randint(1, 4)] for start in starts]
        text, _ = stream(tokenizer, blocks(ids, draw), stop=[*stops, "never there"])

        # The slow twin grows the text by one character, then the ids by one.
        end = next(n for n in range(len(full) + 1) if full[:n].endswith(tuple(stops)))
        longest = max(len(stop) for stop in stops if full[:end].endswith(stop))
        decoded = (tokenizer.decode(ids[:n], skip_special_tokens=True) for n in range(len(ids) + 1))
        count = next(n for n, some in enumerate(decoded) if some[:end] == full[:end])
        assert (text.stopped, text.text, text.token_count) == (True, full[: end - longest], count)


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_no_character_is_split_wherever_the_blocks_are_cut(kind: str):
    tokenizer = tiny.KINDS[kind]()
    ids = tokenizer(HARD, add_special_tokens=False)["input_ids"]
    assert len(ids) > len(HARD)
    for cut in range(len(ids) + 1):
        text, pieces = stream(tokenizer, [ids[:cut], ids[cut:]])
        assert text.text == HARD
        assert REPLACEMENT not in "".join(pieces)
    _, pieces = stream(tokenizer, [[id] for id in ids])
    assert "".join(pieces) == HARD


def test_text_is_printed_as_soon_as_it_is_certain():
    tokenizer = tiny.byte_level()
    ids = tokenizer("🦄!", add_special_tokens=False)["input_ids"]
    _, pieces = stream(tokenizer, [[id] for id in ids])
    assert pieces[-2:] == ["!", ""]
    assert [piece for piece in pieces if piece] == ["🦄", "!"]


def test_bpe_keeps_its_spaces_even_where_its_config_asks_for_cleaning_up():
    tokenizer = tiny.byte_level(clean_up_tokenization_spaces=True)
    ids = tokenizer("a . b", add_special_tokens=False)["input_ids"]
    assert stream(tokenizer, [ids])[1] == ["a . b", ""]


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_an_end_inside_a_character_shows_as_replacement_only_at_the_end(kind: str):
    tokenizer = tiny.KINDS[kind]()
    ids = tokenizer("Hello 🦄", add_special_tokens=False)["input_ids"][:-1]
    _, pieces = stream(tokenizer, [[id] for id in ids])
    assert "".join(pieces[:-1]) == "Hello "
    assert set(pieces[-1]) == {REPLACEMENT}
    assert "".join(pieces) == tokenizer.decode(ids)


def test_one_wrong_byte_in_a_run_of_bytes_takes_nothing_back():
    """Byte-fallback decoders turn the whole run into replacement characters: nothing of it may be out yet."""
    tokenizer = tiny.byte_fallback()
    byte = [tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in range(256)]
    ids = [byte[value] for value in "ñ".encode()] + [byte[0xFF]] + tokenizer.convert_tokens_to_ids(["H"])
    assert tokenizer.decode(ids) == REPLACEMENT * 3 + "H"
    assert stream(tokenizer, [[id] for id in ids])[1] == ["", "", "", REPLACEMENT * 3 + "H", ""]


def test_special_tokens_inside_a_character_do_not_break_it():
    tokenizer = tiny.byte_fallback()
    byte = [tokenizer.convert_tokens_to_ids(f"<0x{value:02X}>") for value in "語".encode()]
    ids = [byte[0], tokenizer.eos_token_id, byte[1], tokenizer.bos_token_id, byte[2]]
    text, _ = stream(tokenizer, [[id] for id in ids], stop=["語"])
    assert (text.text, text.stopped, text.token_count) == ("", True, 5)
    assert stream(tokenizer, [[id] for id in ids])[0].text == "語"


def named(tokenizer: Any, *names: str) -> list[int]:
    ids = tokenizer.convert_tokens_to_ids(list(names))
    assert tokenizer.unk_token_id not in ids
    return ids


@pytest.mark.parametrize(
    ("stop", "parts", "text", "count"),
    [
        ("l", [["H", "e", "▁Hello", "w"]], "He He", 3),  # ends inside one token
        ("rld", [["w", "o", "r", "l", "d", "!"]], "wo", 5),  # spans three tokens of one block
        ("rld", [["w", "o", "r"], ["l", "d", "!"]], "wo", 5),  # begins in one block, ends in the next
        ("rld", [["r", "l"], ["r"], ["l"], ["d"], ["!"]], "rl", 5),  # a false start before it
        ("ll!", [["l", "l", "l"], ["!", "w"]], "l", 4),  # a false start that overlaps it
        ("d", [["w", "o", "r", "l", "d"]], "worl", 5),  # ends with the last id
    ],
)
def test_a_stop_is_found_inside_and_across_blocks(stop: str, parts: list[list[str]], text: str, count: int):
    tokenizer = tiny.byte_fallback()
    found, _ = stream(tokenizer, [named(tokenizer, *part) for part in parts], stop=[stop])
    assert (found.text, found.stopped, found.token_count) == (text, True, count)


def test_nothing_is_printed_past_a_stop_nor_the_beginning_of_it():
    tokenizer = tiny.byte_fallback()
    _, pieces = stream(tokenizer, [[id] for id in named(tokenizer, *"world!Hello")], stop=["rld!"])
    assert [piece for piece in pieces if piece] == ["w", "o"]


def test_a_stop_that_never_comes_is_flushed_at_the_end():
    tokenizer = tiny.byte_fallback()
    text, pieces = stream(tokenizer, [named(tokenizer, *"worl")], stop=["rld!"])
    assert (pieces, text.stopped, text.token_count) == (["wo", "rl"], False, 4)


def test_a_stop_inside_what_was_held_back_is_found_at_the_end():
    tokenizer = tiny.byte_fallback()
    ids = named(tokenizer, "H", "<0xC3>", "<0xB1>")  # the run of bytes may go on, so its ñ is not certain yet
    text, pieces = stream(tokenizer, [ids], stop=["ñ"])
    assert (pieces, text.stopped, text.token_count) == (["", "H"], True, 3)


def test_ids_after_a_stop_are_ignored():
    tokenizer = tiny.byte_fallback()
    text = TextStream(tokenizer, ["d"])
    assert text.push(named(tokenizer, *"world")) == "worl"
    assert (text.push(named(tokenizer, *"He")), text.finish(), text.token_count) == ("", "", 5)


def test_a_special_token_can_be_a_stop_when_it_is_printed():
    tokenizer = tiny.byte_level()
    ids = [*tokenizer("Hello", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    text, _ = stream(tokenizer, [ids], stop=["</s>"], skip_special_tokens=False)
    assert (text.text, text.stopped, text.token_count) == ("Hello", True, len(ids))


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_a_stop_that_names_a_special_token_cuts_there_whatever_the_blocks(kind: str):
    tokenizer, draw = tiny.KINDS[kind](), random.Random(4)
    special = dict(zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True))
    plain = [
        id for id in tokenizer("Hello world", add_special_tokens=False)["input_ids"] if id not in special
    ]
    stops_seen = 0
    for _ in range(200):
        ids = draw.choices([*special, *plain], k=draw.choice((3, 10, 80)))
        stops = [name for name in special.values() if draw.random() < 0.4] or [
            special[tokenizer.eos_token_id]
        ]
        end = next((n for n, id in enumerate(ids, 1) if special.get(id) in stops), None)
        text, _ = stream(tokenizer, blocks(ids, draw), stop=stops)
        full = tokenizer.decode(ids[:end], skip_special_tokens=True)
        assert (text.text, text.stopped, text.token_count) == (full, end is not None, end or len(ids))
        stops_seen += text.stopped
    assert stops_seen > 50


@pytest.mark.parametrize(
    ("stop", "parts", "text", "count"),
    [
        ("</s>", [["w", "</s>", "o"]], "w", 2),
        ("rl</s>", [["w", "r", "l", "</s>", "o"]], "w", 4),  # text before it
        ("</s>ld", [["w", "</s>"], ["l"], ["d", "!"]], "w", 4),  # and behind it
        ("r</s><s>d", [["w", "r", "</s>"], ["<s>", "d"], ["!"]], "w", 5),  # two of them
        ("</s>", [["H", "<0xC3>", "</s>", "<0xB1>"]], "H\ufffd", 3),  # inside a character, which it ends
        ("</s>ñ", [["H", "</s>", "<0xC3>", "<0xB1>"], ["w"]], "H", 4),
        ("ñ</s>", [["H", "<0xC3>", "<0xB1>"], ["</s>", "w"]], "H", 4),
        ("rd", [["w", "r"], ["</s>"], ["d"]], "w", 4),  # what is printed is looked at without them
    ],
)
def test_a_stop_may_have_text_around_special_tokens(stop: str, parts: list[list[str]], text: str, count: int):
    tokenizer = tiny.byte_fallback()
    for cut in (parts, [[name] for part in parts for name in part]):
        ids = [tokenizer.convert_tokens_to_ids(part) for part in cut]
        found, _ = stream(tokenizer, ids, stop=[stop, "</s>never"])
        assert (found.text, found.stopped, found.token_count) == (text, True, count)


def test_what_may_begin_a_stop_with_a_special_token_is_held_back_and_comes_out_without_its_name():
    tokenizer = tiny.byte_fallback()
    ids = tokenizer.convert_tokens_to_ids(["w", "o", "</s>", "r", "l"])
    _, pieces = stream(tokenizer, [[id] for id in ids], stop=["o</s>ra"])
    assert pieces == ["w", "", "", "", "orl", ""]


@pytest.mark.parametrize("stop", ["text", [""], ["ok", ""]])
def test_stop_strings_are_a_list_of_texts_that_are_not_empty(stop: Any):
    with pytest.raises(BadInput, match="stop strings"):
        TextStream(tiny.byte_level(), stop)


class Counting:
    """A tokenizer that counts the ids it decodes."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.decoded = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        self.decoded += len(ids)
        return self._tokenizer.decode(ids, **options)


@pytest.mark.parametrize("kind", tiny.KINDS)
def test_the_cost_of_an_id_does_not_grow_with_the_text(kind: str):
    tokenizer, draw = tiny.KINDS[kind](), random.Random(3)
    hard = tokenizer(HARD * 40, add_special_tokens=False)["input_ids"]
    stuck = [[draw.randrange(len(tokenizer))] * 600 for _ in range(20)]
    alternating = [[draw.randrange(len(tokenizer)) for _ in range(2)] * 300 for _ in range(20)]
    for ids in [hard, *stuck, *alternating]:
        counting = Counting(tokenizer)
        stream(counting, [[id] for id in ids], stop=["never there"])
        assert counting.decoded <= 40 * len(ids) + 4 * len(set(ids))
