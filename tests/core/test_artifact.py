"""Files read with every mistake named, and written whole or not at all."""

import io
import json
import pickle
import sys

import pytest
import yaml

from sequoia_cli.core import artifact
from sequoia_cli.core.artifact import (
    Document,
    Fields,
    is_number,
    parse_document,
    read_document,
    render,
)
from sequoia_cli.core.parsing import cut
from sequoia_cli.errors import BadInput, SequoiaError

# --- reading


@pytest.mark.parametrize(
    "text", ['{"p": [0.5, 1]}', "p: [0.5, 1]\n", "p:\n- 0.5\n- 1\n", '{"p": [0.5, 1,],}']
)
def test_json_and_yaml_are_read_alike_and_a_trailing_comma_is_forgiven(tmp_path, text):
    path = tmp_path / "rates"
    path.write_text(text)
    document = read_document(path)
    assert (document.source, document.data) == (str(path), {"p": [0.5, 1]})


def test_the_digest_is_that_of_the_bytes(tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(b"[1]")
    assert read_document(path).digest == parse_document(b"[1]", "elsewhere").digest
    assert parse_document(b"[1]", "x").digest.startswith("sha256:080a9ed4")
    assert parse_document(b"[1]\n", "x").digest != parse_document(b"[1]", "x").digest


def test_a_dash_reads_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[1, 2]")))
    document = read_document("-")
    assert (document.source, document.data) == ("stdin", [1, 2])


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    with pytest.raises(BadInput, match=r"none\.json does not exist"):
        read_document(tmp_path / "none.json")
    with pytest.raises(BadInput, match="is a directory; a file is expected"):
        read_document(tmp_path)
    with pytest.raises(BadInput, match="cannot be read: File name too long"):
        read_document("x" * 300)


class Trap:
    """An object whose pickle runs code when it is loaded."""

    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle ran')",)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_refused_and_never_runs(tmp_path, protocol):
    path = tmp_path / "tree.pt"
    path.write_bytes(pickle.dumps(Trap(), protocol))
    with pytest.raises(BadInput, match=r"tree\.pt is a pickle or torch archive, which is never loaded here"):
        read_document(path)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"PK\x03\x04rest", "is a pickle or torch archive"),
        (b"", "is empty"),
        (b" \n\t\n", "is empty"),
        (b"\xff\xfe{\x00", "is not text"),
        (b'{"a": 1}\x00', "cannot be parsed"),
        (b'{"a": 1,\n "b": [1, 2\n "c": 3}', "cannot be parsed at line 3, column"),
        (b"a: 1\nb: - 2\n", "cannot be parsed at line 2, column 4"),
        (b"a: !!python/object/apply:os.getcwd []", "cannot be parsed at line 1, column 4"),
        (b"[" * 100_000, "nested too deeply"),
        (b"- " * 5_000, "cannot be parsed|nested too deeply"),
        (b"- " * 100 + b"1", "nested too deeply"),
        (b"[" * 100 + b"]" * 100, "nested too deeply"),
        (b"1" * 5_000, "cannot be parsed"),
    ],
)
def test_what_cannot_be_parsed_is_named_with_its_place(raw, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        parse_document(raw, "file.yaml")
    assert error.value.message.startswith("file.yaml")
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"p": [1], "p": [0.5]}', "the key 'p' is there twice"),
        ("a:\n  x: 1\n  x: 2\n", "the key 'x' is there twice, the second time at line 3"),
        ("1: a\n01: b\n", "the key 1 is there twice"),
        ('{"a": {"x": NaN}}', r"'a\.x' is nan; expected a finite number"),
        ('{"a": [1, -Infinity]}', "'a', entry 2 is -inf"),
        ('{"prompt": 1e400}', "'prompt' is inf"),
        ("a: {x: .nan}", r"'a\.x' is nan"),
        ("a: 1e400", "'a' is inf"),
        (r'{"device": "\ud800"}', r"'device' is '\\ud800'; it holds half of a surrogate pair"),
        (r'{"\ud800": 1}', "half of a surrogate pair"),
        ("a: &x [1]\nb: *x\n", "the value at line 1 is used again through an alias"),
        ("a: &x [*x]\n", "used again through an alias"),
        ("a: &x {p: 1}\nb:\n  <<: *x\n", "used again through an alias"),
        ("a: !!set {x, y}", "could not determine a constructor"),
        ("a: !!binary aGk=", "could not determine a constructor"),
        ("!!set x: 1", "could not determine a constructor"),
        ("!!seq x: 1", "a key at line 1 is a list or a mapping"),
        ("a: !!int x", "cannot be parsed"),
        ("? [a, b]\n: 1\n", "a key at line 1 is a list or a mapping"),
    ],
)
def test_what_other_readers_drop_guess_or_expand_is_refused_by_name(text, complaint):
    with pytest.raises(BadInput, match=complaint):
        parse_document(text.encode(), "file")


def test_a_few_lines_of_aliases_cannot_stand_for_gigabytes():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(BadInput, match="alias"):
        parse_document("\n".join(lines).encode(), "file")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("5e-4", 5e-4),
        ("1E3", 1000.0),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("010", 10),
        ("+3", 3),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("no", "no"),
        ("true", True),
        ("!!bool maybe", False),
        ("!!str 1", "1"),
        ("~", None),
        ("2026-01-01", "2026-01-01"),
        ("'1e-3'", "1e-3"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    found = parse_document(f"x: {text}\n".encode(), "file").data["x"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["1e-3", "08", "no", "1:30", "2026-01-01", "null", ".inf", "<<", "", "é: #"])
def test_a_string_that_looks_like_something_else_is_read_back_as_a_string(text):
    written = render({"x": text, "y": [text], text + "!": 1}, "yaml")
    assert parse_document(written.encode(), "x").data == yaml.safe_load(written)
    assert yaml.safe_load(written) == {"x": text, "y": [text], text + "!": 1}


@pytest.mark.parametrize("style", ["json", "yaml"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1}])
def test_what_no_file_can_hold_is_never_written(style, value):
    with pytest.raises(SequoiaError, match=r"a result cannot be written: 'a\.b', entry 2 is"):
        render({"a": {"b": [0, value]}}, style)


def test_yaml_is_written_without_aliases():
    pair = [1, 2]
    assert "&" not in render({"a": pair, "b": pair}, "yaml")


def test_a_file_that_is_too_large_or_endless_is_refused(monkeypatch):
    monkeypatch.setattr(artifact, "MAX_BYTES", 2**20)
    with pytest.raises(BadInput, match="is larger than 1 MiB"):
        read_document("/dev/zero")


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert parse_document(b'\xef\xbb\xbf{"a": 1}', "x").data == {"a": 1}


def test_a_closed_stdin_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(BadInput, match="stdin is closed"):
        read_document("-")


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, [1]])
def test_what_is_no_finite_number_is_none(value):
    assert not is_number(value)
    assert is_number(1) and is_number(-0.5)


# --- keys and values


KNOWN = ("schema", "name", "pairs", "conditions")


def fields(data, required=False):
    return Fields("file.yaml", data, KNOWN, "profile", "a/1", required=required)


def test_an_unknown_key_is_named_with_the_one_that_was_meant():
    with pytest.raises(BadInput, match="unknown key 'pair' in a profile; did you mean 'pairs'"):
        fields({"pair": 1})
    with pytest.raises(BadInput, match=r"unknown key '7' in a profile$"):
        fields({7: 1})


def test_what_is_no_mapping_is_shown_but_not_at_length():
    with pytest.raises(BadInput, match="is a mapping of keys to values, found 3"):
        fields(3)
    with pytest.raises(BadInput) as error:
        fields(["x" * 1000])
    assert len(error.value.message) < 140


def test_a_missing_key_is_named_with_those_that_are_there():
    with pytest.raises(BadInput, match="key 'pairs' is missing; found name, schema"):
        fields({"name": 1, "schema": "a/1"}).require("pairs")
    with pytest.raises(BadInput, match="key 'pairs' is missing; found none"):
        fields({}).pairs("pairs")


def test_values_of_the_wrong_kind_are_named_with_key_and_value():
    with pytest.raises(BadInput, match=r"file\.yaml: 'name' is 3; expected a string"):
        fields({"name": 3}).text("name")
    with pytest.raises(BadInput, match=r"'conditions' is \[1\]; expected a mapping"):
        fields({"conditions": [1]}).mapping("conditions")
    assert fields({}).text("name", "none") == "none"
    assert fields({"conditions": {1: 2}}).mapping("conditions") == {"1": 2}
    assert fields({"conditions": None}).mapping("conditions") == {}
    for falsy in (0, False, "", []):
        with pytest.raises(BadInput, match="expected a mapping"):
            fields({"conditions": falsy}).mapping("conditions")


def test_a_schema_of_another_version_and_one_of_another_kind_are_told_apart():
    assert fields({"schema": "a/1"}, required=True).source == "file.yaml"
    with pytest.raises(BadInput, match="schema a/99 is not known to this version, which reads a/1") as error:
        fields({"schema": "a/99"})
    assert "update" in error.value.hint
    for other in ("b/1", "a", 1, None):
        with pytest.raises(BadInput, match=r"'schema' is .*; expected 'a/1'"):
            fields({"schema": other})
    with pytest.raises(BadInput, match="key 'schema' is missing; found name"):
        fields({"name": "x"}, required=True)


def test_a_file_of_another_kind_is_named_as_that_before_its_keys():
    with pytest.raises(BadInput, match="'schema' is 'b/1'"):
        fields({"parents": [-1], "schema": "b/1"})


# --- rendering

DATA = {
    "schema": "sequoia-tree/1",
    "notes": ["naïve 🦄", "two"],
    "predicted": {"speedup": 1.5, "seconds": None},
    "pairs": [[1, 1e-7], [2, 0.25]],
    "parents": [-1, *range(60)],
}


@pytest.mark.parametrize(("style", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_what_is_rendered_reads_back_in_the_same_order(style, parse):
    text = render(DATA, style)
    assert parse(text) == DATA
    assert list(parse(text)) == list(DATA)
    assert parse_document(text.encode(), "x") == Document(
        "x", DATA, parse_document(text.encode(), "x").digest
    )
    assert "naïve 🦄" in text and text.endswith("\n")


def test_json_has_one_line_per_key_and_yaml_one_line_per_pair():
    lines = render(DATA, "json").splitlines()
    assert [line.strip().split(":")[0] for line in lines[1:-1]] == [f'"{key}"' for key in DATA]
    yaml_lines = render(DATA, "yaml").splitlines()
    assert "- [1, 1.0e-07]" in yaml_lines
    assert max(map(len, yaml_lines)) < 120


@pytest.mark.parametrize(("text", "expected"), [("", ""), ("abcdef", "abcdef"), ("abcdefg", "abc...")])
def test_a_text_that_is_too_long_is_cut_to_what_is_allowed_dots_included(text, expected):
    assert cut(text, 6) == expected
