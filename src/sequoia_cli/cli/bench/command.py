"""`sequoia bench`: parse, run the comparison, render."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput, CheckFailed

if TYPE_CHECKING:
    from sequoia_cli.bench.runner import Outcome
    from sequoia_cli.bench.workload import Workload
    from sequoia_cli.cli.console import Commentary

#: The engine that ratios refer to.
BASELINE = "transformers"


@dataclass(frozen=True)
class Rows:
    """Options of the prompts that engines continue."""

    prompts: Annotated[
        str | None,
        typer.Option(
            "--prompts",
            metavar="SOURCE",
            help="Prompts, as in acceptance; else the built-in ones that trees are not compiled on.",
        ),
    ] = None
    column: options.Column = None
    limit: Annotated[int, typer.Option("--limit", help="Use N prompts; below 6 there are no intervals.")] = 8
    skip: options.Skip = None
    skip_bad: options.SkipBad = False


@dataclass(frozen=True)
class Draws:
    """Options of how all engines draw tokens."""

    temperature: options.Temperature = 0.0
    top_k: options.TopK = 0
    top_p: options.TopP = 1.0
    verifier: options.Verifier = options.DEFAULT_VERIFIER
    seed: options.Seed = 0


@dataclass(frozen=True)
class Competition:
    """Options of the engines that run."""

    engines: Annotated[
        str | None, typer.Option("--engines", metavar="A,B", help="Only these; else all that run here.")
    ] = None
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="ENGINE", help="The engine that ratios refer to.")
    ] = BASELINE
    gguf: Annotated[
        str | None,
        typer.Option(
            "--gguf",
            metavar="PATH",
            help="The target for engines that read GGUF; the default target was published as such a file, "
            "and the other engines load the same values.",
        ),
    ] = None
    assistant: Annotated[
        str | None,
        typer.Option(
            "--assistant", metavar="MODEL", help="Draft for assisted generation; else the first --draft."
        ),
    ] = None
    python: Annotated[
        list[str] | None,
        typer.Option(
            "--python",
            metavar="ENGINE=PATH",
            help="Run an engine, and others of its package, with another interpreter.",
        ),
    ] = None


@options.with_groups
def bench_command(
    context: typer.Context,
    *,
    tree: options.Tree = None,
    competition: Competition,
    rows: Rows,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Most tokens of each text.")
    ] = 64,
    rounds: Annotated[int, typer.Option("--rounds", help="Repetitions of each prompt per engine.")] = 3,
    draws: Draws,
    scaling: Annotated[
        bool,
        typer.Option("--scaling", help="Measure instead how time and memory grow with prompt and tree."),
    ] = False,
    draft: options.Drafts = None,
    models: options.Models,
    written: options.Written,
    display: options.Display,
) -> None:
    """Compare this engine with others, each in its own process.

    All get the same prompts, budget, seeds and ends of text, and take turns, so
    that a slow minute of the machine affects all of them. Loading and prefill
    are reported separately from decoding speed. Engines that are not installed
    are named and skipped, as are prompts too long for one of them. Unless
    --prompts or --skip are given, the prompts are not those that trees are
    compiled on.

        sequoia bench --limit 8 --max-new-tokens 64 -o bench.yaml

        sequoia bench --scaling --rounds 1
    """
    from sequoia_cli.bench.engines import ENGINES
    from sequoia_cli.cli.bench import report
    from sequoia_cli.cli.bench import scaling as scaling_report
    from sequoia_cli.cli.bench.inputs import (
        best_chain,
        chosen_engines,
        gguf_file,
        interpreters,
        prompts_that_fit,
        smallest_context,
    )
    from sequoia_cli.cli.console import print_json
    from sequoia_cli.cli.files import publish, record, reserved
    from sequoia_cli.cli.generate.inputs import distinct_drafts, read_tree
    from sequoia_cli.cli.prompts import read_rows
    from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING

    say = display.commentary()
    options.at_least(
        {
            "--limit": (rows.limit, 1),
            "--skip": (rows.skip, 0),
            "--max-new-tokens": (max_new_tokens, 2),
            "--rounds": (rounds, 1),
        }
    )
    names = chosen_engines(
        competition.engines or (scaling_report.DEFAULT_ENGINES if scaling else None), list(ENGINES)
    )
    if scaling:
        options.refuse_idle(
            context,
            "--scaling uses its own prompts, of many lengths, and no baseline",
            "prompts column limit skip skip_bad baseline",
        )
    if not scaling and competition.baseline not in names:
        raise BadInput(f"--baseline is {competition.baseline}; expected one of {', '.join(names)}")
    pythons = interpreters(competition.python or [], list(ENGINES))
    for used, reason, flag in (
        (any(ENGINES[name].reads_gguf for name in names), "none of these engines reads GGUF", "gguf"),
        ("assisted" in names, "none of these engines takes an assistant", "assistant"),
        (bool(pythons.keys() & set(names)), "no engine of --python runs", "python"),
    ):
        if not used:
            options.refuse_idle(context, f"{reason} ({', '.join(names)})", flag)
    path = written.output
    place = reserved(context, path, force=written.force) if path is not None else None
    plan = read_tree(tree, say)
    first = rows.skip if rows.skip is not None else BUILTIN_FOR_COMPILING if rows.prompts is None else 0
    selected = None
    if not scaling:
        selected = read_rows(
            rows.prompts, say, limit=rows.limit, skip=first, column=rows.column, skip_bad=rows.skip_bad
        )
    sampling, _ = options.samplings(
        draws.temperature, draws.top_k, draws.top_p, None, draws.seed, say, draws.verifier
    )
    from sequoia_cli.bench.target import describe_target
    from sequoia_cli.bench.workload import Workload
    from sequoia_cli.engine.loading.cores import fitting_threads
    from sequoia_cli.engine.verification.verifiers import verifier_named

    drafts = tuple(distinct_drafts(draft))
    verifier_named(draws.verifier).check_drafts(len(drafts))
    described = describe_target(models.target, models.trust_remote_code, say.note)
    encoded: tuple[tuple[int, ...], ...] = ()
    left_out: list[str] = []
    if selected is not None:
        most = smallest_context(
            described, competition.assistant or drafts[0], names, models.trust_remote_code
        )
        selected, encoded, left_out = prompts_that_fit(selected, described, most, max_new_tokens, say)
    work = Workload(
        target=models.target,
        folder=described.folder,
        drafts=drafts,
        device=models.device,
        dtype=models.dtype,
        prompts=encoded,
        eos_ids=described.eos_ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=draws.seed,
        threads=models.threads or fitting_threads(),
        tree=plan.tree.parents,
        chain=best_chain(plan),
        gguf=gguf_file(competition.gguf, models.target, names, pythons, say),
        assistant=competition.assistant,
        trust_remote_code=models.trust_remote_code,
        forward=models.forward,
        quantize=models.quantize,
        quantize_draft=models.quantize if models.quantize_draft is None else models.quantize_draft,
        verifier=draws.verifier,
    )
    if selected is None:
        grown, interrupted = scaling_report.measure(names, work, described, rounds, pythons, say)
        outcomes = [point.outcome for point in grown]
        found: dict[str, Any] = {"scaling": scaling_report.document(grown)}
        shown = [scaling_report.table(grown)]
    else:
        outcomes, interrupted = _compare(names, work, rounds, pythons, say)
        summarised = report.summarised(outcomes, competition.baseline)
        found = report.document(summarised, selected, left_out, competition.baseline)
        shown = report.tables(summarised, len(selected.prompts), competition.baseline)
    for table in shown:
        say.show(table)
    for line in [*report.missing(outcomes), *report.footnotes(outcomes, models.target, competition.gguf)]:
        say.note(line)
    packages = {key: value for outcome in outcomes for key, value in outcome.packages.items()}
    data = {**report.header(work, rounds), **found, **record(context, packages, say.warnings)}
    if place is not None:
        publish(None, data, place, display.json, say)
    elif display.json:
        print_json(data)
    if interrupted:
        raise KeyboardInterrupt
    if failed := [f"{outcome.engine} ({outcome.failed})" for outcome in outcomes if outcome.failed]:
        raise CheckFailed(f"not all engines ran to the end: {'; '.join(failed)}")


def _compare(
    names: list[str], work: Workload, rounds: int, pythons: dict[str, str], say: Commentary
) -> tuple[list[Outcome], bool]:
    """The outcomes, and whether an interrupt cut them short."""
    from sequoia_cli.bench.runner import Interrupted, compare

    with say.progress() as bar:
        task = bar.add_task(
            "engines", total=len(names) * (1 + len(work.warm_up) + rounds * len(work.prompts))
        )

        def show(what: str) -> None:
            bar.update(task, description=what, advance=1)

        try:
            return compare(names, work, rounds, show, pythons), False
        except Interrupted as interruption:
            return interruption.outcomes, True
