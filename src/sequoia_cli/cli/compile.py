"""`sequoia compile`: a hardware profile and acceptance rates in, the fastest tree out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.cli.compile_inputs import Inputs
    from sequoia_cli.compiler.choice import Choice
    from sequoia_cli.compiler.choose import Limits

DEFAULT_BUDGET = 64
DEFAULT_DEPTH = 32
DEFAULT_BRANCH = 32
#: Left out of the command that a plan records: it has the digests of its inputs, wherever they lay, so that
#: equal inputs give equal bytes.
_INPUTS = ("profile", "acceptance")
#: Deeper levels and later ranks are hardly ever accepted; the tables of so many would be slow and large.
MAX_DEPTH = 128
MAX_BRANCH = 256


def compile_command(
    context: typer.Context,
    budget: Annotated[
        int | None,
        typer.Option("--budget", "-n", help="Most nodes of the tree, root included; 64 if not given."),
    ] = None,
    max_depth: Annotated[
        int, typer.Option("--max-depth", help="Most layers, root included.")
    ] = DEFAULT_DEPTH,
    max_branch: Annotated[
        int, typer.Option("--max-branch", help="Most children of a node.")
    ] = DEFAULT_BRANCH,
    size: Annotated[
        int | None, typer.Option("--size", help="Exactly so many nodes, even where that is not the fastest.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PATH|-",
            help="Hardware profile; else the one measured last here, else the shipped A100.",
        ),
    ] = None,
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            metavar="PATH|-",
            help="Acceptance rates; else those measured last here, else the shipped ones.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH|-",
            help="Where the tree goes, - is stdout; else trees/<profile>_<budget>.json.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output file.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what was chosen over what, and why (on stderr).")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON document.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No commentary on stderr.")] = False,
    no_progress: Annotated[
        bool, typer.Option("--no-progress", help="Accepted for uniformity: compiling shows no bars.")
    ] = False,
) -> None:
    """Find the tree with the least seconds per token for a machine and a model pair.

    Says so when a chain or no speculation is fastest. Needs neither a GPU nor
    the models.

        sequoia compile --budget 128 --explain

        sequoia compile --budget 64 -o - | sequoia generate --tree - --prompt "hi"
    """
    from sequoia_cli.cli.compile_inputs import read_inputs
    from sequoia_cli.cli.console import Commentary

    limits = _checked_limits(budget, max_depth, max_branch, size)
    say = Commentary(quiet=quiet, progress=not no_progress)
    inputs = read_inputs(profile, acceptance, say)
    _check_size(size, limits, inputs)

    from sequoia_cli.compiler.choose import choose
    from sequoia_cli.core.artifact import Output, render
    from sequoia_cli.core.paths import remember_latest

    nodes = limits.budget if size is None else size
    target = Output(output or f"trees/{inputs.name}_{nodes}.json", force=force, allow_same=True)
    choice = choose(inputs.profile, inputs.rates.p, limits, size)
    for warning in choice.warnings:
        say.warn(warning)
    text = render(_plan(context, choice, inputs, limits, size), "json")
    written = target.write(text)
    if json and not target.is_stdout:
        typer.echo(text, nl=False)
    if not target.is_stdout and not inputs.shipped:
        remember_latest("tree", target.path)

    from sequoia_cli.cli.compile_report import explanation, summary

    if explain:
        for item in explanation(choice, inputs.rates.p):
            say.show(item)
    say.note(summary(choice))
    if not target.is_stdout:
        say.note(f"wrote {target.path}" if written else f"{target.path} is unchanged")


def _checked_limits(budget: int | None, max_depth: int, max_branch: int, size: int | None) -> Limits:
    """The limits, each within what is allowed."""
    from sequoia_cli.compiler.choose import Limits
    from sequoia_cli.compiler.tables import MAX_SIZE

    for flag, value, most in (
        ("--budget", budget, MAX_SIZE),
        ("--size", size, MAX_SIZE),
        ("--max-depth", max_depth, MAX_DEPTH),
        ("--max-branch", max_branch, MAX_BRANCH),
    ):
        if value is not None and not 1 <= value <= most:
            raise BadInput(f"{flag} {value} is out of range; 1 to {most} is allowed")
    if size is not None and budget is not None and size > budget:
        raise BadInput(f"--size {size} is above --budget {budget}; leave --budget out to force a size")
    return Limits(size or budget or DEFAULT_BUDGET, max_depth, max_branch)


def _check_size(size: int | None, limits: Limits, inputs: Inputs) -> None:
    """A forced size has to lie within the profile's times and fit into the limits."""
    from sequoia_cli.compiler.best import largest_tree
    from sequoia_cli.compiler.cost import largest_size

    if size is None:
        return
    covered = largest_size(inputs.profile)
    if covered is not None and size > covered:
        raise BadInput(f"--size {size} is beyond the profile, whose times end at {covered} tokens")
    reachable = largest_tree(inputs.rates.p, limits.max_depth, limits.max_branch)
    if size > reachable:
        raise BadInput(
            f"--size {size} is out of reach: {limits.max_depth} layers hold at most {reachable} nodes here",
            hint="raise --max-depth or --max-branch, or give rates for more ranks",
        )


def _plan(
    context: typer.Context, choice: Choice, inputs: Inputs, limits: Limits, size: int | None
) -> dict[str, Any]:
    """The document that is written: no time and no place in it, so that equal inputs give equal bytes."""
    from sequoia_cli import __version__
    from sequoia_cli.cli.files import command_line

    record: dict[str, Any] = {"command": command_line(context, _INPUTS), "version": __version__}
    if warnings := [*inputs.warnings, *choice.warnings]:
        record["warnings"] = warnings
    if choice.not_considered:
        record["notes"] = ["not considered: " + reason for reason in choice.not_considered]
    stated = {"budget": limits.budget, "max_depth": limits.max_depth, "max_branch": limits.max_branch}
    if size is not None:
        stated["size"] = size
    return choice.plan({**inputs.described(), "limits": stated}, record).to_dict()
