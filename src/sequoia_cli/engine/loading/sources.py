"""What a model's name stands for: one of our aliases, a local folder, or a repository on the hub."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sequoia_cli.core.paths import package_data
from sequoia_cli.engine.loading import hub, smollm2
from sequoia_cli.errors import BadInput

#: Told what is about to take a while: "fetching ...", "loading ...".
Announce = Callable[[str], None]

TARGET_ALIAS = "smollm2"
DRAFT_ALIAS = "smollm2-draft"
ALIASES = (TARGET_ALIAS, DRAFT_ALIAS)


@dataclass(frozen=True)
class Source:
    """A model as the user named it: its role (`target` or `draft`), the name, and what that stands for."""

    role: str
    name: str
    kind: Literal["alias", "folder", "hub"]

    def __str__(self) -> str:
        return f"{self.role} '{self.name}'"


def locate(role: str, name: str) -> Source:
    """Decide what `name` stands for, without touching the network.

    An alias wins; then anything that exists or is written like a path is a folder and never a hub
    repository, so that a mistyped path cannot fetch a stranger's model. Raises `BadInput` for a path that is
    missing or no folder, and for what is no hub name either.
    """
    if name == DRAFT_ALIAS and role == "target":
        raise BadInput(
            f"target '{name}' has no embedding and output head of its own: it can only be a draft",
            hint=f"its target is --target {TARGET_ALIAS}",
        )
    if name in ALIASES:
        return Source(role, name, "alias")
    source = Source(role, name, "folder")
    path = Path(os.path.expanduser(name))
    if name and path.is_dir():
        return source
    if name and path.exists():
        raise BadInput(f"{source} is a file; a model is a folder with config.json, tokenizer and weights")
    if name[:1] in (".", "/", "~") or "\\" in name or name.count("/") > 1 or os.path.isabs(name):
        nowhere = None if path.parent.is_dir() else f"there is no folder '{path.parent}' either"
        raise BadInput(f"{source} is a path that does not exist", hint=_close_paths(name, path) or nowhere)
    if not hub.is_name(name):
        raise BadInput(
            f"{source} is no alias ({', '.join(ALIASES)}), no folder, and not a possible name on the hub",
            hint=_close_aliases(name),
        )
    return Source(role, name, "hub")


def plain_name(model: str) -> str:
    """A model's name as part of a file name: the last part of a path or hub id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.rstrip("/").rpartition("/")[2]).strip("-.") or "model"


def fetch_description(source: Source, announce: Announce) -> Path:
    """The folder with the model's config and tokenizer; a hub repository's weights are not fetched yet.

    Raises `BadInput` or `SequoiaError` where they cannot be fetched.
    """
    if source.name == TARGET_ALIAS:
        return smollm2.folder(announce)
    if source.name == DRAFT_ALIAS:
        return package_data("drafts", DRAFT_ALIAS)
    if source.kind == "folder":
        return Path(os.path.expanduser(source.name))
    meant = _close_aliases(source.name) or _close_paths(source.name, Path(source.name))
    return hub.fetch(source.name, hub.DESCRIPTION, str(source), hint=meant)


def fetch_weights(source: Source, files: list[str], announce: Announce) -> None:
    """Make sure that a hub repository's weight files are here; nothing to do for folders."""
    if source.kind == "hub":
        announce(f"fetching the weights of {source} where the cache lacks them")
        hub.fetch(source.name, files, str(source))


def _close_paths(name: str, path: Path) -> str | None:
    try:
        siblings = [sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()]
    except OSError:
        return None
    close = difflib.get_close_matches(path.name, siblings, n=3)
    prefix = name[: len(name) - len(path.name)] if name.endswith(path.name) else f"{path.parent}{os.sep}"
    return f"did you mean {' or '.join(prefix + sibling for sibling in close)}?" if close else None


def _close_aliases(name: str) -> str | None:
    close = difflib.get_close_matches(name, ALIASES, n=1)
    return f"did you mean '{close[0]}'?" if close else None
