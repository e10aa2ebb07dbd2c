"""Files written whole or not at all, where they were promised, never over somebody else's work."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from limits import full_disk
from sequoia_cli.core.writing import Output, write_atomically
from sequoia_cli.errors import BadInput, SequoiaError


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


def test_folders_are_made_and_a_reservation_leaves_nothing_after_it(tmp_path):
    path = tmp_path / "new" / "folder" / "tree.json"
    output = Output(path)
    assert [entry.name for entry in path.parent.iterdir()] == [".tree.json.reserved"]
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
    output.release()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree.json"]


def test_text_is_written_as_utf8_with_plain_line_ends(tmp_path):
    write_atomically(tmp_path / "x", "é\n")
    assert (tmp_path / "x").read_bytes() == "é\n".encode()


# --- two commands and one file


def test_a_file_that_another_command_is_to_write_is_refused_by_name(tmp_path):
    path = tmp_path / "rates.yaml"
    (tmp_path / "link.yaml").symlink_to(path)
    first = Output(path)
    for name in ("rates.yaml", "./rates.yaml", "link.yaml"):
        for force in (False, True):
            with pytest.raises(BadInput, match=r"\.yaml is being written by another command"):
                Output(f"{tmp_path}/{name}", force=force)
    assert Output(tmp_path / "other.yaml").write("not in the way")
    first.write("mine")
    with pytest.raises(BadInput, match="exists"):
        Output(path)
    Output(path, force=True).write("later")
    assert path.read_text() == "later"


def test_a_reservation_ends_with_its_release_and_with_its_process(tmp_path):
    path = tmp_path / "rates.yaml"
    place = Output(path)
    place.release()
    place.release()
    words = f"import os; from sequoia_cli.core.writing import Output; o = Output({str(path)!r}); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", words]).returncode == 9
    assert Output(path).write("text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["rates.yaml"]


def test_another_process_is_refused_as_well(tmp_path):
    path = tmp_path / "rates.yaml"
    place = Output(path)
    words = [sys.executable, "-c", f"from sequoia_cli.core.writing import Output; Output({str(path)!r})"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "is being written by another command" in done.stderr
    place.release()
    assert subprocess.run(words).returncode == 0


# --- what a path may lead to


@pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
def test_a_replaced_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "x"
    path.write_text("old")
    path.chmod(mode)
    Output(path, force=True).write("new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_the_umask_decides_for_a_new_file(tmp_path):
    before = os.umask(0o027)
    try:
        Output(tmp_path / "x").write("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_what_a_link_points_to_is_updated_and_the_link_stays(tmp_path):
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "real.yaml", tmp_path / "link.yaml"
    link.symlink_to(real)
    place = Output(link)
    assert place.journal == real.with_name("real.yaml.partial")
    place.write("new")
    assert link.is_symlink() and real.read_text() == "new"
    with pytest.raises(BadInput, match=r"link\.yaml exists"):
        Output(link)
    write_atomically(link, "newer")
    assert link.is_symlink() and real.read_text() == "newer"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    with pytest.raises(BadInput, match="is a pipe that nobody reads") as error:
        Output(pipe, force=True)
    assert "-o -" in error.value.hint
    # Opened for both ways a pipe never waits, and the reader is there before the writer.
    held = os.open(pipe, os.O_RDWR)
    reader = threading.Thread(target=lambda: read.append(os.read(held, 100)))
    reader.start()
    place = Output(pipe)
    assert place.is_stream and place.journal is None
    assert place.write("through é") is True
    reader.join(10)
    os.close(held)
    assert read == ["through é".encode()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_to_and_stays_one():
    assert Output("/dev/null").write("text") is True
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(SequoiaError, match="/dev/full could not be written: No space left"):
        Output("/dev/full", force=True).write("text")


def test_a_socket_is_refused(tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(BadInput, match="is no ordinary file, pipe or character device"):
            Output(tmp_path / "s", force=True)


def test_stdout_under_its_other_names_is_stdout(capsys):
    assert Output("/dev/stdout").write("text")
    assert Output("/dev/fd/1").journal is None
    assert capsys.readouterr().out == "text"


def test_a_closed_stdout_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(BadInput, match="stdout is closed"):
        Output("-")


def test_a_text_that_is_no_text_leaves_no_scratch_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "x", "\ud800")
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_no_system_takes_is_refused():
    with pytest.raises(BadInput, match="null"):
        Output("a\0b")
