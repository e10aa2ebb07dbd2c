"""`sequoia check`: parse, run the check, render."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput, CheckFailed, SequoiaError

if TYPE_CHECKING:
    from sequoia_cli.check.rounding import RoundingCost
    from sequoia_cli.check.run import Check, NamedPrompt
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.measure.session import Session


@dataclass(frozen=True)
class Asked:
    """Options of the prompts that are checked."""

    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="May be given more than once."),
    ] = None
    prompts: options.PromptFile = None
    builtin: Annotated[
        bool, typer.Option("--builtin", help="Use the built-in prompts, as where none are given.")
    ] = False
    column: options.Column = None
    limit: Annotated[int, typer.Option("--limit", help="Use the first N prompts.")] = 8
    skip_bad: options.SkipBad = False
    raw: options.Raw = False


@options.with_groups
def check_command(
    context: typer.Context,
    *,
    tree: options.Tree = None,
    asked: Asked,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Most tokens of each text.")
    ] = 64,
    samples: Annotated[
        int, typer.Option("--samples", help="Texts sampled from each of three prompts.")
    ] = 400,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            "-T",
            help="Temperature of the sampling part; 0 skips it. The greedy part always runs.",
        ),
    ] = 1.0,
    smallest_deviation: Annotated[
        float,
        typer.Option(
            "--smallest-deviation",
            metavar="FRACTION",
            help="Fail if a deviation of this total variation in a first token could have gone undetected.",
        ),
    ] = 0.25,
    draws: options.Draws,
    draft: options.Drafts = None,
    models: options.Models,
    display: options.Display,
) -> None:
    """Check that text is distributed as the target's own, greedy and sampled.

    Generates texts with the tree and compares every token with transformers'
    own forward over the whole text, in the same and in a wider dtype. One prompt
    is longer than a prefill piece. Then samples a few prompts many times and
    tests the tokens against the distribution of transformers' own warpers. A
    correct program fails these tests once in 10,000 runs. Exit code 3: the text
    is not the target's, or the check is too weak to detect a deviation of
    --smallest-deviation. Needs memory for three copies of the target. With
    --quantize it also measures the effect of rounding, with a fourth copy.

        sequoia check --dtype float32

        sequoia check --temperature 0.6 --top-p 0.9 --samples 1000 --json > check.json
    """
    from sequoia_cli.cli.console import Commentary, print_json
    from sequoia_cli.cli.generate.inputs import distinct_drafts, read_prompts, read_tree, stdin_holds_text

    say = display.commentary()
    options.at_least(
        {"--max-new-tokens": (max_new_tokens, 2), "--samples": (samples, 100), "--limit": (asked.limit, 1)}
    )
    if not 0 < smallest_deviation <= 1:
        raise BadInput(f"--smallest-deviation is {smallest_deviation}; expected a number above 0 and up to 1")
    drafts = distinct_drafts(draft)
    plan = read_tree(tree, say)
    if plan.tree.size == 1:
        raise BadInput(
            "the tree is the root alone, which is plain decoding: nothing to check", hint="give a --tree"
        )
    own = asked.builtin or not (asked.prompt or asked.prompts or (tree != "-" and stdin_holds_text()))
    read = read_prompts(
        asked.prompt,
        asked.prompts,
        own,
        asked.column,
        asked.limit,
        say,
        skip_bad=asked.skip_bad,
        stdin_taken=tree == "-",
    )
    sampling, draft_sampling = draws.samplings(temperature, say)

    if sampling.greedy:
        options.note_idle(context, "--temperature 0 skips the sampling part", "samples", say)

    from sequoia_cli.engine.verification.verifiers import verifier_named

    rule = verifier_named(draws.verifier)
    rule.check_drafts(len(drafts))

    from sequoia_cli.check.conventions import wrong_eos_ids, wrong_prompt
    from sequoia_cli.check.findings import Findings
    from sequoia_cli.check.reference import TransformersReference
    from sequoia_cli.check.run import Check, NamedPrompt, Subject
    from sequoia_cli.cli.check.document import document
    from sequoia_cli.cli.check.tables import summary
    from sequoia_cli.cli.prompts import encoded
    from sequoia_cli.measure.rounding import AS_LOADED
    from sequoia_cli.measure.session import PLAIN

    silent = Commentary(quiet=True)
    session = models.open(drafts, say)
    # Preparing a model for speed is irreversible; the reference runs as in transformers.
    reference = session if models.forward == PLAIN else models.open([], silent, forward=PLAIN)
    usable = encoded(
        session, read, say, raw=asked.raw, skip_bad=asked.skip_bad, rows=own or asked.prompts is not None
    )
    prompted = [NamedPrompt(one.id, ids) for one, ids in usable]
    wrong = [
        f"prompt {one.id}: {line}"
        for one, ids in usable
        if (line := wrong_prompt(session.tokenizer, one.content, ids, raw=asked.raw))
    ]
    if ends := wrong_eos_ids(reference.target.model, session.eos_ids):
        wrong.append(ends)
    check = Check(
        Subject(
            session.target,
            session.drafts,
            plan.tree,
            None if sampling.greedy else sampling,
            draft_sampling,
            session.eos_ids,
            rule,
        ),
        TransformersReference(reference.target.model),
        _with_long(prompted, session.target.context_limit - max_new_tokens, say),
        max_new_tokens,
        samples,
        draws.seed,
        wrong,
    )
    interrupted = _run(check, say)
    cost = None
    if models.quantize != AS_LOADED and not interrupted:
        try:
            unrounded = models.open([], silent, quantize=AS_LOADED)
            cost = _rounding_cost(unrounded, session, prompted, max_new_tokens, say)
        except SequoiaError as error:
            say.warn(f"the effect of rounding was not measured: {error}")
        except KeyboardInterrupt:
            interrupted = True
    found = Findings(check, cost)
    if display.json:
        print_json(document(found, session, say.warnings, smallest_deviation, finished=not interrupted))
    for item in summary(found, session):
        say.show(item)
    if interrupted:
        raise KeyboardInterrupt
    if found.failures:
        raise CheckFailed(
            f"the text is not the target's own: {'; '.join(found.failures)}",
            hint="this should not happen: please report it with the command and the models",
        )
    if found.sampled and found.detectable > smallest_deviation:
        raise CheckFailed(
            "not enough power: no difference found, but the test is too weak to find one of this size: "
            f"{smallest_deviation:g} of the first token's mass (the smallest that it can find is "
            f"{found.detectable:.2g})",
            hint="more --samples or other prompts give more power; --smallest-deviation sets the limit",
        )


def _rounding_cost(
    unrounded: Session, session: Session, prompts: list[NamedPrompt], most: int, say: Commentary
) -> RoundingCost:
    """The cost of rounding the target of `session`, compared with `unrounded`."""
    from sequoia_cli.check.rounding import rounding_cost

    with say.progress() as bar:
        task = bar.add_task("rounding", total=len(prompts))
        texts = [one.ids for one in prompts]
        return rounding_cost(
            unrounded.target, session.target, texts, most, session.eos_ids, lambda: bar.advance(task)
        )


def _with_long(prompts: list[NamedPrompt], most: int, say: Commentary) -> list[NamedPrompt]:
    """The prompts and, if none is that long, one of several prefill pieces."""
    from sequoia_cli.check.run import long_prompt

    try:
        added = long_prompt(prompts, most)
    except ValueError as error:
        say.note(f"the second prefill piece is not checked: {error}")
        return prompts
    return [*prompts, added] if added else prompts


def _run(check: Check, say: Commentary) -> bool:
    """Run the check; returns whether it was interrupted. Finished results stay in `check`."""
    from itertools import chain

    many = check.subject.sampling is not None
    total = len(check.prompts), check.samples * check.most_sampled_prompts if many else 0
    with say.progress() as bar:
        texts = bar.add_task("texts", total=total[0])
        sampled = bar.add_task("samples", total=total[1], visible=many)
        work = [(texts, check.check_texts()), *([(sampled, check.sample())] if many else [])]
        try:
            for task, _ in chain.from_iterable(((task, done) for done in part) for task, part in work):
                bar.advance(task)
        except KeyboardInterrupt:
            say.warn(
                f"interrupted: {len(check.ours)} of {total[0]} prompts are checked, "
                f"{check.samples_done} of {total[1]} texts are sampled"
            )
            return True
    return False
