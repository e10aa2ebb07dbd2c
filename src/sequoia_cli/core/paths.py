"""Where files live: what the package ships, what this user keeps, what this machine measured last."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped(kind: str, name: str) -> Path:
    """Path of a file the project ships: `kind` is `profiles` or `trees`.

    An installed package carries them inside itself, a checkout shows them at its top.
    """
    installed = _PACKAGE / "shipped" / kind / name
    return installed if installed.exists() else _PACKAGE.parents[1] / kind / name


def package_data(*parts: str) -> Path:
    """Path of a data file that lies inside the package, such as the default draft."""
    return _PACKAGE.joinpath(*parts)


def cache_dir() -> Path:
    """This user's cache: `SEQUOIA_CACHE`, else `sequoia` under the XDG cache directory."""
    if explicit := os.environ.get("SEQUOIA_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sequoia"


def remember_latest(kind: str, path: Path) -> None:
    """Note `path` as this machine's latest `profile`, `acceptance` or `tree`: the next command's default."""
    latest = _read_latest()
    latest[kind] = str(path.resolve())
    target = cache_dir() / "latest.json"
    scratch = target.with_suffix(f".{os.getpid()}.partial")
    with suppress(OSError):  # a convenience: where the cache cannot be written there is no default later
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps(latest, indent=1, sort_keys=True) + "\n")
        scratch.replace(target)


def latest(kind: str) -> Path | None:
    """The file noted last for `kind`, or None where there is none or it is gone."""
    noted = _read_latest().get(kind)
    return Path(noted) if noted and Path(noted).is_file() else None


def _read_latest() -> dict[str, str]:
    try:
        found = json.loads((cache_dir() / "latest.json").read_text())
    except (OSError, ValueError):
        return {}  # a convenience: a missing or damaged note means no default, never a failure
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
