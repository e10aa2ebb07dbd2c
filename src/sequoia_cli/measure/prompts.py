"""Loading prompts from a file, a folder, stdin, the hub, or the built-in set."""

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

#: The most bad rows or ids that a note names.
_SHOWN = 3

#: Keys of an object that may hold its prompt, in order of preference.
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
    """An invalid row; other rows of its source may be valid."""


class MissingKey(BadRow):
    """A row without any of the keys that may hold its prompt."""


@dataclass(frozen=True)
class Prompt:
    """A text, or a chat that ends with the turn to answer."""

    id: str
    content: str | tuple[Message, ...]
    category: str | None = None

    @property
    def digest(self) -> str:
        """A hash of the content without the id; short, because files list one for each prompt."""
        return hashlib.sha256(_canonical(self.content)).hexdigest()[:16]

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Add the name of this prompt to any `BadInput` raised within."""
        try:
            yield
        except BadInput as error:
            raise BadInput(f"prompt {self.id}: {error.message}", error.hint) from None


@dataclass(frozen=True)
class PromptSet:
    """Prompts with unique ids, in order, and the `name` of their source.

    `notes` say how rows were interpreted where that may be unexpected.
    """

    name: str
    prompts: tuple[Prompt, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """A hash of the contents in order, independent of storage and ids."""
        contents = [prompt.content for prompt in self.prompts]
        return "sha256:" + hashlib.sha256(_canonical(contents)).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


#: Trees are compiled on this many of the first built-in prompts, two of each category; results are reported
#: on the other 48.
BUILTIN_FOR_COMPILING = 32


def load_prompts(
    source: str | None = None,
    *,
    limit: int | None = None,
    skip: int = 0,
    column: str | None = None,
    skip_bad: bool = False,
) -> PromptSet:
    """Read at most `limit` prompts after the first `skip`.

    Raises `BadInput` for a source that cannot be used, `BadRow` for a single invalid row. Sources:

    - None: the built-in set.
    - `FILE.jsonl`: one JSON value per line, a string or an object. The prompt of an object is its `column` if
      given, else the first present of `messages`, `conversations`, `conversation`, `prompt`, `turns`,
      `question`, `instruction` (followed by `input` or `context`) and `text`. `id` and `category` are kept;
      `system` starts a chat that has no system message; other keys are ignored. Of a list of texts, the turns
      of a user, the first is used. Chats have the format of OpenAI or ShareGPT; a final answer is dropped.
    - `FILE.json`: a list of such values.
    - `FILE.txt`: one prompt per non-blank line.
    - a folder: each `.txt` or `.md` file is one prompt, in order of names.
    - `-` for stdin, or a file without extension: JSON lines if it starts with `{`, else text lines.
    - `owner/name`, `owner/name:SPLIT`, `owner/name:CONFIG:SPLIT`: a Hugging Face dataset.

    With `skip_bad`, invalid rows are skipped, and counted and named in the notes.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"a limit of {limit} prompts leaves none; expected at least 1")
    name, records = open_source(source, whole=limit is None)
    reader = _Reader(column, skip_bad)
    last = None if limit is None else skip + limit
    prompts = reader.with_unique_ids(islice(reader.prompts(records), skip, last))
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
    """Turns records into prompts and collects notes about them."""

    def __init__(self, column: str | None, skip_bad: bool) -> None:
        self._column, self._skip_bad = column, skip_bad
        #: The errors of skipped rows.
        self.bad: list[str] = []
        self._first_turns = 0
        self._with_tools = 0
        self._renamed: list[str] = []

    def prompts(self, records: Iterator[Record]) -> Iterator[Prompt]:
        """The prompts of the records. Raises `BadRow` for an invalid one unless those are skipped."""
        for record in records:
            try:
                yield self._prompt(record)
            except BadInput as error:
                if not self._skip_bad:
                    known = isinstance(error, BadRow)
                    raise error if known else BadRow(error.message, error.hint) from None
                self.bad.append(error.message)

    def with_unique_ids(self, prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
        """The prompts, with a number added to repeated ids: results are stored by id."""
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
        """Notes about all rows."""
        if self.bad:
            yield left_out(self.bad, "rows")
        if self._first_turns:
            yield f"{self._first_turns} prompts are lists of several turns: the first turn of each is used"
        if self._with_tools:
            yield f"{self._with_tools} prompts have 'tools', which are not given to the chat template"
        if self._renamed:
            yield f"{len(self._renamed)} prompts have the id of another one, so a number is added: " + (
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
    """A note on skipped rows, with the first errors."""
    more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
    return f"left out {len(bad)} bad {what}: {'; '.join(bad[:_SHOWN])}{more}"


def shown_keys(value: Mapping[Any, Any]) -> str:
    """The keys of an object, cut for a message."""
    return cut(", ".join(map(str, value)) or "none", 200)
