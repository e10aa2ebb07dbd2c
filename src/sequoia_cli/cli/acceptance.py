"""`sequoia acceptance`: how often the target accepts the draft's token of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput, memory_for

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.core.counts import PromptCounts
    from sequoia_cli.core.journal import Journal
    from sequoia_cli.core.rates import AcceptanceRates
    from sequoia_cli.measure.encoded_prompts import EncodedPrompt

ESTIMATORS = ("teacher-forced", "on-policy")


@dataclass(frozen=True)
class Rows:
    """Options of the prompts that are measured on."""

    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="SOURCE",
            help="Prompts: a jsonl, json or text file, a folder, - for stdin, or a Hugging Face dataset "
            "(owner/name[:split]); else the built-in set.",
        ),
    ] = None
    column: Annotated[
        str | None, typer.Option("--column", help="Key that holds the prompt; else the first known one.")
    ] = None
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            help="Use the first N prompts; else all of a dataset, or the first 32 built-in ones.",
        ),
    ] = None
    skip: options.Skip = None
    skip_bad: options.SkipBad = False
    raw: options.Raw = False


@dataclass(frozen=True)
class Estimate:
    """Options of what is estimated."""

    estimator: Annotated[
        str, typer.Option("--estimator", help="teacher-forced (exact probabilities) or on-policy (samples).")
    ] = ESTIMATORS[0]
    ranks: Annotated[int, typer.Option("--ranks", help="Children of a node.")] = 16
    depths: Annotated[int, typer.Option("--depths", help="Levels below the root with separate rates.")] = 6
    new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Tokens of each text.")] = 64


@options.with_groups
def acceptance_command(
    context: typer.Context,
    *,
    draft: options.Draft = options.DEFAULT_DRAFT,
    rows: Rows,
    estimate: Estimate,
    temperature: options.Temperature = 0.0,
    draws: options.Draws,
    merge: Annotated[
        list[str] | None,
        typer.Option("--merge", metavar="PATH", help="Add up rates files (repeat it) instead of measuring."),
    ] = None,
    models: options.Models,
    written: options.Written,
    display: options.Display,
) -> None:
    """Measure acceptance rates by child rank and depth on real prompts.

    Counts are saved prompt by prompt: an interrupted run resumes where it stopped,
    and runs over different prompts can be merged.

        sequoia acceptance --dataset prompts.jsonl --temperature 0.6

        sequoia acceptance --merge a.yaml --merge b.yaml -o both.yaml
    """
    from sequoia_cli.cli.files import publish, record, reserved, resumable

    say = display.commentary()
    if merge:
        kept = {"merge", "output", "force", "json", "quiet", "no_progress"}
        options.refuse_idle(
            context,
            "--merge adds up files and measures nothing",
            " ".join(name for name in context.params if name not in kept),
        )
        place = reserved(context, written.output or "profiles/merged_rates.yaml", force=written.force)
        result = _merged(merge, say)
        result = replace(result, record=record(context, {}, say.warnings))
        publish("acceptance", result.to_dict(), place, display.json, say)
        _show(result, say)
        return
    _check(estimate.estimator, rows.limit, rows.skip, estimate.ranks, estimate.depths, estimate.new_tokens)
    if estimate.estimator == ESTIMATORS[1] and estimate.depths > 1:
        options.refuse_idle(context, "--estimator on-policy measures the root's children alone", "depths")
    if rows.dataset is None:
        options.refuse_idle(context, "--column names a key of a --dataset, which is not given", "column")

    from sequoia_cli.cli.prompts import encoded, read_rows
    from sequoia_cli.core.rates import AcceptanceRates
    from sequoia_cli.engine.loading.sources import plain_name
    from sequoia_cli.engine.verification.verifiers import verifier_named
    from sequoia_cli.measure.acceptance import check_positional
    from sequoia_cli.measure.acceptance_counts import AcceptanceSettings
    from sequoia_cli.measure.encoded_prompts import with_seeds
    from sequoia_cli.measure.prompts import BUILTIN_FOR_COMPILING
    from sequoia_cli.measure.session import packages

    sampling, draft_sampling = draws.samplings(temperature, say)
    settings = AcceptanceSettings(
        sampling,
        draft_sampling,
        estimate.ranks,
        estimate.depths,
        estimate.new_tokens,
        verifier_named(draws.verifier),
    )
    if estimate.estimator == ESTIMATORS[0]:
        check_positional(settings)
    path = written.output or f"profiles/{plain_name(models.target)}_rates.yaml"
    place = reserved(context, path, force=written.force)
    if rows.dataset is None and rows.limit is None and rows.skip is None:
        most = BUILTIN_FOR_COMPILING
        say.note(f"the first {most} built-in prompts; those after them are for results (--skip {most})")
        rows = replace(rows, limit=most)
    prompts = read_rows(
        rows.dataset, say, limit=rows.limit, skip=rows.skip, column=rows.column, skip_bad=rows.skip_bad
    )
    session = models.open([draft], say)
    if estimate.ranks > session.target.vocabulary:
        raise BadInput(f"--ranks is {estimate.ranks}; the target has {session.target.vocabulary} ids")
    usable = encoded(session, prompts.prompts, say, raw=rows.raw, skip_bad=rows.skip_bad)
    prompts = replace(prompts, prompts=tuple(prompt for prompt, _ in usable))
    seeded = with_seeds(usable, draws.seed)
    _check_room(seeded, min(session.target.context_limit, session.drafts[0].context_limit), say)
    conditions = {
        **session.conditions,
        **session.weights,
        "temperature": temperature,
        "top_k": draws.top_k,
        "top_p": draws.top_p,
        "draft_temperature": draft_sampling.temperature,
        "verifier": draws.verifier,
        "estimator": estimate.estimator,
        "max_new_tokens": estimate.new_tokens,
        "chat_template": bool(session.tokenizer.chat_template) and not rows.raw,
        "seed": draws.seed,
        "dataset": {"name": prompts.name, "prompts": len(prompts.prompts), "digest": prompts.digest},
    }
    # Not the dataset: finished prompts are recognised one by one.
    measured = {
        "measure": "acceptance by prompt",
        **{key: value for key, value in conditions.items() if key != "dataset"},
        "ranks": estimate.ranks,
        "depths": estimate.depths,
        **packages(),
    }
    with resumable(place, measured, say, force=written.force) as journal:
        samples = _measure(session, seeded, settings, estimate.estimator, journal, written.force, say)
    result = AcceptanceRates.from_samples(samples, conditions, record(context, packages(), say.warnings))
    publish("acceptance", result.to_dict(), place, display.json, say)
    _show(result, say)


def _check(
    estimator: str, limit: int | None, skip: int | None, ranks: int, depths: int, new_tokens: int
) -> None:
    if estimator not in ESTIMATORS:
        raise BadInput(f"--estimator is '{estimator}'; expected {' or '.join(ESTIMATORS)}")
    # Nothing is drafted for the last token of a text.
    options.at_least(
        {
            "--limit": (limit, 1),
            "--skip": (skip, 0),
            "--ranks": (ranks, 1),
            "--depths": (depths, 1),
            "--max-new-tokens": (new_tokens, 2),
        }
    )
    if depths > new_tokens:
        raise BadInput(f"--depths is {depths}; a text of {new_tokens} tokens is at most {new_tokens} deep")


def _check_room(prompts: Sequence[EncodedPrompt], context: int, say: Commentary) -> None:
    """Warn of prompts too long for the draft to propose anything; refuse if all are."""
    full = sum(len(prompt.ids) >= context for prompt in prompts)
    if full == len(prompts):
        raise BadInput(
            f"every prompt has {context} tokens or more, where the context of target or draft ends",
            hint="give shorter prompts, or a draft with a longer context",
        )
    if full:
        say.warn(
            f"{full} of {len(prompts)} prompts are not counted: they have {context} tokens or more, where "
            "the context of target or draft ends"
        )


def _measure(
    session: Any,
    prompts: Sequence[EncodedPrompt],
    settings: Any,
    estimator: str,
    journal: Journal,
    force: bool,
    say: Commentary,
) -> list[PromptCounts]:
    """Counts of every prompt; those in the journal are not measured again."""
    import torch
    from rich.progress import TextColumn

    from sequoia_cli.core.counts import PromptCounts, pooled_rate
    from sequoia_cli.measure.acceptance import on_policy, teacher_forced

    estimate = on_policy if estimator == "on-policy" else teacher_forced
    greedy = settings.sampling.greedy
    finished = _finished(prompts, journal, force)
    if finished:
        say.note(f"resuming an interrupted run: {len(finished)} of {len(prompts)} prompts are done")
    with say.progress(TextColumn("{task.fields[rate]}", markup=False)) as bar:
        task = bar.add_task("prompts", total=len(prompts), completed=len(finished), rate="")
        for number, prompt in enumerate(prompts):
            if number in finished:
                continue
            with memory_for(
                f"prompt {prompt.prompt.id} of {len(prompt.ids)} tokens, {settings.depths} layers"
            ):
                counts = estimate(
                    session.target,
                    session.drafts[0],
                    prompt.ids,
                    settings,
                    index=number,
                    eos_ids=session.eos_ids,
                    generator=torch.Generator().manual_seed(prompt.seed),
                )
            journal.add(entry := prompt.labelled(counts, number, greedy).to_entry())
            finished[number] = PromptCounts.from_entry(entry)  # rounded as a resumed run reads it
            rate, error = pooled_rate(list(finished.values()), rank=0)
            bar.update(task, advance=1, rate=f"p_1 {rate:.3f} ± {error:.3f}")
    return [finished[number] for number in range(len(prompts))]


def _finished(prompts: Sequence[EncodedPrompt], journal: Journal, force: bool) -> dict[int, PromptCounts]:
    from sequoia_cli.measure.encoded_prompts import finished

    try:
        return finished(prompts, journal, drop_others=force)
    except BadInput as error:
        raise BadInput(
            error.message,
            hint="include these prompts, choose another path with -o, or drop them with --force",
        ) from None


def _merged(paths: list[str], say: Commentary) -> AcceptanceRates:
    from sequoia_cli.core.artifact import read_document
    from sequoia_cli.core.merging import merged
    from sequoia_cli.core.rates import AcceptanceRates

    if len(paths) < 2:
        raise BadInput("--merge is given once; at least two files are needed")
    total: AcceptanceRates | None = None
    digests = set()
    for path in paths:
        document = read_document(path)
        if document.digest in digests:
            raise BadInput(f"{path} is given twice; its prompts would be counted twice")
        digests.add(document.digest)
        rates = AcceptanceRates.from_document(document)
        if not rates.samples:
            raise BadInput(f"{path} has rates but no counts; merging needs counts")
        before = total
        try:
            total = rates if before is None else merged(before, rates)
        except BadInput as error:
            raise BadInput(f"{path} cannot be merged: {error.message}", error.hint) from None
        known = (len(before.samples) if before else 0) + len(rates.samples) - len(total.samples)
        if known:
            say.note(f"{path}: {known} of {len(rates.samples)} prompts are already counted and left out")
        if known < len(rates.samples) and not all(sample.digest for sample in rates.samples):
            say.warn(f"{path} does not identify its prompts: some may be counted twice")
    assert total is not None
    return total


def _show(result: AcceptanceRates, say: Commentary) -> None:
    from sequoia_cli.cli.render import rates_table

    say.show(rates_table(result))
