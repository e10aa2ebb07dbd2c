"""The command that runs pip, also in environments that were made without it, as uv makes them."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path


def pip_command() -> list[str] | None:
    """How to start pip, so that the user's index and proxy settings hold; None where there is none.

    The environment's own comes first, then the wheel that Python brings to make environments with, which runs
    as it lies, then one of another environment, then what uv can fetch. Nothing is installed here.
    """
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if wheels := sorted(wheel for folder in _bundles() for wheel in folder.glob("pip-*.whl")):
        return [sys.executable, str(wheels[-1] / "pip")]
    if found := shutil.which("pip") or shutil.which("pip3"):
        return [found]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    return None


def _bundles() -> list[Path]:
    """Folders in which Python keeps the wheel; some systems keep one for all their Pythons."""
    ensurepip = importlib.util.find_spec("ensurepip")
    own = [Path(place) / "_bundled" for place in (ensurepip and ensurepip.submodule_search_locations) or ()]
    systems = sysconfig.get_config_var("WHEEL_PKG_DIR")
    return [*own, *([Path(systems)] if systems else [])]
