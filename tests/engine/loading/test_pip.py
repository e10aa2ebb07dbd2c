"""How pip is started where an environment has none."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

from sequoia_cli.engine.loading import pip
from sequoia_cli.engine.loading.pip import pip_command


@pytest.fixture
def without_pip(monkeypatch):
    right = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else right(name))


def test_an_environments_own_pip_comes_first():
    assert pip_command() == [sys.executable, "-m", "pip"]


def test_the_wheel_that_python_brings_runs_as_it_lies(without_pip):
    if not (wheels := [wheel for folder in pip._bundles() for wheel in folder.glob("pip-*.whl")]):
        pytest.skip("this Python has no bundled pip")
    command = pip_command()
    assert command == [sys.executable, str(sorted(wheels)[-1] / "pip")]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("pip ")


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        ({"pip3", "uv"}, ["/bin/pip3"]),
        ({"uv"}, ["/bin/uv", "tool", "run", "pip"]),
        (set(), None),
    ],
)
def test_other_ways_are_taken_in_turn(there, expected, without_pip, monkeypatch):
    monkeypatch.setattr(pip, "_bundles", list)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in there else None)
    assert pip_command() == expected
