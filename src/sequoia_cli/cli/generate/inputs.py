"""Which tree and which prompts `sequoia generate` works with."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Sequence

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.options import DEFAULT_DRAFT
from sequoia_cli.cli.prompts import read_rows
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.paths import latest, shipped
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.prompts import Prompt

#: The tree for a machine on which none was compiled yet: the default pair's, measured on a CPU.
SHIPPED_TREE = "smollm2_cpu.json"


def read_tree(path: str | None, say: Commentary) -> TreePlan:
    """Read the tree file given, else the one compiled last here, else the shipped one; says which."""
    if path is None:
        found = latest("tree")
        if found is not None:
            say.note(f"tree: {found}, the one compiled last on this machine")
        else:
            found = shipped("trees", SHIPPED_TREE)
            say.note(f"tree: {found.name}, shipped and not made for this machine; sequoia compile makes one")
        path = str(found)
    plan = TreePlan.from_document(read_document(path))
    if plan.tree.size == 1:
        say.note("this plan says not to speculate: plain decoding")
    return plan


def distinct_drafts(names: Sequence[str] | None) -> list[str]:
    """The drafts asked for, else the default one. Raises `BadInput` where one is named twice."""
    drafts = list(names or [DEFAULT_DRAFT])
    if twice := [name for name in drafts if drafts.count(name) > 1]:
        raise BadInput(
            f"--draft names {twice[0]} twice; different models are expected",
            hint="a tree with more children asks one draft for more proposals",
        )
    return drafts


def read_prompts(
    texts: Sequence[str] | None,
    source: str | None,
    builtin: bool,
    column: str | None,
    limit: int | None,
    say: Commentary,
    *,
    skip: int | None = None,
    skip_bad: bool,
    stdin_taken: bool,
) -> tuple[Prompt, ...]:
    """The prompts from one of their places; two places at once are refused, so that none is dropped."""
    if limit is not None and limit < 1:
        raise BadInput(f"--limit is {limit}; at least 1 is needed")
    if skip is not None and skip < 0:
        raise BadInput(f"--skip is {skip}; at least 0 is needed")
    given = [
        name for name, there in (("--prompt", texts), ("--prompts", source), ("--builtin", builtin)) if there
    ]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} both give prompts; one is expected")
    for flag, there in {
        "--column names a key": column is not None,
        "--skip leaves out rows": skip is not None,
        "--skip-bad is about rows": skip_bad,
    }.items():
        if there and not (source or builtin):
            raise BadInput(f"{flag} of a file, and no --prompts is given")
    reads_stdin = not given or source == "-"
    if stdin_taken and reads_stdin:
        raise BadInput("--tree - reads stdin, so the prompt has to come from --prompt or a file")
    if not reads_stdin and not stdin_taken and stdin_holds_text():
        raise BadInput(
            f"text was piped in, and {given[0]} is given too; one is expected",
            hint="in a loop over lines of stdin, give the command its own: </dev/null",
        )
    if texts:
        return tuple(Prompt(str(number), text) for number, text in enumerate(texts, 1))[:limit]
    if given:
        return read_rows(source, say, limit=limit, skip=skip, column=column, skip_bad=skip_bad).prompts
    if sys.stdin is None or sys.stdin.isatty():
        raise BadInput("no prompt", hint='give one with --prompt "...", --prompts FILE, or pipe it in')
    # A shell on Windows begins what it pipes with a byte order mark and ends lines with CRLF.
    text = sys.stdin.buffer.read().decode("utf-8-sig", errors="surrogateescape")
    text = text.replace("\r\n", "\n").rstrip("\n")
    if not text.strip():
        raise BadInput("stdin is empty; it was to be the prompt", hint='give one with --prompt "..."')
    return (Prompt("1", text),)


def stdin_holds_text() -> bool:
    """Whether something was piped or redirected in; never waits for a writer that may not come."""
    try:
        if sys.stdin.isatty():
            return False
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if stat.S_ISREG(mode):
            return os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR) < os.fstat(sys.stdin.fileno()).st_size
        if stat.S_ISFIFO(mode) and select.select([sys.stdin], [], [], 0)[0]:
            return bool(sys.stdin.buffer.peek(1))  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        pass  # no usable stdin, as under some launchers
    return False
