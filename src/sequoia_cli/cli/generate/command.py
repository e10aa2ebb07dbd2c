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


def generate_command(
    context: typer.Context,
    tree: Annotated[
        str | None,
        typer.Option("--tree", metavar="PATH|-", help="Compiled tree; else the one compiled last here."),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="May be given more than once; else stdin."),
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option("--prompts", metavar="SOURCE", help="Prompts from a file, as acceptance takes them."),
    ] = None,
    builtin: Annotated[
        bool,
        typer.Option("--builtin", help="Use the built-in prompts; --skip 32 leaves out those to compile on."),
    ] = False,
    column: Annotated[str | None, typer.Option("--column", help="Key that holds the prompt.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Use the first N prompts.")] = None,
    skip: options.Skip = None,
    skip_bad: options.SkipBad = False,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", help="Most tokens of each text.")
    ] = 256,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    draft_temperature: options.DraftTemperature = None,
    verifier: options.Verifier = options.DEFAULT_VERIFIER,
    seed: options.Seed = 0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", metavar="TEXT", help="End the text before this string.")
    ] = None,
    raw: options.Raw = False,
    plain: Annotated[bool, typer.Option("--plain", help="Decode without speculation.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode plainly too, in turn, and report both speeds.")
    ] = False,
    target: options.Target = options.DEFAULT_TARGET,
    draft: options.Drafts = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    forward: options.Forward = options.DEFAULT_FORWARD,
    quantize: options.Quantize = "none",
    quantize_draft: options.QuantizeDraft = None,
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Continue prompts with speculative decoding.

    Text streams to stdout, statistics go to stderr. Another tree gives another
    sample at temperatures above 0, of the same distribution. A prompt from stdin
    is taken without the line breaks at its end; --prompt keeps them.

        sequoia generate --tree trees/a100_128.json --prompt "Why is the sky blue?"

        echo "Why is the sky blue?" | sequoia generate --json | jq .speculation

        sequoia compile --budget 64 -o - | sequoia generate --tree - --prompt "hi"
    """
    from sequoia_cli.cli.console import Commentary, print_json
    from sequoia_cli.cli.generate.inputs import distinct_drafts, read_prompts, read_tree

    say = Commentary(quiet=quiet, progress=not no_progress)
    if max_new_tokens < 0:
        raise BadInput(f"--max-new-tokens is {max_new_tokens}; expected 0 or more")
    if compare and plain:
        raise BadInput("--compare runs plain decoding next to speculation; --plain leaves speculation out")
    drafts = distinct_drafts(draft)
    if any(not text for text in stop or []):
        raise BadInput("--stop is empty; expected a text")
    if not (prompt or prompts or builtin):
        options.refuse_idle(context, "stdin is one prompt", "limit")
    plan = None if plain else read_tree(tree, say)
    for idle, reason, names in (
        (plain, "--plain decodes without speculation", f"tree {_SPECULATION}"),
        (plan is not None and plan.tree.size == 1, "this plan does not speculate", _SPECULATION),
    ):
        if idle:
            options.note_idle(context, reason, names, say)
    stdin_taken = tree == "-" and not plain
    asked = read_prompts(
        prompt, prompts, builtin, column, limit, say, skip=skip, skip_bad=skip_bad, stdin_taken=stdin_taken
    )

    from sequoia_cli.cli.generate.report import document, summary
    from sequoia_cli.cli.prompts import encoded
    from sequoia_cli.engine.adaptive import check_plan
    from sequoia_cli.engine.verification.verifiers import verifier_named
    from sequoia_cli.measure.encoded_prompts import with_seeds
    from sequoia_cli.measure.run import Run
    from sequoia_cli.measure.session import open_session

    sampling, draft_sampling = options.samplings(
        temperature, top_k, top_p, draft_temperature, seed, say, verifier
    )
    rule = verifier_named(verifier)
    rule.check_drafts(len(drafts))
    if plan is not None:
        check_plan(plan, rule, greedy=sampling.greedy, drafts=len(drafts))
    speculates = plan is not None and plan.tree.size > 1
    session = open_session(
        target,
        drafts if speculates else [],
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
        forward=forward,
        quantize=quantize,
        quantize_draft=quantize_draft,
        threads=threads,
        progress=say.shows_progress,
        announce=say.note,
    )
    if len(session.drafts) > 1:
        say.note(
            f"{len(drafts)} drafts: each grows the tree, and the trees are merged; "
            "what the tree file predicts is for one draft"
        )
    usable = encoded(session, asked, say, raw=raw, skip_bad=skip_bad, rows=bool(prompts or builtin))
    run = Run(
        session,
        with_seeds(usable, seed),
        plan,
        sampling,
        draft_sampling,
        rule,
        seed,
        max_new_tokens,
        tuple(stop or ()),
        compare,
    )
    if differing := run.unlike_plan():
        what = "; ".join(f"{key} {there}, here {now}" for key, (there, now) in differing.items())
        say.warn(f"the tree was compiled for another setting, so its prediction may not hold: {what}")
    ended_by = _decode(run, None if json else _print_piece, say)
    if any(text.context_reached for text in run.texts):
        say.warn("the text ended where the model's context does")
    if json:
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
