"""Files read with every mistake named, and written whole or not at all."""

import io
import json
import pickle
import sys

import pytest
import yaml

from limits import full_disk
from sequoia_cli.core.artifact import (
    Document,
    Fields,
    Output,
    is_number,
    parse_document,
    read_document,
    render,
    write_atomically,
)
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
        (b"when: 2024-13-45", "cannot be parsed: month must be"),
        (b"[" * 100_000, "nested too deeply"),
        (b"- " * 5_000, "cannot be parsed"),
        (b"1" * 5_000, "cannot be parsed"),
    ],
)
def test_what_cannot_be_parsed_is_named_with_its_place(raw, complaint):
    with pytest.raises(BadInput, match=complaint) as error:
        parse_document(raw, "file.yaml")
    assert error.value.message.startswith("file.yaml ")
    assert "\n" not in error.value.message


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


# --- writing


def test_an_existing_file_is_refused_before_any_work_unless_forced(tmp_path):
    path = tmp_path / "tree.json"
    path.write_text("old")
    with pytest.raises(BadInput, match=r"tree\.json exists") as error:
        Output(path)
    assert "--force" in error.value.hint
    assert Output(path, force=True).write("new") is True
    assert path.read_text() == "new"


def test_the_same_contents_may_be_written_again_where_that_is_allowed(tmp_path):
    path = tmp_path / "tree.json"
    assert Output(path, allow_same=True).write("é") is True
    assert Output(path, allow_same=True).write("é") is False
    with pytest.raises(BadInput, match="exists"):
        Output(path, allow_same=True).write("other")
    assert path.read_text("utf-8") == "é"
    assert Output(path, allow_same=True, force=True).write("other") is True


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a directory; a file name is expected"):
        Output(tmp_path)
    for path in (tmp_path / "file" / "tree.json", tmp_path / ("x" * 300), "/proc/none/tree.json"):
        with pytest.raises(BadInput, match="cannot be written") as error:
            Output(path)
        assert "-o" in error.value.hint


def test_folders_are_made_and_a_reservation_leaves_nothing_behind(tmp_path):
    path = tmp_path / "new" / "folder" / "tree.json"
    output = Output(path)
    assert list(path.parent.iterdir()) == []
    output.write("whole")
    assert [entry.name for entry in path.parent.iterdir()] == ["tree.json"]


def test_unfinished_work_outlives_a_reservation_and_goes_when_the_file_is_there(tmp_path):
    path = tmp_path / "rates.yaml"
    Output(path).journal.write_text("half")
    again = Output(path)
    assert again.journal.name == "rates.yaml.partial"
    assert again.journal.read_text() == "half"
    again.write("whole")
    assert [entry.name for entry in tmp_path.iterdir()] == ["rates.yaml"]


def test_a_dash_is_stdout_and_has_no_place_for_unfinished_work(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    output = Output("-")
    assert output.journal is None
    assert output.write("text") is True
    assert capsys.readouterr().out == "text"
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "tree.json"
    path.write_text("old")
    output = Output(path, force=True)
    with full_disk(), pytest.raises(SequoiaError, match=r"tree\.json could not be written: File too large"):
        output.write("new" * 1000)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree.json"]


def test_text_is_written_as_utf8_with_plain_line_ends(tmp_path):
    write_atomically(tmp_path / "x", "é\n")
    assert (tmp_path / "x").read_bytes() == "é\n".encode()


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
