"""Scripts of the texts that a target writes: parts with given tokens and parts that it generates."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sequoia_cli.core.seeds import mixed
from sequoia_cli.errors import BadInput

#: Placeholder for the text of a turn, to find it in a rendered chat template.
_TURN = "sequoiaturn{}end"


@dataclass(frozen=True)
class GivenPart:
    """Fixed tokens."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class GeneratedPart:
    """Tokens that the target generates: at most `most`, ending with one of the `ends` ids.

    If the next given part contains the end that was generated, its tokens up to that end are skipped.
    `answer` marks tokens that a draft is trained to predict; the user's turns, which the target also writes,
    are not.
    """

    most: int
    ends: frozenset[int]
    temperature: float
    answer: bool


#: The parts of one text.
Script = Sequence[GivenPart | GeneratedPart]


@dataclass(frozen=True)
class Lengths:
    """The most tokens of a user's turn, of a document's opening, and of an answer."""

    user: int = 96
    opening: int = 16
    answer: int = 128


def scripts_from(
    tokenizer: Any,
    eos_ids: Sequence[int],
    temperatures: Sequence[float],
    *,
    length: int,
    answer: int,
    seed: int,
    prompts: Sequence[Sequence[int]] | None = None,
    chat_template: bool = False,
) -> Callable[[int], Iterator[Script]]:
    """Scripts of texts of at most `length` tokens: answers to `prompts` if given, else chats or documents.

    Returns a function from the number of texts already written to the scripts of those that follow. They
    raise `BadInput` if the target cannot write from nothing.
    """
    part = length // 4  # a short text must not be all question or opening
    lengths = Lengths(min(Lengths.user, part), min(Lengths.opening, part), answer)

    def following(done: int) -> Iterator[Script]:
        if prompts is not None:
            return answers(prompts, eos_ids, temperatures, lengths, seed, done)
        write = chats if chat_template else documents
        return write(tokenizer, eos_ids, temperatures, lengths, mixed(seed, done))

    return following


def chats(
    tokenizer: Any, eos_ids: Sequence[int], temperatures: Sequence[float], lengths: Lengths, seed: int
) -> Iterator[Script]:
    """Chats of one or two turns in which the target writes both sides, the user's at temperature 1.

    The user's turn is sampled after the template's user header, which makes a chat model reproduce prompts
    like those it was trained on (Magpie, arXiv 2406.08464). Raises `BadInput` if the template does not allow
    that.
    """
    turns = _ChatTemplate(tokenizer)
    ends = frozenset(eos_ids)
    chance = random.Random(seed)
    while True:
        answer = GeneratedPart(lengths.answer, ends | turns.answer_ends, chance.choice(temperatures), True)
        user = GeneratedPart(lengths.user, ends | turns.user_ends, 1.0, False)
        script: list[GivenPart | GeneratedPart] = [turns.start, user, turns.to_answer, answer]
        if turns.to_user is not None and chance.random() < 0.5:
            script += [turns.to_user, user, turns.to_answer, answer]
        yield script


def documents(
    tokenizer: Any, eos_ids: Sequence[int], temperatures: Sequence[float], lengths: Lengths, seed: int
) -> Iterator[Script]:
    """Texts of a base model from its start token: an opening at temperature 1, then the answer.

    Without the opening, all texts at temperature 0 would be the same. Raises `BadInput` for a tokenizer
    without a start token.
    """
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise BadInput(
            "this tokenizer has neither a chat template nor a start token, so the target cannot be asked to "
            "write from nothing",
            hint="give prompts with --dataset",
        )
    chance = random.Random(seed)
    # An end of text does not end an opening: another text starts after it.
    opening = GeneratedPart(lengths.opening, frozenset(), 1.0, False)
    while True:
        answer = GeneratedPart(lengths.answer, frozenset(eos_ids), chance.choice(temperatures), True)
        yield [GivenPart((start,)), opening, answer]


def answers(
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    temperatures: Sequence[float],
    lengths: Lengths,
    seed: int,
    done: int = 0,
) -> Iterator[Script]:
    """Answers to `prompts`, all prompts in each round, starting after the first `done` answers.

    A prompt is answered at each temperature in turn, at 0 only once, as its greedy answer never changes. If
    no temperature is above 0 there is a single round.
    """
    ends = frozenset(eos_ids)
    first, skipped = divmod(done, len(prompts))
    for number in itertools.count(first):
        order = random.Random(mixed(seed, number)).sample(range(len(prompts)), len(prompts))
        for index in order[skipped:]:
            temperature = _in_turn(temperatures, mixed(seed, 0, index), number)
            if temperature is None:
                return
            yield [GivenPart(tuple(prompts[index])), GeneratedPart(lengths.answer, ends, temperature, True)]
        skipped = 0


def _in_turn(temperatures: Sequence[float], seed: int, turn: int) -> float | None:
    """The temperature of answer number `turn` (from 0) to a prompt with this `seed`, None after the last."""
    sampled = [temperature for temperature in temperatures if temperature > 0]
    once = sampled if len(sampled) == len(temperatures) else [0.0, *sampled]
    order = random.Random(seed).sample(once, len(once))
    if turn < len(order):
        return order[turn]
    again = [temperature for temperature in order if temperature > 0]
    return again[(turn - len(order)) % len(again)] if again else None


class _ChatTemplate:
    """A chat template split around its turns."""

    def __init__(self, tokenizer: Any) -> None:
        start, to_answer = _around(tokenizer, 1)
        self.start = GivenPart(_ids(tokenizer, _open(start)))
        self.to_answer = GivenPart(_ids(tokenizer, to_answer, after_text=True))
        if not self.start.tokens or not self.to_answer.tokens:
            raise BadInput(
                "the chat template of this tokenizer puts nothing before or after a user's turn, so the "
                "target cannot be asked to write one",
                hint="give prompts with --dataset",
            )
        try:
            # A template may refuse a second turn, or print the first one differently when another follows.
            first, _, to_user, _ = _around(tokenizer, 2)
            following = _ids(tokenizer, _open(to_user), after_text=True)
            self.to_user = GivenPart(following) if first == start and following else None
        except BadInput:
            self.to_user = None
        # A turn ends with the template's special token, if it has one. A user's turn must end with some
        # token; an answer without a special token ends with an end of text.
        self.user_ends = _special(tokenizer, self.to_answer) or frozenset(self.to_answer.tokens[:1])
        self.answer_ends = _special(tokenizer, self.to_user) if self.to_user else frozenset()


def _around(tokenizer: Any, turns: int) -> list[str]:
    """What the template prints before, between and after the texts of a chat with `turns` turns of a user."""
    names = [_TURN.format(number) for number in range(2 * turns - 1)]
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": name} for number, name in enumerate(names)
    ]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is code of the model's author: it may raise anything
        raise BadInput(
            f"the chat template of this tokenizer refuses a chat: {error}", hint="give prompts with --dataset"
        ) from None
    pieces = []
    for name in names:
        piece, found, text = text.partition(name)
        if not found:
            raise BadInput(
                "the chat template of this tokenizer does not print a user's turn as it is",
                hint="give prompts with --dataset",
            )
        pieces.append(piece)
    return [*pieces, text]


def _open(text: str) -> str:
    """The text before a turn, without the trailing space, which belongs to the turn's first token."""
    return text.rstrip(" ")


def _special(tokenizer: Any, part: GivenPart) -> frozenset[int]:
    """The first special token of a part, if any."""
    special = tokenizer.added_tokens_decoder
    return frozenset([token for token in part.tokens if token in special][:1])


def _ids(tokenizer: Any, text: str, *, after_text: bool = False) -> tuple[int, ...]:
    """The ids of a piece of text; with `after_text`, as encoded after other text (some tokenizers add a space
    only at the start).
    """
    before = _encoded(tokenizer, _TURN) if after_text else ()
    whole = _encoded(tokenizer, _TURN + text) if after_text else ()
    if before and whole[: len(before)] == before:
        return whole[len(before) :]
    return _encoded(tokenizer, text)


def _encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
