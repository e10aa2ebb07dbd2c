"""Threads by the cores that a process may use, not by those that it sees."""

import os

import pytest
import torch

from sequoia_cli.engine.loading import cores
from sequoia_cli.engine.loading.cores import fitting_threads, usable_cores, use_threads


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of 64 cores whose control groups are files: `machine(own, **files)`."""

    def made(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(cores, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cores, "_CONTROL_GROUPS", tmp_path / "groups")
    return made


V1 = "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 64),
        ("0::/a/b\n", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "150000 100000"}, 1.5),
        ("0::/hidden/from/here\n", {"cpu.max": "400000 100000"}, 4),
        (V1, {"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2.5),
        (V1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 64),
        (V1, {"memory/cpu.max": "100 100"}, 64),
        ("0::/\n", {"cpu.max": "what is this"}, 64),
        ("0::/\n", {}, 64),
    ],
)
def test_cores_are_those_of_the_quota(own, files, expected, machine):
    machine(own, files)
    assert usable_cores() == expected


def test_a_system_without_control_groups_has_the_cores_that_it_shows(machine):
    assert usable_cores() == 64


def test_cores_that_the_process_is_bound_to(machine, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 6}, raising=False)
    assert usable_cores() == 3


@pytest.mark.parametrize(
    ("threads", "quota", "set_by_user", "expected"),
    [(8, "250000", False, 2), (8, "50000", False, 1), (2, "250000", False, 2), (8, "250000", True, 8)],
)
def test_threads_follow_the_quota_unless_the_user_set_them(
    threads, quota, set_by_user, expected, machine, monkeypatch
):
    machine("0::/\n", {"cpu.max": f"{quota} 100000"})
    now, heard = [threads], []
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert fitting_threads() == expected
    use_threads(None, heard.append)
    assert now[-1] == expected
    if expected == threads:
        assert heard == []
    else:
        (line,) = heard
        assert f"may use {float(quota) / 1e5:g} of the machine's 64 cores" in line
        assert f"{expected} threads instead of 8" in line


def test_a_number_of_threads_that_is_asked_for_is_taken_without_a_word(machine, monkeypatch):
    machine("0::/\n", {"cpu.max": "100000 100000"})
    now, heard = [2], []
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)
    use_threads(7, heard.append)
    assert now[-1] == 7
    assert heard == []
