"""Where files live: what the package ships, what this user keeps, what this machine measured last."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from sequoia_cli.core.locks import locked
from sequoia_cli.core.parsing import parse_json
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.errors import BadInput, SequoiaError

_PACKAGE = Path(__file__).resolve().parents[1]

#: The file in the cache that notes what this machine measured last.
_NOTES = "latest.json"


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
    """This user's cache: `SEQUOIA_CACHE`, else `sequoia` under the XDG cache directory.

    Raises `BadInput` where `SEQUOIA_CACHE` names no place, `SequoiaError` where this user has no home.
    """
    if explicit := os.environ.get("SEQUOIA_CACHE"):
        try:
            return Path(explicit).expanduser()
        except RuntimeError:
            raise BadInput(f"SEQUOIA_CACHE is '{explicit}'; there is no such user") from None
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "sequoia"
    try:
        return Path.home() / ".cache" / "sequoia"
    except RuntimeError:  # a user id without a name, as in some containers
        raise SequoiaError(
            "this user has no home directory to keep files in", hint="set SEQUOIA_CACHE to a folder"
        ) from None


def remember_latest(kind: str, path: Path) -> None:
    """Note `path` as this machine's latest `profile`, `acceptance` or `tree`: the next command's default."""
    # A convenience: where the cache cannot be written there is no default later.
    with suppress(OSError, SequoiaError):
        notes = cache_dir() / _NOTES
        notes.parent.mkdir(parents=True, exist_ok=True)
        with locked(notes):
            found = _read_latest() | {kind: str(path.resolve())}
            write_atomically(notes, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")


def latest(kind: str) -> Path | None:
    """The file noted last for `kind`, or None where there is none or it is gone."""
    noted = _read_latest().get(kind)
    return Path(noted) if noted and Path(noted).is_file() else None


def _read_latest() -> dict[str, str]:
    try:
        found = parse_json((cache_dir() / _NOTES).read_bytes())
    except BadInput:
        raise  # a wrong SEQUOIA_CACHE
    except (OSError, ValueError, SequoiaError):
        return {}  # a convenience: a missing or damaged note means no default, never a failure
    return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}
