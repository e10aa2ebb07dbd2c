"""Where files live, on machines with and without a home."""

import os
import pwd
import threading

import pytest

from sequoia_cli.core import paths
from sequoia_cli.core.paths import cache_dir, latest, remember_latest
from sequoia_cli.errors import BadInput, SequoiaError


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """A user id that the system does not know, with no HOME, as in some containers."""

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "SEQUOIA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_without_a_home_there_are_no_defaults_and_nothing_fails(homeless, tmp_path):
    remember_latest("tree", tmp_path / "x")
    assert latest("tree") is None
    with pytest.raises(SequoiaError, match="no home directory") as error:
        cache_dir()
    assert "SEQUOIA_CACHE" in error.value.hint


def test_a_cache_of_nobody_is_a_wrong_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("SEQUOIA_CACHE", "~nosuchuser/x")
    with pytest.raises(BadInput, match="SEQUOIA_CACHE is '~nosuchuser/x'; there is no such user"):
        latest("tree")
    remember_latest("tree", tmp_path / "x")  # work that is done is not lost to it


def test_commands_that_end_at_once_all_have_their_file_noted(monkeypatch, tmp_path):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path / "cache"))
    kinds = [f"kind {number}" for number in range(8)]
    for kind in kinds:
        (tmp_path / kind).touch()
    read = paths._read_latest
    together = threading.Barrier(8)

    def slow():
        found = read()
        os.sched_yield()
        return found

    def note(kind):
        together.wait()
        remember_latest(kind, tmp_path / kind)

    monkeypatch.setattr(paths, "_read_latest", slow)
    threads = [threading.Thread(target=note, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [latest(kind) for kind in kinds] == [tmp_path / kind for kind in kinds]


def test_a_damaged_note_is_no_default(monkeypatch, tmp_path):
    monkeypatch.setenv("SEQUOIA_CACHE", str(tmp_path))
    for damage in (b"", b"[]", b"{", b"\xff", b"[" * 10_000, b'{"tree": 3}'):
        (tmp_path / "latest.json").write_bytes(damage)
        assert latest("tree") is None
