"""Between text and token ids: one way in for prompts, one way out for streamed text.

The engine itself knows ids only. A tokenizer is handed in, so that nothing heavy is imported here.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from sequoia_cli.errors import BadInput

#: What a decoder prints for bytes that are no character, or not yet a whole one.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: Ids kept as context when older ones are dropped. Far more than the few that decoders look back on.
_CONTEXT = 16

#: Cleaning up spaces can change a space by what follows it, at most this far back from the end.
_CLEAN_UP_REACH = 8

_CLEANED_UP = re.compile("[ ']")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def encode_prompt(
    tokenizer: Any, prompt: str | Sequence[Mapping[str, Any]], *, raw: bool = False
) -> list[int]:
    """The ids of a prompt: a plain text, or a chat as messages with `role` and `content`.

    With a chat template (and not `raw`) a text becomes one user turn, and the template alone decides on
    special tokens, so its BOS is never doubled. Otherwise this is the tokenizer's ordinary encoding, special
    tokens included; an empty text is then its BOS, where it has one. Raises `BadInput` for what is no prompt.
    """
    if not isinstance(prompt, str) and not prompt:
        raise BadInput("the prompt is an empty list of messages; at least one is expected")
    for text in [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]:
        if not _is_unicode(text):
            raise BadInput("the prompt holds bytes that are not UTF-8", hint="give it as UTF-8 text")
    if tokenizer.chat_template and not raw:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return _encode_chat(tokenizer, messages)
    ids = list(tokenizer(_plain_text(prompt, raw=raw), verbose=False)["input_ids"])
    if not ids and tokenizer.bos_token_id is not None:
        return [tokenizer.bos_token_id]
    if not ids:
        raise BadInput("the prompt is empty, and this tokenizer has no start token to begin from")
    return ids


def _encode_chat(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    try:
        ids = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=True,
            return_dict=False,
            tokenizer_kwargs={"verbose": False},
        )
    except Exception as error:  # a template is a program that came with the model: it may raise anything
        raise BadInput(
            f"the chat template of this tokenizer refuses the prompt: {error}",
            hint="check the order of roles in the messages, or leave the template out with --raw",
        ) from None
    if not ids:
        raise BadInput("the chat template of this tokenizer turns the prompt into nothing")
    return list(ids)


def _is_unicode(text: str) -> bool:
    # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which tokenizers choke on.
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _plain_text(prompt: str | Sequence[Mapping[str, Any]], *, raw: bool) -> str:
    if isinstance(prompt, str):
        return prompt
    if not raw:
        raise BadInput(
            "the prompt is a chat, but this tokenizer has no chat template",
            hint="give the prompt as plain text, or choose a model with a chat template",
        )
    if len(prompt) == 1 and prompt[0]["role"] == "user":
        return prompt[0]["content"]
    raise BadInput(
        f"the prompt is a chat of {len(prompt)} messages, which only a chat template can join",
        hint="leave out --raw, or give the prompt as plain text",
    )


class _Special(NamedTuple):
    """A special token that a stop string names, after `place` characters of the window and `pushed` ids."""

    place: int
    name: str
    pushed: int


class _Character(NamedTuple):
    """A character to look for stop strings in. One of a special token's name has the ids pushed with it."""

    value: str
    pushed: int = 0


class TextStream:
    """Text out of blocks of ids as they come, never cut inside a character, ended by a stop string.

    The pieces that `push` and `finish` return join to the tokenizer's own decoding of all ids, cut before the
    stop string that is complete first (of two that end together, the longer). Where the blocks are cut makes
    no difference. Text that later ids could still change, or that may be the start of a stop string, is held
    back until it is settled.

    A special token is not printed, but a stop string can name it: that stop string is then also looked for
    in the text with the names of such tokens in it.
    """

    # Decoders are local but not pure: what an id prints depends on a few ids before it (a leading space is
    # dropped, bytes join into a character). So a window of the last ids is decoded and `_settled` counts the
    # characters of its text that were taken over; a window of bounded size keeps the cost of an id constant.

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), skip_special_tokens: bool = True) -> None:
        if isinstance(stop, str) or not all(stop):
            raise BadInput("stop strings are a list of texts that are not empty")
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._skip_special_tokens = skip_special_tokens
        self._cleans_up = _cleans_up(tokenizer)
        self._kind = functools.cache(self._kind_of)
        self._name = functools.cache(self._name_of)
        self._window: list[tuple[int, int]] = []  # (number of ids pushed with this one, id), visible ids only
        self._settled = 0
        self._special: list[_Special] = []  # stand in or after text that is not settled yet
        self._held: list[_Character] = []  # settled, but perhaps the start of a stop string
        self._pieces: list[str] = []
        self.stopped = False
        #: Ids that belong to the text: all that were pushed, or those up to the one that completed the stop.
        self.token_count = 0

    @property
    def text(self) -> str:
        """Everything returned so far."""
        return "".join(self._pieces)

    def push(self, ids: Sequence[int]) -> str:
        """Take a block of ids and return the text that is now certain. After a stop, ids are ignored."""
        if self.stopped:
            return ""
        before = len(self._pieces)
        for token in ids:
            self.token_count += 1
            if self._kind(token) != "hidden":
                self._window.append((self.token_count, token))
            elif name := self._name(token):
                self._settle()
                if self.stopped or self._stops_at(name):
                    break
        if not self.stopped:
            self._settle()
        return "".join(self._pieces[before:])

    def finish(self) -> str:
        """Return what was held back; the ids end here, even inside a character."""
        return "" if self.stopped else self._advance(final=True)

    def _settle(self) -> None:
        # Tokens of single bytes are decoded as a whole run, and one wrong byte turns all of the run into
        # replacement characters. So nothing is certain before the run ends.
        if self._window and self._kind(self._window[-1][1]) != "byte":
            self._advance(final=False)

    def _stops_at(self, name: str) -> bool:
        """Pass a special token, and stop if it completes a stop string. What it ends can change no more."""
        text = self._decode(self._window)
        self._special.append(_Special(len(text), name, self.token_count))
        available = self._characters(text, len(text), self._special)
        found = _first_stop(available, self._stop)
        if found and found[1] > len(available) - len(name):
            self.stopped = True
            self._pieces.append(_printed(available[: found[0]]))
        return self.stopped

    def _advance(self, *, final: bool) -> str:
        text = self._decode(self._window)
        settled = len(text) if final else max(self._settled, self._settled_length(text))
        passed = self._special
        if settled < len(text):
            passed = list(itertools.takewhile(lambda special: special.place <= settled, passed))
        available = self._characters(text, settled, passed)
        self._special = self._special[len(passed) :]
        self._settled, self._held = settled, []
        if found := _first_stop(available, self._stop):
            start, end = found
            self.stopped = True
            after = sum(not character.pushed for character in available[end:])
            self.token_count = available[end - 1].pushed or self._completed_by(text, settled - after)
            available = available[:start]
        elif not final:
            keep = len(available) - _open_stop_length(available, self._stop)
            available, self._held = available[:keep], available[keep:]
            self._shorten_window(text)
        self._pieces.append(_printed(available))
        return self._pieces[-1]

    def _characters(self, text: str, end: int, passed: Sequence[_Special]) -> list[_Character]:
        """What was held back and the text from there to `end`, with the special tokens `passed` in it."""
        found, start = list(self._held), self._settled
        for place, name, count in passed:
            # Bytes may have become fewer characters since then.
            here = min(max(place, start), end)
            found += [_Character(character) for character in text[start:here]]
            found += [_Character(character, count) for character in name]
            start = here
        return found + [_Character(character) for character in text[start:end]]

    def _settled_length(self, text: str) -> int:
        # A character that is not complete decodes to exactly one replacement character, at the very end.
        settled = len(text) - text.endswith(REPLACEMENT)
        if not self._cleans_up:
            return settled
        # A space may go by what follows it, and a quote may get back a space that it lost.
        start = max(0, settled - _CLEAN_UP_REACH)
        unsure = _CLEANED_UP.search(text, start, settled)
        return unsure.start() if unsure else settled

    def _completed_by(self, text: str, end: int) -> int:
        """How many ids were pushed when the first `end` characters of the window's text were there."""
        for length in range(1, len(self._window) + 1):
            if self._decode(self._window[:length])[:end] == text[:end]:
                return self._window[length - 1][0]
        return self.token_count

    def _shorten_window(self, text: str) -> None:
        if len(self._window) <= 2 * _CONTEXT or self._special:
            return
        recent = self._window[-_CONTEXT:]
        recent_text = self._decode(recent)
        dropped = len(text) - len(recent_text)
        agreed = len(recent_text) // 2
        # The first of the recent ids may read differently without those before them. Where the second half of
        # their text is not what it was, the window stays, and the next push tries again.
        if 0 < agreed <= self._settled - dropped and text.endswith(recent_text[agreed:]):
            self._window, self._settled = recent, self._settled - dropped

    def _decode(self, window: Sequence[tuple[int, int]]) -> str:
        return self._decode_ids([token for _, token in window])

    def _decode_ids(self, ids: list[int]) -> str:
        return self._tokenizer.decode(
            ids, skip_special_tokens=self._skip_special_tokens, clean_up_tokenization_spaces=self._cleans_up
        )

    def _kind_of(self, token: int) -> Literal["hidden", "byte", "text"]:
        # Hidden ids (skipped special tokens, padding of the vocabulary) print nothing wherever they stand.
        # One alone proves nothing: decoders drop a space at the start of a text.
        if not self._decode_ids([token] * 4):
            return "hidden"
        name = self._tokenizer.convert_ids_to_tokens(token)
        return "byte" if isinstance(name, str) and _BYTE_TOKEN.fullmatch(name) else "text"

    def _name_of(self, token: int) -> str | None:
        """The name of a hidden id that a stop string holds."""
        name = self._tokenizer.convert_ids_to_tokens(token)
        return name if name and any(name in word for word in self._stop) else None


def _printed(characters: Sequence[_Character]) -> str:
    return "".join(character.value for character in characters if not character.pushed)


def _readings(characters: Sequence[_Character]) -> Iterator[tuple[str, Sequence[int]]]:
    """The text as it is printed and, where it has some, with special tokens; beside it the places."""
    printed = [place for place, character in enumerate(characters) if not character.pushed]
    yield _printed(characters), printed
    if len(printed) < len(characters):
        yield "".join(character.value for character in characters), range(len(characters))


def _first_stop(characters: Sequence[_Character], stop: Sequence[str]) -> tuple[int, int] | None:
    """Span of the stop string that is complete first; of two that end together, the longer."""
    found = [
        (places[start], places[start + len(word) - 1] + 1)
        for text, places in _readings(characters)
        for word in stop
        if (start := text.find(word)) >= 0
    ]
    return min(found, key=lambda span: (span[1], span[0]), default=None)


def _open_stop_length(characters: Sequence[_Character], stop: Sequence[str]) -> int:
    """Length of the longest end of `characters` that begins a stop string."""
    longest = max(map(len, stop), default=1) - 1
    found = 0
    for text, places in _readings(characters):
        for length in range(min(longest, len(text)), 0, -1):
            if any(word.startswith(text[-length:]) for word in stop):
                found = max(found, len(characters) - places[-length])
                break
    return found


def _cleans_up(tokenizer: Any) -> bool:
    """Whether decoding removes spaces before punctuation: set by some tokenizers, never applied to BPE."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_bpe = type(getattr(backend, "model", None)).__name__ == "BPE"
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)) and not is_bpe
