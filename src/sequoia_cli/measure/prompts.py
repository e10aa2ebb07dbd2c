"""Prompts to measure on, from wherever users keep them: a file, a folder, stdin, the hub, or our own set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, islice
from typing import Any

from sequoia_cli.core.parsing import cut, shown
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.chats import Message, chat_to_answer, checked_text
from sequoia_cli.measure.prompt_files import Record, open_source

#: Bad rows and ids that a note names.
_SHOWN = 3

#: Keys of an object that may hold its prompt; the first that is there is taken.
PROMPT_KEYS = (
    "messages",
    "conversations",
    "conversation",
    "prompt",
    "turns",
    "question",
    "instruction",
    "text",
)

_ID_KEYS = ("id", "question_id", "prompt_id", "conversation_id")
_INPUT_KEYS = ("input", "context")


class BadRow(BadInput):
    """A row that is no prompt; others of its source may be."""


class MissingKey(BadRow):
    """A row that has none of the keys that may hold its prompt."""


@dataclass(frozen=True)
class Prompt:
    """A plain text, or a chat that ends with the turn to answer."""

    id: str
    content: str | tuple[Message, ...]
    category: str | None = None

    @property
    def digest(self) -> str:
        """Identity of the content, whatever its id: short, since files have one for each prompt."""
        return hashlib.sha256(_canonical(self.content)).hexdigest()[:16]

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """A `BadInput` raised within is raised again as one that says which prompt it is about."""
        try:
            yield
        except BadInput as error:
            raise BadInput(f"prompt {self.id}: {error.message}", error.hint) from None


@dataclass(frozen=True)
class PromptSet:
    """Prompts in the order they are used in, under the name they were asked for, no two with one id.

    `notes` tell what was made of them that their author may not expect.
    """

    name: str
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """Identity of what is measured on: the contents in order, however they were stored or named."""
        contents = [prompt.content for prompt in self.prompts]
        return "sha256:" + hashlib.sha256(_canonical(contents)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


#: Of the built-in prompts, two of each category come first: trees are compiled on these, and results reported
#: on the 48 others.
BUILTIN_FOR_COMPILING = 32


def load_prompts(
    source: str | None = None,
    *,
    limit: int | None = None,
    skip: int = 0,
    column: str | None = None,
    skip_bad: bool = False,
) -> PromptSet:
    """Read prompts: those after the first `skip`, at most `limit`. Raises `BadInput` for what cannot be used,
    `BadRow` where that is a single row.

    - None: the built-in set.
    - `FILE.jsonl`: one JSON value per line, a string or an object. Of an object, `column` where given, else
      the first of `messages`, `conversations`, `conversation`, `prompt`, `turns`, `question`, `instruction`
      (with `input` or `context` below it) and `text` is taken; `id` and `category` are kept, `system` begins
      a chat without a system message, other keys are ignored. Of a list of texts, the turns of a user, the
      first is taken. Chats may be written as OpenAI or ShareGPT do; one that ends with an answer is taken
      without that answer.
    - `FILE.json`: a list of such values.
    - `FILE.txt`: one prompt per line that is not blank.
    - a folder: each of its `.txt` and `.md` files is one prompt, in the order of their names.
    - `-` for stdin, or a file without ending: JSON lines where it begins with `{`, else text lines.
    - `owner/name`, `owner/name:SPLIT`, `owner/name:CONFIG:SPLIT`: a Hugging Face dataset.

    With `skip_bad`, rows that cannot be used are left out, counted and named in the notes.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"a limit of {limit} prompts leaves none; expected at least 1")
    name, records = open_source(source, whole=limit is None)
    reader = _Reader(column, skip_bad)
    last = None if limit is None else skip + limit
    prompts = reader.named_apart(islice(reader.prompts(records), skip, last))
    if not prompts and skip and not reader.bad:
        raise BadInput(f"{name} holds no prompt after the first {skip}, which are skipped")
    if not prompts and reader.bad:
        raise BadInput(
            f"{name} holds no usable prompts; the first of {len(reader.bad)} bad rows: {reader.bad[0]}"
        )
    if not prompts:
        raise BadInput(f"{name} holds no prompts; at least one is expected")
    return PromptSet(name, prompts, tuple(reader.notes()))


class _Reader:
    """Turns records into prompts, and remembers what to say about them."""

    def __init__(self, column: str | None, skip_bad: bool) -> None:
        self._column, self._skip_bad = column, skip_bad
        #: What is wrong with each row that was left out.
        self.bad: list[str] = []
        self._first_turns = 0
        self._with_tools = 0
        self._renamed: list[str] = []

    def prompts(self, records: Iterator[Record]) -> Iterator[Prompt]:
        """The prompts of the records. Raises `BadInput` for a bad one, unless these are skipped."""
        for record in records:
            try:
                yield self._prompt(record)
            except BadInput as error:
                if not self._skip_bad:
                    known = isinstance(error, BadRow)
                    raise error if known else BadRow(error.message, error.hint) from None
                self.bad.append(error.message)

    def named_apart(self, prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
        """The prompts, with a number added to an id that another one has: results are kept by id."""
        taken: set[str] = set()
        found = []
        for prompt in prompts:
            names = chain([prompt.id], (f"{prompt.id}#{number}" for number in count(2)))
            name = next(name for name in names if name not in taken)
            if name != prompt.id:
                self._renamed.append(name)
            taken.add(name)
            found.append(replace(prompt, id=name))
        return tuple(found)

    def notes(self) -> Iterator[str]:
        """What to say of all of them."""
        if self.bad:
            yield left_out(self.bad, "rows")
        if self._first_turns:
            yield f"{self._first_turns} prompts are lists of several turns: the first turn of each is taken"
        if self._with_tools:
            yield f"{self._with_tools} prompts have 'tools', which are not given to the chat template"
        if self._renamed:
            yield f"{len(self._renamed)} prompts had the id of another one and have a number added: " + (
                ", ".join(self._renamed[:_SHOWN]) + (", ..." if len(self._renamed) > _SHOWN else "")
            )

    def _prompt(self, record: Record) -> Prompt:
        where, value, column = record.where, record.value, self._column
        if isinstance(value, BadInput):
            raise value
        if isinstance(value, str) and column is None:
            return Prompt(record.id, checked_text(value, where))
        if not isinstance(value, Mapping):
            expected = f"an object with the key '{column}'" if column else "a string or an object"
            raise BadInput(f"{where}: expected {expected}, found {shown(value)}")
        key = column or next((key for key in PROMPT_KEYS if key in value), None)
        if key is None or key not in value:
            expected = f"'{column}'" if column else f"one of {', '.join(PROMPT_KEYS)}"
            found = shown_keys(value)
            raise MissingKey(f"{where}: found the keys {found}; expected {expected}")
        content = self._content(value[key], f"{where}: '{key}'")
        if isinstance(content, str):
            if key == "instruction" and (more := next((k for k in _INPUT_KEYS if value.get(k)), None)):
                content += "\n\n" + checked_text(value[more], f"{where}: '{more}'")
        elif value.get("system") and content[0]["role"] != "system":
            system = {"role": "system", "content": checked_text(value["system"], f"{where}: 'system'")}
            content = (system, *content)
        self._with_tools += bool(value.get("tools"))
        identity = next((str(value[key]) for key in _ID_KEYS if value.get(key) is not None), record.id)
        category = value.get("category")
        return Prompt(identity, content, None if category is None else str(category))

    def _content(self, value: Any, where: str) -> str | tuple[Message, ...]:
        if isinstance(value, str):
            return checked_text(value, where)
        if not isinstance(value, list) or not value:
            raise BadInput(f"{where} is {shown(value)}; expected a text or a list of messages")
        if all(isinstance(turn, str) for turn in value):
            self._first_turns += len(value) > 1
            return checked_text(value[0], where)
        return chat_to_answer(value, where)


def left_out(bad: Sequence[str], what: str) -> str:
    """A note of what was left out, with what is wrong with the first of them."""
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return f"left out {len(bad)} bad {what}: {'; '.join(bad[:_SHOWN])}{more}"


def shown_keys(value: Mapping[Any, Any]) -> str:
    """The keys of an object as messages show them."""
    return cut(", ".join(map(str, value)) or "none", 200)
