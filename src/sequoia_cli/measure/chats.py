"""Reading chats in the formats of OpenAI and ShareGPT, as messages for a chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sequoia_cli.core.parsing import shown
from sequoia_cli.errors import BadInput

#: One turn of a chat: `role`, `content`, and other keys that a template may read, such as tool calls.
Message = Mapping[str, Any]

#: Aliases of roles. Most templates silently drop a role that they do not know, such as `developer`.
_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "bot": "assistant",
    "developer": "system",
    "function": "tool",
    "observation": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")


def chat_to_answer(turns: list[Any], where: str) -> tuple[Message, ...]:
    """The messages of a chat up to the turn to answer. Raises `BadInput`, naming the invalid message."""
    messages = [_message(turn, f"{where}, message {number}") for number, turn in enumerate(turns, 1)]
    # Datasets of finished chats end with an answer, which is to be generated here.
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise BadInput(f"{where} has only answers; expected a message of the user")
    return tuple(messages)


def checked_text(value: Any, where: str) -> str:
    """`value` as a non-blank text. Raises `BadInput` for anything else."""
    if not isinstance(value, str) or not value.strip():
        raise BadInput(f"{where} is {shown(value)}; expected a non-empty text")
    return _encodable(value, where)


def _encodable(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadInput(f"{where} is {shown(value)}; it holds half of a surrogate pair") from None
    return value


def _message(turn: Any, where: str) -> Message:
    role = turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None
    if not isinstance(role, str):
        raise _no_message(turn, where)
    role = _ROLES.get(role.lower(), role)
    content = turn.get("content", turn.get("value", turn.get("text")))
    calls = turn.get("tool_calls")
    if not calls and turn.get("function_call"):  # an older format
        calls = [{"type": "function", "function": turn["function_call"]}]
    if content is None and not calls:
        raise _no_message(turn, where)
    text = "" if content is None else _joined(content, where, turn)
    if not text.strip() and not calls and role != "tool":
        checked_text(text, where)
    message: dict[str, Any] = {"role": role, "content": text}
    if calls:
        message["tool_calls"] = _calls(calls, where)
    return message | {key: turn[key] for key in ("name", "tool_call_id") if turn.get(key) is not None}


def _no_message(turn: Any, where: str) -> BadInput:
    return BadInput(f"{where} is {shown(turn)}; expected an object with the texts 'role' and 'content'")


def _joined(content: Any, where: str, turn: Any) -> str:
    """The text of a message's content; text parts are joined by newlines."""
    if isinstance(content, str):
        return _encodable(content, where)
    if not isinstance(content, list):
        raise _no_message(turn, where)
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        if kind not in _TEXT_PARTS:
            raise BadInput(f"{where} has a part of type {shown(kind)}; only texts are read here")
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise BadInput(f"{where} has the part {shown(part)}; expected a text")
        texts.append(_encodable(text, where))
    return "\n".join(texts)


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects, as templates expect; OpenAI has them as JSON text."""
    if not isinstance(calls, list) or not all(
        isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) for call in calls
    ):
        raise BadInput(f"{where} has the tool calls {shown(calls)}; expected objects with a 'function'")
    found = []
    for call in calls:
        function = dict(call["function"])
        if isinstance(arguments := function.get("arguments"), str):
            with suppress(ValueError):  # a model's output need not be valid JSON; keep it as text
                function["arguments"] = json.loads(arguments)
        found.append({**call, "function": function})
    return found
