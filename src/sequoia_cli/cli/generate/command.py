"""`sequoia generate`: text with a tree, streamed, distributed exactly as the target's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from sequoia_cli.cli import options
from sequoia_cli.errors import BadInput, CheckFailed, SequoiaError

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.measure.run import Run


#: Options of the draft and of verifying what it proposes.
_SPECULATION = "draft quantize_draft draft_temperature verifier"


@options.with_groups
def generate_command(
    context: typer.Context,
    *,
    tree: options.Tree = None,
    asked: options.Prompts,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Most tokens of each text.")
    ] = 256,
    temperature: options.Temperature = 0.0,
    draws: options.Draws,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End the text before this string.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Decode without speculation.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too, in turn, and report both speeds.")
    ] = False,
    draft: options.Drafts = None,
    models: options.Models,
    display: options.Display,
) -> None:
    """Continue prompts with speculative decoding.

    Text streams to stdout, statistics go to stderr. Another tree gives another
    sample at temperatures above 0, of the same distribution. A prompt from stdin
    is taken without the line breaks at its end; --prompt keeps them.

        sequoia generate --tree trees/a100_128.json --prompt "Why is the sky blue?"

        echo "Why is the sky blue?" | sequoia generate --json | jq .speculation

        sequoia compile --budget 64 -o - | sequoia generate --tree - --prompt "hi"
    """
    from sequoia_cli.cli.console import print_json
    from sequoia_cli.cli.generate.inputs import distinct_drafts, read_prompts, read_tree

    say = display.commentary()
    if max_new_tokens < 0:
        raise BadInput(f"--max-new-tokens is {max_new_tokens}; expected 0 or more")
    if compare and plain:
        raise BadInput("--compare runs plain decoding next to speculation; --plain leaves speculation out")
    drafts = distinct_drafts(draft)
    if any(not text for text in stop or []):
        raise BadInput("--stop is empty; expected a text")
    if not (asked.prompt or asked.prompts or asked.builtin):
        options.refuse_idle(context, "stdin is one prompt", "limit")
    plan = None if plain else read_tree(tree, say)
    for idle, reason, names in (
        (plain, "--plain decodes without speculation", f"tree {_SPECULATION}"),
        (plan is not None and plan.tree.size == 1, "this plan does not speculate", _SPECULATION),
    ):
        if idle:
            options.note_idle(context, reason, names, say)
    stdin_taken = tree == "-" and not plain
    read = read_prompts(
        *(asked.prompt, asked.prompts, asked.builtin, asked.column, asked.limit, say),
        skip=asked.skip,
        skip_bad=asked.skip_bad,
        stdin_taken=stdin_taken,
    )

    from sequoia_cli.cli.generate.report import document, summary
    from sequoia_cli.cli.prompts import encoded
    from sequoia_cli.engine.adaptive import check_plan
    from sequoia_cli.engine.verification.verifiers import verifier_named
    from sequoia_cli.measure.encoded_prompts import with_seeds
    from sequoia_cli.measure.run import Run

    sampling, draft_sampling = draws.samplings(temperature, say)
    rule = verifier_named(draws.verifier)
    rule.check_drafts(len(drafts))
    if plan is not None:
        check_plan(plan, rule, greedy=sampling.greedy, drafts=len(drafts))
    speculates = plan is not None and plan.tree.size > 1
    session = models.open(drafts if speculates else [], say)
    if len(session.drafts) > 1:
        say.note(
            f"{len(drafts)} drafts: each grows the tree, and the trees are merged; "
            "what the tree file predicts is for one draft"
        )
    rows = bool(asked.prompts or asked.builtin)
    usable = encoded(session, read, say, raw=asked.raw, skip_bad=asked.skip_bad, rows=rows)
    run = Run(
        session,
        with_seeds(usable, draws.seed),
        plan,
        sampling,
        draft_sampling,
        rule,
        draws.seed,
        max_new_tokens,
        tuple(stop or ()),
        compare,
    )
    if differing := run.unlike_plan():
        what = "; ".join(f"{key} {there}, here {now}" for key, (there, now) in differing.items())
        say.warn(f"the tree was compiled for another setting, so its prediction may not hold: {what}")
    ended_by = _decode(run, None if display.json else _print_piece, say)
    if any(text.context_reached for text in run.texts):
        say.warn("the text ended where the model's context does")
    if display.json:
        print_json(document(run, say.warnings))
    for item in summary(run):
        say.show(item)
    if ended_by is not None:
        raise ended_by
    if different := run.wrong_texts():
        raise CheckFailed(
            f"greedy text differs from plain decoding in float32, for prompt {', '.join(different)}",
            hint="this should not happen: please report it with the command and the model",
        )


def _decode(
    run: Run, on_text: Callable[[str], None] | None, say: Commentary
) -> KeyboardInterrupt | SequoiaError | None:
    """Decode all prompts; returns what ended that early. What is written by then stays in `run`."""
    show = on_text or (lambda piece: None)
    # Text that streams is its own progress; a bar would be drawn between its pieces.
    with nullcontext() if on_text else say.progress() as bar:
        task = bar.add_task("prompts", total=len(run.prompts)) if bar else None
        try:
            for _ in run.prompts:
                run.decode_next(show)
                show("\n")
                if bar and task is not None:
                    bar.advance(task)
        except (KeyboardInterrupt, SequoiaError) as early:
            show("\n")
            done = sum(text.finish is not None for text in run.texts)
            why = "interrupted" if isinstance(early, KeyboardInterrupt) else "ended by an error"
            say.warn(f"{why}: {done} of {len(run.prompts)} texts are finished")
            return early
    return None


def _print_piece(piece: str) -> None:
    import sys

    sys.stdout.write(piece)
    sys.stdout.flush()
