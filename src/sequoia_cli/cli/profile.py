"""`sequoia profile`: how long this machine takes for each part of a decoding step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput, CheckFailed

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.core.hardware import HardwareProfile
    from sequoia_cli.measure.latency import Samples
    from sequoia_cli.measure.session import Session


@options.with_groups
def profile_command(
    context_: typer.Context,
    *,
    draft: options.Draft = options.DEFAULT_DRAFT,
    models: options.Models,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            metavar="N,N,...",
            help="Tokens before the tree, each length is timed; else 128, or 256 with --modelled.",
        ),
    ] = None,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="N,N,...", help="Tree sizes to time.")
    ] = "1,2,3,4,6,8,12,16,24,32,64,128",
    repeats: Annotated[
        int, typer.Option("--repeats", help="Rounds over all sizes at each context, four steps each.")
    ] = 6,
    temperature: options.Temperature = 0.0,
    modelled: Annotated[
        bool,
        typer.Option(
            "--modelled", help="Compute a profile for --device a100, h100, h200, l40 or rtx4090 instead."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also tell which products were chosen, and their times.")
    ] = False,
    written: options.Written,
    display: options.Display,
) -> None:
    """Measure the seconds of target, draft and verification by number of tokens.

    Runs the decoding loop that generate runs, over trees of each size, in
    interleaved rounds. An interrupted run continues where it stopped.

        sequoia profile --device cuda:0

        sequoia profile --context 128,1024,4096

        sequoia profile --device a100 --modelled -o profiles/a100.yaml
    """
    from sequoia_cli.compiler.roofline import CONTEXT, MODELLED_DEVICES, modelled_profile

    say, device, force = display.commentary(), models.device, written.force
    contexts = [CONTEXT if modelled else 128] if context is None else _counts("--context", context)
    options.at_least({"--context": (contexts[0], 1)})
    if modelled:
        from sequoia_cli.cli.files import publish, reserved

        options.refuse_idle(
            context_,
            "--modelled computes the times of Llama-2-7B with a draft of 68M parameters in float16",
            "target draft dtype forward quantize quantize_draft threads tokens repeats temperature "
            "trust_remote_code verbose",
        )
        result = modelled_profile(device, contexts)
        place = reserved(context_, written.output or f"profiles/{device}.yaml", force=force, allow_same=True)
        publish(None, result.to_dict(), place, display.json, say)  # not this machine's
        _show(result, say)
        return
    if device in MODELLED_DEVICES:
        raise BadInput(
            f"--device {device} is no device of this machine; expected auto, cpu, cuda or cuda:N",
            hint="--modelled computes a profile from its figures",
        )
    sizes = _sizes(tokens)
    options.at_least({"--repeats": (repeats, 1)})

    from sequoia_cli.cli.files import publish, record, reserved, resumable
    from sequoia_cli.engine.loading.sources import plain_name
    from sequoia_cli.measure.latency import (
        context_prompt,
        fit_profile,
        largest_context,
        steadied,
        time_round,
    )
    from sequoia_cli.measure.session import packages

    pair = options.samplings(temperature, 0, 1.0, None, 0, say)
    place = reserved(context_, written.output or f"profiles/{plain_name(models.target)}.yaml", force=force)
    session = models.open([draft], say)
    if verbose:
        _show_products(session, say)
    (drafted,) = session.drafts
    if contexts[-1] > (most := largest_context(session.target, drafted)):
        raise BadInput(
            f"--context is {contexts[-1]}; these models leave room for {most} tokens before the tree"
        )
    conditions = {**session.conditions, "context": contexts[0], "temperature": temperature}
    measured = {"measure": "profile in visits", **conditions, "contexts": contexts, "sizes": sizes}
    prompts = [context_prompt(session.tokenizer, each) for each in contexts]
    session.check_prompt(prompts[-1])
    with resumable(place, measured | packages(), say, force=force) as journal, say.progress() as bar:
        done = len(journal.entries)
        pieces = [(number, prompt) for number in range(repeats) for prompt in prompts]
        total = max(len(pieces), done)
        if done:
            say.note(f"continuing an interrupted run: {done} of {total} rounds are done")
        visits_each = len(sizes) - 1  # plain steps, size 1, are timed beside every other size
        task = bar.add_task("timing", total=total * visits_each, completed=done * visits_each)
        for number, prompt in pieces[done:]:
            timed = time_round(
                session.target, drafted, sizes, prompt, number, pair, lambda: bar.advance(task)
            )
            journal.add({"context": len(prompt), "visits": timed})
    visits: dict[int, list[Samples]] = {each: [] for each in contexts}
    for entry in journal.entries:
        visits[entry["context"]] += map(_numbered, entry["visits"])
    unusable = _check_spread({each: steadied(those) for each, those in visits.items()}, say)
    shortest = visits.pop(contexts[0])
    result = fit_profile(shortest, conditions, record(context_, packages(), say.warnings), visits)
    publish("profile", result.to_dict(), place, display.json, say)
    _show(result, say)
    if unusable:
        raise CheckFailed(
            f"the timings are too unsteady to trust ({unusable}); the profile was written all the same",
            hint="stop what else runs on this machine, or measure longer with --repeats 20",
        )


def _sizes(text: str) -> list[int]:
    from sequoia_cli.compiler.tables import MAX_SIZE

    sizes = _counts("--tokens", text)
    for size in (min(sizes), max(sizes)):
        if not 1 <= size <= MAX_SIZE:
            raise BadInput(f"--tokens has {size}; trees of 1 to {MAX_SIZE} nodes can be timed")
    if max(sizes) == 1:
        raise BadInput("--tokens is 1 alone, which is plain decoding; a larger tree times the draft too")
    return sorted({*sizes, 1})  # plain decoding is what every tree is compared with


def _counts(flag: str, text: str) -> list[int]:
    """Whole numbers with commas, each once, rising."""
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise BadInput(f"{flag} is '{text}'; expected whole numbers with commas, such as 1,2,4,8") from None


def _numbered(visit: dict[str, dict[str, list[float]]]) -> Samples:
    """A visit as the journal has it: JSON makes the sizes strings."""
    return {
        part: {int(size): seconds for size, seconds in by_size.items()} for part, by_size in visit.items()
    }


def _check_spread(samples: dict[int, Samples], say: Commentary) -> str | None:
    """Warn of unsteady timings at any context; returns what makes the profile unusable, or None."""
    from sequoia_cli.measure.latency import UNSTEADY, UNUSABLE, spread

    found = [
        (spread(seconds), f"{part} at {size}")
        for by_part in samples.values()
        for part in ("target", "draft")  # verification is small next to them
        for size, seconds in by_part[part].items()
    ]
    unsteady = sorted((entry for entry in found if entry[0] > UNSTEADY), reverse=True)
    if not unsteady:
        return None
    worst, where = unsteady[0]
    say.warn(
        f"{len(unsteady)} of {len(found)} timings are unsteady: the middle half of {where} tokens spreads "
        f"over {worst:.0%} of its median. Something else is running, or clocks change; --repeats 20 helps."
    )
    return f"{worst:.0%} for {where} tokens" if worst > UNUSABLE else None


def _show_products(session: Session, say: Commentary) -> None:
    """What the models multiply with."""
    from sequoia_cli.cli.render import layouts_table
    from sequoia_cli.engine.fast.layouts import ROWS, faster, used_timings
    from sequoia_cli.engine.integer.blocks import kernel_of

    say.note(f"threads: {session.environment['threads']}")
    if (kernel := kernel_of(session.target.model)) is not None:
        say.note(f"integer products: a kernel with {kernel.instructions}")
    if timings := used_timings():
        say.show(layouts_table(timings, {name: faster(seconds) for name, seconds in timings.items()}, ROWS))


def _show(result: HardwareProfile, say: Commentary) -> None:
    from sequoia_cli.cli.render import profile_tables

    for table in profile_tables(result):
        say.show(table)
