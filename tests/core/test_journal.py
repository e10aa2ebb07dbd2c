"""The journal of a measurement: what is finished outlives a kill, and nothing else is taken for it."""

import json

import pytest

from limits import full_disk
from sequoia_cli.core.journal import Journal
from sequoia_cli.errors import BadInput, SequoiaError

CONDITIONS = {"measure": "profile", "sizes": (1, 2), "by_size": {1: "x"}, "dtype": "bfloat16"}
PIECES = [{"1": [0.25, 1e-7]}, {"1": [0.5], "2": []}, {"name": "é\u2028"}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rates.yaml.partial"


def kept(path, pieces=PIECES, conditions=CONDITIONS):
    """A journal of one run, which added `pieces`."""
    with Journal(path, conditions) as journal:
        for piece in pieces:
            journal.add(piece)
    return path.read_bytes()


def resumed(path, conditions=CONDITIONS):
    with Journal(path, conditions) as journal:
        return journal.entries


def test_a_run_with_the_same_conditions_goes_on_where_the_last_one_stopped(path):
    kept(path, PIECES[:2])
    assert resumed(path) == PIECES[:2]
    with Journal(path, CONDITIONS) as journal:
        journal.add(PIECES[2])
        assert journal.entries == PIECES
    assert resumed(path) == PIECES


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"dtype": "float32"}, "dtype 'bfloat16' there, 'float32' here"),
        ({"sizes": (1, 2, 3)}, r"sizes \[1, 2\] there, \[1, 2, 3\] here"),
        ({"more": 1}, "more None there, 1 here"),
    ],
)
def test_finished_pieces_of_other_conditions_are_named_and_kept(path, change, difference):
    kept(path)
    with pytest.raises(BadInput, match=rf"holds 3 finished pieces of a run of other options: {difference}$"):
        Journal(path, CONDITIONS | change)
    assert resumed(path) == PIECES


def test_finished_pieces_of_other_conditions_are_dropped_where_that_is_asked_for(path):
    kept(path)
    with Journal(path, CONDITIONS | {"more": 1}, replace=True) as journal:
        assert journal.entries == []
    assert resumed(path) == []  # nothing was finished, so that nothing can be lost


def test_replacing_resumes_a_run_of_the_same_conditions(path):
    kept(path)
    with Journal(path, CONDITIONS, replace=True) as journal:
        assert journal.entries == PIECES


def test_wherever_a_kill_cut_the_file_all_whole_pieces_before_are_kept(path):
    whole = kept(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        # The last line break is not needed: the line before it is whole.
        finished = max(0, (whole[:length] + b"\n").count(b"}\n") - 1)
        entries = resumed(path)
        assert entries == PIECES[:finished]
        with Journal(path, CONDITIONS) as journal:
            journal.add({"next": 1})
        assert resumed(path) == [*PIECES[:finished], {"next": 1}]


def test_nothing_behind_a_damaged_line_is_trusted(path):
    lines = kept(path).splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], lines[2][:5] + b"\n", lines[3]]))
    assert resumed(path) == PIECES[:1]


@pytest.mark.parametrize("damage", [b"", b"\x00" * 50, b"\xff\xfe", b"[]\n[]\n", b"{}\n{}\n"])
def test_a_file_that_is_no_journal_is_begun_anew(path, damage):
    path.write_bytes(damage)
    assert resumed(path) == []
    assert json.loads(path.read_text())["measure"] == "profile"


def test_each_piece_is_in_the_file_as_soon_as_it_is_added(path):
    journal = Journal(path, CONDITIONS)
    journal.add(PIECES[0])
    assert [json.loads(line) for line in path.read_text().splitlines()[1:]] == PIECES[:1]


def test_without_a_path_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Journal(None, CONDITIONS) as journal:
        journal.add(PIECES[0])
    assert journal.entries == PIECES[:1]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_of_and_what_was_kept_before_stays(path):
    size = len(kept(path))
    with (
        full_disk(size + 20),
        pytest.raises(SequoiaError, match=r"rates\.yaml\.partial could not be written: File too large"),
        Journal(path, CONDITIONS) as journal,
    ):
        journal.add({"long": "x" * 100})
    assert resumed(path) == PIECES


def test_a_disk_that_is_full_from_the_start_does_not_empty_the_journal(path):
    kept(path)
    with full_disk(10), pytest.raises(SequoiaError, match="could not be written"):
        Journal(path, CONDITIONS)
    assert resumed(path) == PIECES


def test_a_folder_that_is_gone_is_told_of(tmp_path):
    with pytest.raises(SequoiaError, match="could not be written: No such file"):
        Journal(tmp_path / "gone" / "x.partial", CONDITIONS)
