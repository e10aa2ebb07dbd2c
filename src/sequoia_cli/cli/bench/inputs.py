"""The inputs of `sequoia bench`: engines, their interpreters, prompts and files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.bench.target import TargetDescription
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.core.plan import TreePlan
    from sequoia_cli.measure.prompts import PromptSet


def chosen_engines(given: str | None, known: Sequence[str]) -> list[str]:
    """The engines named in --engines, by default all. Raises `BadInput` for an unknown one."""
    if given is None:
        return list(known)
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            raise BadInput(f"--engines names '{name}'; expected some of {', '.join(known)}")
    if len(set(names)) < len(names):
        raise BadInput("--engines names an engine twice")
    return names


def smallest_context(
    described: TargetDescription, assistant: str, engines: Sequence[str], trust_remote_code: bool
) -> int:
    """The most tokens of a text that all engines can handle: the smaller context of target and assistant.

    Drafts of this engine do not matter: it continues without a draft whose context is full.
    """
    from sequoia_cli.bench.target import assistant_context

    own = assistant_context(assistant, trust_remote_code) if "assisted" in engines else None
    return described.context_limit if own is None else min(own, described.context_limit)


def prompts_that_fit(
    prompts: PromptSet,
    described: TargetDescription,
    context: int,
    new_tokens: int,
    say: Commentary,
) -> tuple[PromptSet, tuple[tuple[int, ...], ...], list[str]]:
    """The prompts that fit into `context` with their answers, their ids, and the names of those that do not.

    Raises `BadInput` if no prompt fits.
    """
    encoded = list(zip(prompts.prompts, described.encode(prompts.prompts), strict=True))
    room = context - new_tokens
    fitting = [(prompt, ids) for prompt, ids in encoded if len(ids) <= room]
    beyond = [(prompt, ids) for prompt, ids in encoded if len(ids) > room]
    named = ", ".join(f"prompt {prompt.id} ({len(ids)} tokens)" for prompt, ids in beyond)
    reason = f"with {new_tokens} new tokens they exceed the smallest context, {context} tokens"
    if not fitting:
        raise BadInput(
            f"no prompt of {prompts.name} fits: {named}; {reason}", hint="give fewer --max-new-tokens"
        )
    if beyond:
        say.note(f"left out for all engines: {named}; {reason}")
    kept = replace(prompts, prompts=tuple(prompt for prompt, _ in fitting))
    return kept, tuple(ids for _, ids in fitting), [prompt.id for prompt, _ in beyond]


def interpreters(given: Sequence[str], engines: Sequence[str]) -> dict[str, str]:
    """Interpreters by engine, from --python ENGINE=PATH; one serves all engines of the same package.

    Raises `BadInput` for anything else.
    """
    from sequoia_cli.bench.engines import ENGINES

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
    shared = {ENGINES[engine].needs: program for engine, program in found.items() if ENGINES[engine].needs}
    return {name: shared[ENGINES[name].needs] for name in engines if ENGINES[name].needs in shared} | found


def gguf_file(
    given: str | None, target: str, engines: Sequence[str], pythons: Mapping[str, str], say: Commentary
) -> str | None:
    """The target as GGUF: the given file, else the default target's if an engine that runs reads GGUF."""
    from sequoia_cli.bench.engines import ENGINES

    if given is not None:
        if not Path(given).is_file():
            raise BadInput(f"--gguf is '{given}', which is not a file")
        return str(Path(given).resolve())
    readers = [name for name in engines if ENGINES[name].reads_gguf]
    if target != options.DEFAULT_TARGET or not any(n in pythons or ENGINES[n].installed for n in readers):
        return None
    from sequoia_cli.engine.loading import smollm2

    return str(smollm2.gguf(say.note))


def best_chain(plan: TreePlan) -> int:
    """The number of nodes of the best chain in a plan; 1 if it has none."""
    if plan.tree.is_chain:
        return plan.tree.size
    sizes = [entry["size"] for entry in plan.runners_up if entry.get("shape") == "chain"]
    return int(sizes[0]) if sizes else 1
