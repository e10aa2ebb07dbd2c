"""Prompts from every place that users keep them in, and what is said when they cannot be used."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from published import FOLDER
from sequoia_cli.errors import BadInput, SequoiaError
from sequoia_cli.measure import prompt_files
from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING, PROMPT_KEYS, BadRow, Prompt, load_prompts

ASK = {"role": "user", "content": "ask"}
SYSTEM = {"role": "system", "content": "be brief"}
ANSWER = {"role": "assistant", "content": "answer"}


@pytest.fixture
def write(tmp_path: Path):
    """Write a file into a fresh folder and return its path as a user would type it."""

    def _write(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return _write


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch):
    def _stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content), closed=False))

    return _stdin


def contents(source: str | None, **options: Any) -> list[Any]:
    found = [prompt.content for prompt in load_prompts(source, **options).prompts]
    return [list(content) if isinstance(content, tuple) else content for content in found]


# ---- the built-in set -------------------------------------------------------------------------------------


def test_the_built_in_set_is_large_and_varied():
    built_in = load_prompts()
    assert built_in.name == "built-in"
    assert len(built_in.prompts) >= 64
    assert len({prompt.id for prompt in built_in.prompts}) == len(built_in.prompts)
    assert len({str(prompt.content) for prompt in built_in.prompts}) == len(built_in.prompts)
    assert len({prompt.category for prompt in built_in.prompts}) >= 10
    assert sum(isinstance(prompt.content, tuple) for prompt in built_in.prompts) >= 3


def test_any_sixteen_prompts_of_the_built_in_set_in_a_row_are_varied():
    categories = [prompt.category for prompt in load_prompts().prompts]
    for start in range(len(categories) - 15):
        assert len(set(categories[start : start + 16])) >= 8


def test_chats_of_the_built_in_set_alternate_and_end_with_the_user():
    for prompt in load_prompts().prompts:
        if isinstance(prompt.content, tuple):
            roles = [message["role"] for message in prompt.content if message["role"] != "system"]
            assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]


def test_the_part_to_compile_on_has_every_category_twice_and_leaves_48_for_results():
    prompts = load_prompts().prompts
    first, rest = prompts[:BUILTIN_FOR_COMPILING], prompts[BUILTIN_FOR_COMPILING:]
    assert Counter(p.category for p in first) == dict.fromkeys({p.category for p in prompts}, 2)
    assert len(rest) == 48
    assert load_prompts(limit=BUILTIN_FOR_COMPILING).prompts == first
    assert load_prompts(skip=BUILTIN_FOR_COMPILING).prompts == rest
    assert load_prompts(skip=30, limit=4).prompts == prompts[30:34]


def test_skipping_all_prompts_is_refused(write: Any):
    with pytest.raises(BadInput, match=r"p\.txt holds no prompt after the first 2"):
        load_prompts(write("p.txt", "one\ntwo\n"), skip=2)


def digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.lower().split()).encode()).hexdigest()[:16]


def test_the_built_in_set_has_nothing_of_the_held_out_set():
    """Spec-Bench is what results are reported on; its digests stand for its texts."""
    held_out = set((FOLDER / "spec_bench_digests.txt").read_text().split())
    known = "Rewrite your previous response. Start every sentence with the letter A."
    assert digest(known) in held_out  # a second turn of it, so the digests are made as here
    for prompt in load_prompts().prompts:
        turns = (
            [prompt.content] if isinstance(prompt.content, str) else [m["content"] for m in prompt.content]
        )
        assert held_out.isdisjoint(map(digest, turns)), prompt.id


# ---- where prompts come from ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "content"),
    [
        ("ask", "ask"),
        ({"prompt": "ask"}, "ask"),
        ({"prompt": [ASK]}, [ASK]),
        ({"text": "ask", "label": 3}, "ask"),
        ({"question": "ask", "answer": "42"}, "ask"),
        ({"turns": ["ask", "ask again"]}, "ask"),
        ({"turns": [ASK]}, [ASK]),
        ({"prompt": ["ask", "ask again"]}, "ask"),
        ({"conversations": ["ask", "answer"]}, "ask"),
        ({"conversation": [ASK, ANSWER]}, [ASK]),
        ({"system": "be", "messages": [ASK]}, [{"role": "system", "content": "be"}, ASK]),
        ({"system": "be", "messages": [SYSTEM, ASK]}, [SYSTEM, ASK]),
        ({"instruction": "do", "context": "this"}, "do\n\nthis"),
        ({"instruction": "do", "input": "this"}, "do\n\nthis"),
        ({"instruction": "do", "input": ""}, "do"),
        ({"messages": [ASK, ANSWER, ASK]}, [ASK, ANSWER, ASK]),
        ({"messages": [ASK, ANSWER], "prompt": "no"}, [ASK]),
        ({"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "answer"}]}, [ASK]),
    ],
)
def test_a_line_of_jsonl_is_a_string_or_an_object_with_a_known_key(write: Any, line: Any, content: Any):
    assert contents(write("p.jsonl", json.dumps(line))) == [content]
    assert contents(write("p.json", json.dumps([line]))) == [content]


@pytest.mark.parametrize("key", ["role", "from"])
@pytest.mark.parametrize("text", ["content", "value", "text"])
def test_share_gpt_turns_may_be_named_in_several_ways(write: Any, key: str, text: str):
    for user, assistant, system in (("human", "gpt", "system"), ("User", "chatgpt", "developer")):
        turns = [{key: role, text: "x"} for role in (system, user, assistant, user, assistant)]
        (found,) = contents(write("p.jsonl", json.dumps({"conversations": turns})))
        assert [message["role"].lower() for message in found] == ["system", "user", "assistant", "user"]
        assert {message["content"] for message in found} == {"x"}


def test_parts_of_text_are_joined(write: Any):
    parts = [{"type": "text", "text": "hi"}, {"type": "input_text", "text": "there"}]
    chat = [{"role": "user", "content": parts}]
    assert contents(write("p.jsonl", json.dumps({"messages": chat}))) == [
        [{"role": "user", "content": "hi\nthere"}]
    ]


def test_tool_calls_and_their_results_are_passed_on(write: Any):
    function = {"name": "look", "arguments": '{"at": "sky"}'}
    call = {"id": "c1", "type": "function", "function": function}
    result = {"role": "tool", "content": "", "tool_call_id": "c1", "name": "look"}
    parsed = {"name": "look", "arguments": {"at": "sky"}}
    for said in (
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ):
        (found,) = contents(write("p.jsonl", json.dumps({"messages": [ASK, said, result]})))
        assert found == [
            ASK,
            {"role": "assistant", "content": "", "tool_calls": [call | {"function": parsed}]},
            result,
        ]
    older = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "no JSON"}}
    (found,) = contents(
        write("p.jsonl", json.dumps({"messages": [ASK, older, {**result, "role": "function"}]}))
    )
    assert found[1]["tool_calls"] == [{"type": "function", "function": older["function_call"]}]
    assert found[2]["role"] == "tool"


def test_a_chat_template_gets_tool_calls(write: Any):
    from sequoia_cli.engine.text import encode_prompt
    from tiny_tokenizers import byte_level

    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
    chat = [
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "blue"},
    ]
    (prompt,) = load_prompts(write("p.jsonl", json.dumps({"messages": chat}))).prompts
    tokenizer = byte_level()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    text = tokenizer.decode(encode_prompt(tokenizer, prompt.content))
    assert text == '<user>ask<assistant>{"at": "sky"}<tool>blue'


def test_the_first_of_several_turns_is_noted_once(write: Any):
    rows = [
        {"prompt": ["a", "b"]},
        {"turns": ["c", "d"]},
        {"turns": ["e"]},
        {"messages": [ASK], "tools": [1]},
    ]
    found = load_prompts(write("p.json", json.dumps(rows)))
    assert [str(prompt.content) for prompt in found.prompts[:3]] == ["a", "c", "e"]
    assert found.notes == (
        "2 prompts are lists of several turns: the first turn of each is used",
        "1 prompts have 'tools', which are not given to the chat template",
    )


def test_no_two_prompts_have_one_id(write: Any):
    rows = [{"id": name, "prompt": str(n)} for n, name in enumerate((7, 7, "7#2", 8, 7))]
    found = load_prompts(write("p.json", json.dumps(rows)))
    assert [prompt.id for prompt in found.prompts] == ["7", "7#2", "7#2#2", "8", "7#3"]
    assert found.notes == ("3 prompts have the id of another one, so a number is added: 7#2, 7#2#2, 7#3",)


def test_bad_rows_are_left_out_counted_and_named_where_that_is_asked_for(write: Any):
    path = write("p.jsonl", '"one"\n{"prompt": }\n5\n"two"\n{"q": 1}\n{"prompt": 5}\n"three"')
    with pytest.raises(BadRow, match=r"p\.jsonl, line 2: not valid JSON"):
        load_prompts(path)
    found = load_prompts(path, skip_bad=True, limit=3)
    assert [prompt.content for prompt in found.prompts] == ["one", "two", "three"]
    (note,) = found.notes
    assert note.startswith(f"left out 4 bad rows: {path}, line 2: not valid JSON at column 12")
    assert (
        f"; {path}, line 3: expected a string or an object, found 5; {path}, line 5: found the keys" in note
    )
    assert note.endswith("; and 1 more")
    with pytest.raises(
        BadInput, match=r"holds no usable prompts; the first of 2 bad rows: .*line 1: expected"
    ):
        load_prompts(write("all.jsonl", "5\n6"), skip_bad=True)


def test_ids_and_categories_are_kept_and_line_numbers_stand_in(write: Any):
    lines = '{"id": "a", "prompt": "x", "category": "code"}\n\n{"question_id": 7, "prompt": "y"}\n"z"\n'
    found = load_prompts(write("p.jsonl", lines)).prompts
    assert found == (Prompt("a", "x", "code"), Prompt("7", "y"), Prompt("4", "z"))


def test_a_column_is_taken_where_named(write: Any):
    assert contents(write("p.jsonl", '{"prompt": "no", "body": "yes"}'), column="body") == ["yes"]


def test_a_text_file_is_one_prompt_per_line(write: Any):
    assert contents(write("p.txt", "one\r\n\n  two words \n{not json\n")) == ["one", "two words", "{not json"]


def test_a_folder_is_one_prompt_per_text_file_in_the_order_of_names(write: Any):
    write("d/b.txt", "second\nstill second\n")
    write("d/a.md", "first")
    folder = str(Path(write("d/c.py", "ignored")).parent)
    assert load_prompts(folder).prompts == (
        Prompt("a.md", "first"),
        Prompt("b.txt", "second\nstill second"),
    )


def test_stdin_is_json_lines_or_text_lines(stdin: Any):
    stdin(b'\n{"prompt": "one"}\n{"prompt": "two"}\n')
    assert load_prompts("-").name == "stdin"
    stdin(b'\n{"prompt": "one"}\n{"prompt": "two"}\n')
    assert contents("-") == ["one", "two"]
    stdin(b"one\ntwo\n")
    assert contents("-") == ["one", "two"]


def test_a_file_without_ending_is_read_like_stdin(write: Any):
    assert contents(write("prompts", '{"prompt": "one"}')) == ["one"]
    assert contents(write("prompts", "one")) == ["one"]


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(write: Any):
    assert contents(write("p.txt", "one".encode("utf-8-sig"))) == ["one"]
    assert contents(write("p.jsonl", '{"prompt": "é"}'.encode("utf-8-sig"))) == ["é"]


def test_separators_that_python_calls_line_ends_may_stand_inside_a_prompt(write: Any):
    assert contents(write("p.jsonl", '{"prompt": "a\u2028b\x85c"}')) == ["a\u2028b\x85c"]


@pytest.mark.parametrize("line", [b'{"prompt": "hi"}\n', b"hi\n"])
def test_a_limit_ends_the_reading_of_a_stream_without_end(monkeypatch: pytest.MonkeyPatch, line: bytes):
    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, into: Any) -> int:
            into[: len(line)] = line
            return len(line)

    stream = SimpleNamespace(buffer=io.BufferedReader(Endless()), closed=False)
    monkeypatch.setattr(sys, "stdin", stream)
    assert [prompt.content for prompt in load_prompts("-", limit=2).prompts] == ["hi", "hi"]


def test_a_line_without_end_is_refused(write: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_files, "MAX_LINE_BYTES", 2**20)
    with pytest.raises(BadInput, match=r"line 2: longer than 1 MiB"):
        load_prompts(write("p.txt", "one\n" + "x" * 2**21))


def test_a_limit_takes_the_first_and_reads_no_further(write: Any):
    assert contents(write("p.jsonl", '"one"\n"two"\nbroken'), limit=2) == ["one", "two"]
    assert contents(write("p.txt", "one"), limit=5) == ["one"]


# ---- identity ---------------------------------------------------------------------------------------------


def test_the_digest_is_of_the_prompts_used_not_of_how_they_are_stored(write: Any):
    text = load_prompts(write("a.txt", "one\ntwo\nthree"), limit=2)
    lines = load_prompts(write("b.jsonl", '{"prompt": "one", "id": 5}\n{"question": "two"}'))
    assert text.digest == lines.digest
    assert text.digest.startswith("sha256:")


@pytest.mark.parametrize("other", ['"two"\n"one"', '"one"', '"one\\ntwo"', '"one"\n"two "'])
def test_other_prompts_or_another_order_have_another_digest(write: Any, other: str):
    digest = load_prompts(write("a.jsonl", '"one"\n"two"')).digest
    assert load_prompts(write("b.jsonl", other)).digest != digest


def test_a_chat_of_one_turn_is_not_the_plain_text(write: Any):
    chat = load_prompts(write("a.jsonl", json.dumps({"messages": [ASK]})))
    assert chat.digest != load_prompts(write("b.jsonl", '"ask"')).digest


# ---- what cannot be used ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("p.jsonl", '"one"\n{"prompt": }', "p.jsonl, line 2: not valid JSON at column 12: Expecting value"),
        ("p.jsonl", '"one"\n\n5', "p.jsonl, line 3: expected a string or an object, found 5"),
        (
            "p.jsonl",
            '{"body": "x", "n": 1}',
            "p.jsonl, line 1: found the keys body, n; expected one of messages",
        ),
        ("p.jsonl", "{}", "found the keys none; expected one of"),
        (
            "p.jsonl",
            '{"prompt": "  "}',
            "p.jsonl, line 1: 'prompt' is '  '; expected a non-empty text",
        ),
        ("p.jsonl", '{"prompt": 5}', "p.jsonl, line 1: 'prompt' is 5; expected a text or a list of messages"),
        ("p.jsonl", '{"prompt": null}', "'prompt' is None; expected a text"),
        ("p.jsonl", '{"messages": []}', r"'messages' is \[\]; expected a text or a list of messages"),
        (
            "p.jsonl",
            '{"messages": [{"role": "user"}]}',
            "'messages', message 1 is .*; expected an object with",
        ),
        ("p.jsonl", json.dumps({"messages": [ANSWER]}), "'messages' has only answers"),
        (
            "p.jsonl",
            json.dumps(
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}
            ),
            "'messages', message 1 has a part of type 'image_url'; only texts are read here",
        ),
        (
            "p.jsonl",
            '{"messages": [{"role": "assistant", "content": null}]}',
            "'messages', message 1 is .*; expected an object with",
        ),
        (
            "p.jsonl",
            '{"messages": [{"role": "assistant", "tool_calls": [5]}]}',
            r"'messages', message 1 has the tool calls \[5\]",
        ),
        ("p.jsonl", '{"prompt": ["", "b"]}', "'prompt' is ''; expected a non-empty text"),
        ("p.jsonl", '{"instruction": "do", "input": 5}', "line 1: 'input' is 5; expected a non-empty text"),
        ("p.jsonl", '{"prompt": "\\ud83e"}', r"'\\ud83e'; it holds half of a surrogate pair"),
        ("p.jsonl", '{"turns": [""]}', "'turns' is ''; expected a non-empty text"),
        ("p.jsonl", "[" * 100_000, "line 1: unreadable JSON"),
        ("p.json", '{"prompt": "x"}', "p.json: expected a list of prompts, found {'prompt': 'x'}"),
        ("p.json", '["one",\n}', "p.json: not valid JSON at line 2, column 1"),
        ("p.json", '["one", 5]', "p.json, entry 2: expected a string or an object, found 5"),
        ("p.json", "[]", "p.json holds no prompts"),
        ("p.jsonl", "\n \n", "p.jsonl holds no prompts"),
        ("p.txt", "", "p.txt holds no prompts"),
        ("p.txt", b"one\ntwo\nna\xefve", "p.txt, line 3: byte 0xef is not UTF-8"),
        ("p.jsonl", '"one"'.encode("utf-16"), "p.jsonl, line 1: byte 0xff is not UTF-8"),
        ("p.csv", "prompt\nx", "p.csv has an unknown extension; expected a .jsonl"),
        ("d/a.py", "x", None),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_place(
    write: Any, name: str, content: Any, complaint: Any
):
    path = write(name, content)
    if complaint is None:
        path, complaint = str(Path(path).parent), "d holds no .txt or .md file"
    with pytest.raises(BadInput, match=complaint):
        load_prompts(path)


def test_an_empty_file_in_a_folder_is_named(write: Any):
    folder = Path(write("d/a.txt", "fine")).parent
    write("d/b.txt", "\n")
    with pytest.raises(BadInput, match=r"b\.txt is ''; expected a non-empty text"):
        load_prompts(str(folder))


@pytest.mark.parametrize("line", ['{"prompt": "x"}', '"x"'])
def test_a_column_that_is_not_there_is_refused(write: Any, line: str):
    with pytest.raises(BadInput, match=r"line 1: .*'body'"):
        load_prompts(write("p.jsonl", line), column="body")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_refused(limit: int):
    with pytest.raises(BadInput, match="expected at least 1"):
        load_prompts(limit=limit)


# ---- datasets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source", ["no.jsonl", "no.TXT", "./owner/name", "owner/name/more", "/owner/name", "name"]
)
def test_what_looks_like_a_path_is_never_looked_up_on_the_hub(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match="does not exist"):
        load_prompts(source)


def test_a_name_inside_a_folder_that_is_here_is_never_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").mkdir()
    with pytest.raises(BadInput, match="prompts/mine does not exist"):
        load_prompts("prompts/mine")


@pytest.mark.parametrize("source", ["x" * 5000, "why is the sky blue?", "~nobody-here/p", ""])
def test_anything_typed_gets_an_answer(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput):
        load_prompts(source)


def test_a_missing_package_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match="the package `datasets`") as caught:
        load_prompts("owner/name")
    assert "pip install 'sequoia-cli[datasets]'" in (caught.value.hint or "")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    """A hub with one dataset, and the calls that were made to it."""
    calls: list[Any] = []
    streamed: list[bool] = []
    rows = {split: [{"question": f"{split} {n}"} for n in (1, 2, 3)] for split in ("train", "test")}

    def load_dataset(name: str, config: str | None, *, split: str | None, streaming: bool) -> Any:
        calls.append((name, config, split))
        streamed.append(streaming)
        return rows[split] if split else rows

    fake = ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", lambda self, name, timeout: None)
    return SimpleNamespace(calls=calls, streamed=streamed, module=fake)


@pytest.mark.parametrize(
    ("source", "call", "first"),
    [
        ("owner/name", ("owner/name", None, None), "test 1"),
        ("owner/name:train", ("owner/name", None, "train"), "train 1"),
        ("owner/name:main:train", ("owner/name", "main", "train"), "train 1"),
    ],
)
def test_a_dataset_is_read_by_name_config_and_split(hub: Any, source: str, call: Any, first: str):
    found = load_prompts(source, limit=2)
    assert hub.calls == [call]
    assert (found.name, len(found.prompts), found.prompts[0]) == (source, 2, Prompt("1", first))


def test_a_row_without_a_prompt_is_named(hub: Any):
    with pytest.raises(BadInput, match="owner/name, row 1: found the keys question; expected 'body'"):
        load_prompts("owner/name", column="body")


def test_a_network_that_is_not_there_is_one_line(hub: Any, monkeypatch: pytest.MonkeyPatch):
    def fail(*args: Any, **options: Any) -> None:
        raise ConnectionError("cannot reach the hub\nmore\nlines")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", fail)
    with pytest.raises(
        SequoiaError, match=r"the dataset owner/name could not be read: cannot reach the hub more lines$"
    ):
        load_prompts("owner/name")
    assert hub.calls == []


def test_a_dataset_is_streamed_for_a_few_prompts_and_cached_where_all_are_read(hub: Any):
    load_prompts("owner/name", limit=2)
    load_prompts("owner/name")
    assert hub.streamed == [True, False]


@pytest.mark.parametrize("switch", ["HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_the_cached_copy_is_used_and_the_hub_is_not_asked(
    hub: Any, monkeypatch: pytest.MonkeyPatch, switch: str
):
    def asked(*args: Any, **options: Any) -> None:
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", asked)
    if switch == "HF_DATASETS_OFFLINE":
        monkeypatch.setenv(switch, "true")
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert len(load_prompts("owner/name", limit=2).prompts) == 2
    assert hub.streamed == [False]
    hub.module.load_dataset = asked
    with pytest.raises(SequoiaError) as caught:
        load_prompts("owner/name")
    assert "without a limit) while online" in (caught.value.hint or "")


def test_a_dataset_of_several_configurations_lists_them(hub: Any):
    def several(*args: Any, **options: Any) -> None:
        names = "Please pick one among the available configs: ['main', 'socratic']"
        raise ValueError(f"Config name is missing.\n{names}\n{'x' * 10_000}")

    hub.module.load_dataset = several
    with pytest.raises(
        SequoiaError, match=r"Config name is missing\. Please pick .*\['main', 'socratic'\]"
    ) as caught:
        load_prompts("owner/name")
    assert len(caught.value.message) < 700
    assert "owner/name:CONFIG:SPLIT" in (caught.value.hint or "")


def test_the_help_names_every_key():
    assert all(f"`{key}`" in (load_prompts.__doc__ or "") for key in PROMPT_KEYS)
