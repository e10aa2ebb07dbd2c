"""Which engines `sequoia bench` runs, with which interpreters, and on what work."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.core.plan import TreePlan


def chosen_engines(given: str | None, known: Sequence[str]) -> list[str]:
    """The engines named in --engines, all without it. Raises `BadInput` for an unknown one."""
    if given is None:
        return list(known)
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            raise BadInput(f"--engines names '{name}'; expected some of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise BadInput("--engines names an engine twice")
    return names


def interpreters(given: Sequence[str], engines: Sequence[str]) -> dict[str, str]:
    """Programs by engine, from --python ENGINE=PATH. Raises `BadInput` for what is none."""
    found = {}
    for entry in given:
        engine, equals, path = entry.partition("=")
        if not equals or engine not in engines:
            raise BadInput(
                f"--python is '{entry}'; expected ENGINE=PATH with an engine of {', '.join(engines)}"
            )
        program = shutil.which(os.path.expanduser(path))
        if program is None:
            raise BadInput(
                f"--python {engine}: there is no program '{path}'",
                hint=f"a virtual environment that has {engine} has one as bin/python",
            )
        found[engine] = program
    return found


def gguf_file(
    given: str | None, target: str, engines: Sequence[str], pythons: Mapping[str, str], say: Commentary
) -> str | None:
    """The target as GGUF: the file given, else the default target's where an engine that runs reads it."""
    from sequoia_cli.bench.engines import ENGINES

    if given is not None:
        if not Path(given).is_file():
            raise BadInput(f"--gguf is '{given}', which is no file")
        return str(Path(given).resolve())
    readers = [name for name in engines if ENGINES[name].reads_gguf]
    if target != options.DEFAULT_TARGET or not any(n in pythons or ENGINES[n].installed for n in readers):
        return None
    from sequoia_cli.engine.loading import smollm2

    return str(smollm2.gguf(say.note))


def best_chain(plan: TreePlan) -> int:
    """Nodes of the best chain that the compiler found beside its choice; 1 where it noted none."""
    if plan.tree.is_chain:
        return plan.tree.size
    sizes = [entry["size"] for entry in plan.runners_up if entry.get("shape") == "chain"]
    return int(sizes[0]) if sizes else 1
