"""How pip is started where an environment has none."""

import shutil
import subprocess
import sys

import pytest

from sequoia_cli.engine.loading import pip
from sequoia_cli.engine.loading.pip import pip_command


@pytest.fixture
def without_pip(monkeypatch):
    monkeypatch.setattr(pip, "_is_installed", lambda: False)


def test_an_environments_own_pip_comes_first():
    assert pip_command() == [sys.executable, "-m", "pip"]


def test_looking_for_pip_does_not_disturb_setuptools():
    """Where pip is looked for in the usual way, setuptools and so torch's compiler fail in that process."""
    code = "from sequoia_cli.engine.loading.pip import pip_command; pip_command(); {}import setuptools"
    usual = "import importlib.util; importlib.util.find_spec('pip'); import distutils.core; "
    calm, disturbed = (
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code.format(more)], check=False, capture_output=True
        )
        for more in ("import distutils.core; ", usual)
    )
    assert calm.returncode == 0, calm.stderr
    if sys.version_info < (3, 12):  # later Pythons have no distutils of their own
        assert disturbed.returncode != 0


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
