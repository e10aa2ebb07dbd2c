"""`sequoia bench`: this engine and what users would pick instead, on the same prompts, by turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput, CheckFailed

if TYPE_CHECKING:
    from sequoia_cli.bench.runner import Outcome
    from sequoia_cli.bench.work import Work
    from sequoia_cli.cli.console import Commentary

#: The engine whose speed is 1 in the table.
BASELINE = "transformers"


def bench_command(
    context: typer.Context,
    tree: Annotated[
        str | None,
        typer.Option("--tree", metavar="PATH|-", help="Compiled tree; else the one compiled last here."),
    ] = None,
    engines: Annotated[
        str | None, typer.Option("--engines", metavar="A,B", help="Only these; else all that run here.")
    ] = None,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="ENGINE", help="The engine whose speed is 1.")
    ] = BASELINE,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="SOURCE", help="As acceptance takes them; else the built-in ones."),
    ] = None,
    column: Annotated[str | None, typer.Option("--column", help="Key that holds the prompt.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Use the first N prompts.")] = 8,
    skip_bad: options.SkipBad = False,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Most tokens of each text.")
    ] = 64,
    rounds: Annotated[int, typer.Option("--rounds", help="Times that each engine has each prompt.")] = 3,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    verifier: options.Verifier = options.DEFAULT_VERIFIER,
    seed: options.Seed = 0,
    scaling: Annotated[
        bool,
        typer.Option("--scaling", help="Instead: how time and memory grow with the prompt and the tree."),
    ] = False,
    gguf: Annotated[
        str | None,
        typer.Option(
            "--gguf",
            metavar="PATH",
            help="The target for engines that read GGUF; the default target has one.",
        ),
    ] = None,
    assistant: Annotated[
        str | None,
        typer.Option("--assistant", metavar="MODEL", help="Draft for assisted generation; else --draft."),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option("--python", metavar="ENGINE=PATH", help="Run an engine with another interpreter."),
    ] = None,
    target: options.Target = options.DEFAULT_TARGET,
    draft: options.Drafts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    forward: options.Forward = options.DEFAULT_FORWARD,
    quantize: options.Quantize = "none",
    quantize_draft: options.QuantizeDraft = "none",
    trust_remote_code: options.TrustRemoteCode = False,
    output: options.Output = None,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Compare this engine with others, each in a process of its own.

    All have the same prompts, budget and ends of text, and take turns, so that a
    slow minute of the machine hits all of them. Loading and prefill are reported
    beside the speeds, not in them. Engines that are not installed are named and left out.

        sequoia bench --limit 8 --max-new-tokens 64 -o bench.yaml

        sequoia bench --scaling --rounds 1
    """
    from sequoia_cli.bench.engines import ENGINES
    from sequoia_cli.cli import bench_report, bench_scaling
    from sequoia_cli.cli.bench_inputs import best_chain, chosen_engines, gguf_file, interpreters
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.cli.files import publish, record
    from sequoia_cli.cli.generate_inputs import distinct_drafts, read_tree
    from sequoia_cli.core.artifact import Output, render
    from sequoia_cli.measure.prompts import load_prompts

    say = Commentary(quiet=quiet, progress=not no_progress)
    options.at_least(
        {"--limit": (limit, 1), "--max-new-tokens": (max_new_tokens, 2), "--rounds": (rounds, 1)}
    )
    names = chosen_engines(engines or (bench_scaling.DEFAULT_ENGINES if scaling else None), list(ENGINES))
    if scaling:
        options.refuse_idle(
            context,
            "--scaling has prompts of its own, of many lengths, and no baseline",
            "prompts column limit skip_bad baseline",
        )
    if not scaling and baseline not in names:
        raise BadInput(f"--baseline is {baseline}; expected one of {', '.join(names)}")
    pythons = interpreters(python or [], list(ENGINES))
    for used, reason, flag in (
        (any(ENGINES[name].reads_gguf for name in names), "none of these engines reads GGUF", "gguf"),
        ("assisted" in names, "none of these engines takes an assistant", "assistant"),
        (pythons.keys() <= set(names), "an engine of --python is none of these", "python"),
    ):
        if not used:
            options.refuse_idle(context, f"{reason} ({', '.join(names)})", flag)
    place = Output(output, force=force) if output is not None else None
    plan = read_tree(tree, say)
    asked = None if scaling else load_prompts(prompts, limit=limit, column=column, skip_bad=skip_bad)
    if asked is not None:
        say.notes(asked.notes)
    sampling, _ = options.samplings(temperature, top_k, top_p, None, seed, say, verifier)
    import torch

    from sequoia_cli.bench.prompts import describe_target
    from sequoia_cli.bench.work import Work
    from sequoia_cli.engine.verifiers import verifier_named

    drafts = tuple(distinct_drafts(draft))
    verifier_named(verifier).check_drafts(len(drafts))
    described = describe_target(target, trust_remote_code, say.note)
    work = Work(
        target=target,
        folder=described.folder,
        drafts=drafts,
        device=device,
        dtype=dtype,
        prompts=described.encode(asked.prompts) if asked else (),
        eos_ids=described.eos_ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        seed=seed,
        threads=torch.get_num_threads(),
        tree=plan.tree.parents,
        chain=best_chain(plan),
        gguf=gguf_file(gguf, target, names, pythons, say),
        assistant=assistant,
        trust_remote_code=trust_remote_code,
        forward=forward,
        quantize=quantize,
        quantize_draft=quantize_draft,
        verifier=verifier,
    )
    if asked is None:
        grown, interrupted = bench_scaling.measure(names, work, described, rounds, pythons, say)
        outcomes = [point.outcome for point in grown]
        found: dict[str, Any] = {"scaling": bench_scaling.document(grown)}
        shown = [bench_scaling.table(grown)]
    else:
        outcomes, interrupted = _compare(names, work, rounds, pythons, say)
        rows = bench_report.summarised(outcomes, baseline)
        found = bench_report.document(rows, asked, baseline)
        shown = bench_report.tables(rows, len(asked.prompts), baseline)
    for table in shown:
        say.show(table)
    for line in bench_report.missing(outcomes):
        say.note(line)
    packages = {key: value for outcome in outcomes for key, value in outcome.packages.items()}
    data = {**bench_report.header(work, rounds), **found, **record(context, packages, say.warnings)}
    if place is not None:
        publish(None, data, place, json, say)
    elif json:
        typer.echo(render(data, "json"), nl=False)
    if interrupted:
        raise KeyboardInterrupt
    if failed := [f"{outcome.engine} ({outcome.failed})" for outcome in outcomes if outcome.failed]:
        raise CheckFailed(f"not all engines ran to the end: {'; '.join(failed)}")


def _compare(
    names: list[str], work: Work, rounds: int, pythons: dict[str, str], say: Commentary
) -> tuple[list[Outcome], bool]:
    """The outcomes, and whether an interruption cut them short."""
    from sequoia_cli.bench.runner import Interrupted, compare

    with say.progress() as bar:
        task = bar.add_task("engines", total=len(names) * (1 + rounds * len(work.prompts)))

        def show(what: str) -> None:
            bar.update(task, description=what, advance=1)

        try:
            return compare(names, work, rounds, show, pythons), False
        except Interrupted as interruption:
            return interruption.outcomes, True
