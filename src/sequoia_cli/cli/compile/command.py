"""`sequoia compile`: a hardware profile and acceptance rates in, the fastest tree out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_cli.cli import options
from sequoia_cli.cli.compile.limits import DEFAULT_BRANCH, DEFAULT_DEPTH

if TYPE_CHECKING:
    from sequoia_cli.cli.compile.inputs import Inputs
    from sequoia_cli.compiler.result import Choice, Confidence
    from sequoia_cli.core.plan import TreePlan

#: Left out of the command that a plan records: it has the digests of its inputs, wherever they lay, so that
#: equal inputs give equal bytes.
_INPUTS = ("profile", "acceptance")


@dataclass(frozen=True)
class Sources:
    """Options of what is compiled from."""

    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PATH|-",
            help="Hardware profile; else the one measured last here, else the shipped A100.",
        ),
    ] = None
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            metavar="PATH|-",
            help="Acceptance rates; else those measured last here, else the shipped ones.",
        ),
    ] = None
    at_context: Annotated[
        int | None,
        typer.Option(
            "--context",
            help="Tokens before the tree, between those that the profile has times of; else its shortest.",
        ),
    ] = None


@options.with_groups
def compile_command(
    context: typer.Context,
    *,
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
    shape: Annotated[
        str,
        typer.Option(
            "--shape",
            metavar="SHAPE",
            help="sequoia finds the best tree. Or a baseline, whose numbers leave the root out: chain:8 is "
            "8 tokens in a row, kchains:5x8 5 chains of 8, kary:2x6 6 full levels of 2 children each, "
            "expansion:1,1,3,1 children by level (SpecInfer).",
        ),
    ] = "sequoia",
    adaptive: Annotated[
        bool,
        typer.Option(
            "--adaptive",
            help="A tree that generate cuts in each step to the part that pays there; needs acceptance rates "
            "that this version has counted.",
        ),
    ] = False,
    sources: Sources,
    written: options.Written,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what was chosen over what, and why (on stderr).")
    ] = False,
    display: options.Display,
) -> None:
    """Find the tree with the least seconds per token for a machine and a model pair.

    Says so when a chain or no speculation is fastest. Needs neither a GPU nor
    the models. With --shape, predicts for a baseline of the papers what it
    predicts for its own tree. Without -o, the tree is written to
    trees/PROFILE_BUDGET.json, or trees/PROFILE_SHAPE.json.

        sequoia compile --budget 128 --explain

        sequoia compile --budget 64 -o - | sequoia generate --tree - --prompt "hi"
    """
    from sequoia_cli.cli.compile.inputs import read_inputs
    from sequoia_cli.cli.compile.limits import (
        announce_tables,
        check_size,
        checked_limits,
        fixed_shape,
    )
    from sequoia_cli.cli.console import print_json
    from sequoia_cli.cli.files import reserved

    limits = checked_limits(budget, max_depth, max_branch, size)
    fixed = fixed_shape(shape, context)
    if adaptive:
        options.refuse_idle(context, "--adaptive chooses trees in each step", "size shape")
    say = display.commentary()
    inputs = read_inputs(sources.profile, sources.acceptance, sources.at_context, say)
    calibration = inputs.calibration() if adaptive else None
    if size is not None and fixed is None:
        check_size(size, limits, inputs)

    from sequoia_cli.compiler.adaptive import adaptive_plan
    from sequoia_cli.compiler.choose import choose
    from sequoia_cli.compiler.confidence import Rechoose, assess
    from sequoia_cli.compiler.fixed import weigh
    from sequoia_cli.core.artifact import render
    from sequoia_cli.core.paths import remember_latest

    what = re.sub("[:,]", "_", shape) if fixed else limits.budget
    path = written.output or f"trees/{inputs.name}_{what}.json"
    target = reserved(context, path, force=written.force, allow_same=True)
    rows = inputs.estimate.rows
    if fixed is None:
        announce_tables(limits, inputs, say)
        choice = choose(inputs.profile, rows, limits, size)
        confidence = assess(choice, inputs.estimate, Rechoose(inputs.profile, limits, size))
        stated = asdict(limits) | ({} if size is None else {"size": size})
    else:
        choice = weigh(inputs.profile, rows, fixed, shape)
        confidence = assess(choice, inputs.estimate)
        stated = {"shape": shape}
    for warning in choice.warnings:
        say.warn(warning)
    made = _plan(context, choice, confidence, inputs, stated)
    if calibration:
        made = adaptive_plan(made, choice, rows, limits, calibration)
    plan = made.to_dict()
    changed = target.write(render(plan, "json"))
    if display.json and not target.is_stdout:
        print_json(plan)
    # A baseline is to be compared with, not what this machine is to use from now on.
    if not target.is_stream and not inputs.shipped and fixed is None:
        remember_latest("tree", target.path)

    from sequoia_cli.cli.compile.report import explanation, summary

    if explain:
        for item in explanation(choice, confidence, rows):
            say.show(item)
    say.note(summary(choice, confidence))
    if calibration:
        say.note(
            f"written: {made.tree.size} nodes in {made.tree.depth} layers, of which each step has a part"
        )
    if not target.is_stdout:
        say.note(f"wrote {target.path}" if changed else f"{target.path} is unchanged")


def _plan(
    context: typer.Context,
    choice: Choice,
    confidence: Confidence,
    inputs: Inputs,
    stated: Mapping[str, Any],
) -> TreePlan:
    """The plan that is written: no time and no place in it, so that equal inputs give equal bytes."""
    from sequoia_cli import __version__
    from sequoia_cli.cli.files import command_line

    record: dict[str, Any] = {"command": command_line(context, _INPUTS), "version": __version__}
    if warnings := [*inputs.warnings, *choice.warnings]:
        record["warnings"] = warnings
    if choice.not_considered:
        record["notes"] = ["not considered: " + reason for reason in choice.not_considered]
    return choice.plan({**inputs.described(), "limits": stated}, record, confidence)
