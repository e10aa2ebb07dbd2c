"""What a target is to write: texts as parts that are given and parts that it writes itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sequoia_cli.core.seeds import mixed
from sequoia_cli.errors import BadInput

#: Stands where a turn's text goes when a chat template is taken apart.
_TURN = "sequoiaturn{}end"


@dataclass(frozen=True)
class Given:
    """Tokens that are put before the target as they are."""

    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """Tokens that the target writes: up to `most`, or up to one of the `ends`.

    Of what is given next, all up to the end that was written is left out. `answer` marks what a draft is to
    be good at, as against the turns of a user that the target makes up.
    """

    most: int
    ends: frozenset[int]
    temperature: float
    answer: bool


#: The parts of one text.
Script = Sequence[Given | Written]


@dataclass(frozen=True)
class Lengths:
    """Most tokens of a turn that the target writes for its user, of a document's opening, of an answer."""

    user: int = 96
    opening: int = 16
    answer: int = 128


def chats(
    tokenizer: Any, eos_ids: Sequence[int], temperatures: Sequence[float], lengths: Lengths, seed: int
) -> Iterator[Script]:
    """Chats of which the target writes both sides: one or two turns, the user's at temperature 1.

    The user's side is drawn from the model's own idea of what follows the template's user header, which is
    how a chat model gives back what it was trained on (Magpie, arXiv 2406.08464). Raises `BadInput` where
    the template does not lend itself to it.
    """
    turns = _ChatTemplate(tokenizer)
    ends = frozenset(eos_ids)
    chance = random.Random(seed)
    while True:
        answer = Written(lengths.answer, ends | turns.answer_ends, chance.choice(temperatures), True)
        user = Written(lengths.user, ends | turns.user_ends, 1.0, False)
        script: list[Given | Written] = [turns.start, user, turns.to_answer, answer]
        if turns.to_user is not None and chance.random() < 0.5:
            script += [turns.to_user, user, turns.to_answer, answer]
        yield script


def documents(
    tokenizer: Any, eos_ids: Sequence[int], temperatures: Sequence[float], lengths: Lengths, seed: int
) -> Iterator[Script]:
    """Texts of a base model, from its start token on: an opening at temperature 1, and what follows it.

    Without the opening all texts at temperature 0 would be one text. Raises `BadInput` for a tokenizer
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
    # Nothing ends an opening early: behind an end of text another text opens.
    opening = Written(lengths.opening, frozenset(), 1.0, False)
    while True:
        answer = Written(lengths.answer, frozenset(eos_ids), chance.choice(temperatures), True)
        yield [Given((start,)), opening, answer]


def answers(
    prompts: Sequence[Sequence[int]],
    eos_ids: Sequence[int],
    temperatures: Sequence[float],
    lengths: Lengths,
    seed: int,
    done: int = 0,
) -> Iterator[Script]:
    """Answers to different prompts, round by round, behind the first `done` of them.

    A prompt is answered at each temperature in turn; at 0 once only, since it would be the same answer again.
    With no temperature above 0 there is one round.
    """
    ends = frozenset(eos_ids)
    first, skipped = divmod(done, len(prompts))
    for number in itertools.count(first):
        order = random.Random(mixed(seed, number)).sample(range(len(prompts)), len(prompts))
        for index in order[skipped:]:
            temperature = _in_turn(temperatures, mixed(seed, 0, index), number)
            if temperature is None:
                return
            yield [Given(tuple(prompts[index])), Written(lengths.answer, ends, temperature, True)]
        skipped = 0


def _in_turn(temperatures: Sequence[float], seed: int, turn: int) -> float | None:
    """The temperature of a prompt's answer number `turn`, counted from 0; `seed` is the prompt's own."""
    sampled = [temperature for temperature in temperatures if temperature > 0]
    once = sampled if len(sampled) == len(temperatures) else [0.0, *sampled]
    order = random.Random(seed).sample(once, len(once))
    if turn < len(order):
        return order[turn]
    again = [temperature for temperature in order if temperature > 0]
    return again[(turn - len(order)) % len(again)] if again else None


class _ChatTemplate:
    """A chat template taken apart around its turns."""

    def __init__(self, tokenizer: Any) -> None:
        start, to_answer = _around(tokenizer, 1)
        self.start = Given(_ids(tokenizer, _open(start)))
        self.to_answer = Given(_ids(tokenizer, to_answer, behind_text=True))
        if not self.start.tokens or not self.to_answer.tokens:
            raise BadInput(
                "the chat template of this tokenizer puts nothing before or behind a user's turn, so the "
                "target cannot be asked to write one",
                hint="give prompts with --dataset",
            )
        try:
            # A template may refuse a second turn, or print the first one differently when another follows.
            first, _, to_user, _ = _around(tokenizer, 2)
            behind = _ids(tokenizer, _open(to_user), behind_text=True)
            self.to_user = Given(behind) if first == start and behind else None
        except BadInput:
            self.to_user = None
        # Turns end with a token that stands for nothing else, if there is one. A user's turn has to end with
        # something; an answer in which a line of its own is no end goes on to an end of text.
        self.user_ends = _marks(tokenizer, self.to_answer) or frozenset(self.to_answer.tokens[:1])
        self.answer_ends = _marks(tokenizer, self.to_user) if self.to_user else frozenset()


def _around(tokenizer: Any, turns: int) -> list[str]:
    """What the template prints before, between and behind the texts of `turns` turns of a user."""
    names = [_TURN.format(number) for number in range(2 * turns - 1)]
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": name} for number, name in enumerate(names)
    ]
    try:
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is a program that came with the model: it may raise anything
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
    """What stands before a turn, without the space that the turn's own first token brings along."""
    return text.rstrip(" ")


def _marks(tokenizer: Any, part: Given) -> frozenset[int]:
    """The first token of a part that was added to the vocabulary to mark something, if any."""
    marks = tokenizer.added_tokens_decoder
    return frozenset([token for token in part.tokens if token in marks][:1])


def _ids(tokenizer: Any, text: str, *, behind_text: bool = False) -> tuple[int, ...]:
    """The ids of a piece; `behind_text` as they are there, where some tokenizers add no space before it."""
    before = _encoded(tokenizer, _TURN) if behind_text else ()
    whole = _encoded(tokenizer, _TURN + text) if behind_text else ()
    if before and whole[: len(before)] == before:
        return whole[len(before) :]
    return _encoded(tokenizer, text)


def _encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
