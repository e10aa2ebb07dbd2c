"""Prompts to measure on, from wherever users keep them: a file, a folder, stdin, the hub, or our own set."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from sequoia_cli.core.parsing import shown
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompt_files import Record, open_source

#: One turn of a chat: `role` and `content`.
Message = Mapping[str, str]

#: Keys of an object that may hold its prompt; the first that is there is taken.
PROMPT_KEYS = ("messages", "conversations", "prompt", "turns", "question", "instruction", "text")

_ID_KEYS = ("id", "question_id")
_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True)
class Prompt:
    """A plain text, or a chat that ends with the turn to answer."""

    id: str
    content: str | tuple[Message, ...]
    category: str | None = None

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """A `BadInput` raised within is raised again as one that says which prompt it is about."""
        try:
            yield
        except BadInput as error:
            raise BadInput(f"prompt {self.id}: {error.message}", error.hint) from None


@dataclass(frozen=True)
class PromptSet:
    """Prompts in the order they are used in, under the name they were asked for."""

    name: str
    prompts: tuple[Prompt, ...]

    @cached_property
    def digest(self) -> str:
        """Identity of what is measured on: the contents in order, however they were stored or named."""
        contents = [prompt.content for prompt in self.prompts]
        canonical = json.dumps(contents, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


#: Of the built-in prompts, two of each category come first: trees are compiled on these, and results reported
#: on the 48 others.
BUILTIN_FOR_COMPILING = 32


def load_prompts(
    source: str | None = None, *, limit: int | None = None, skip: int = 0, column: str | None = None
) -> PromptSet:
    """Read prompts: those after the first `skip`, at most `limit`. Raises `BadInput` for what cannot be used.

    - None: the built-in set.
    - `FILE.jsonl`: one JSON value per line, a string or an object. Of an object, `column` where given, else
      the first of `messages`, `conversations`, `prompt`, `turns` (the first turn), `question`, `instruction`
      (with `input` below it) and `text` is taken; `id` and `category` are kept, other keys ignored.
      A chat that ends with an answer is taken without that answer.
    - `FILE.json`: a list of such values.
    - `FILE.txt`: one prompt per line that is not blank.
    - a folder: each of its `.txt` and `.md` files is one prompt, in the order of their names.
    - `-` for stdin, or a file without ending: JSON lines where it begins with `{`, else text lines.
    - `owner/name`, `owner/name:SPLIT`, `owner/name:CONFIG:SPLIT`: a Hugging Face dataset.
    """
    if limit is not None and limit < 1:
        raise BadInput(f"a limit of {limit} prompts leaves none; expected at least 1")
    name, records = open_source(source)
    last = None if limit is None else skip + limit
    prompts = tuple(_prompt(record, column) for record in islice(records, skip, last))
    if not prompts and skip:
        raise BadInput(f"{name} holds no prompt after the first {skip}, which are skipped")
    if not prompts:
        raise BadInput(f"{name} holds no prompts; at least one is expected")
    return PromptSet(name, prompts)


def _prompt(record: Record, column: str | None) -> Prompt:
    where, value = record.where, record.value
    if isinstance(value, str) and column is None:
        return Prompt(record.id, _text(value, where))
    if not isinstance(value, Mapping):
        expected = f"an object with the key '{column}'" if column else "a string or an object"
        raise BadInput(f"{where}: expected {expected}, found {shown(value)}")
    key = column or next((key for key in PROMPT_KEYS if key in value), None)
    if key is None or key not in value:
        expected = f"'{column}'" if column else f"one of {', '.join(PROMPT_KEYS)}"
        found = ", ".join(map(str, value)) or "none"
        raise BadInput(
            f"{where}: found the keys {found}; expected {expected}", hint="name the key with --column"
        )
    content = _content(value[key], f"{where}: '{key}'", first_turn=key == "turns")
    if key == "instruction" and isinstance(content, str) and value.get("input"):
        content += "\n\n" + _text(value["input"], f"{where}: 'input'")
    identity = next((str(value[key]) for key in _ID_KEYS if key in value), record.id)
    category = value.get("category")
    return Prompt(identity, content, None if category is None else str(category))


def _content(value: Any, where: str, *, first_turn: bool) -> str | tuple[Message, ...]:
    if isinstance(value, str):
        return _text(value, where)
    if not isinstance(value, list) or not value:
        raise BadInput(f"{where} is {shown(value)}; expected a text or a list of messages")
    if first_turn and isinstance(value[0], str):
        return _text(value[0], where)
    messages = [_message(turn, f"{where}, message {n}") for n, turn in enumerate(value, 1)]
    # Datasets of finished chats end with the answer; what is asked for here is the answer.
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise BadInput(f"{where} holds answers only; expected a message of the user")
    return tuple(messages)


def _message(turn: Any, where: str) -> Message:
    if isinstance(turn, Mapping):
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if isinstance(role, str) and isinstance(content, str):
            return {"role": _SHAREGPT_ROLES.get(role, role), "content": _text(content, where)}
    raise BadInput(f"{where} is {shown(turn)}; expected an object with the texts 'role' and 'content'")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{where} is {shown(value)}; expected a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{where} is {shown(value)}; it holds half of a surrogate pair") from None
    return value
