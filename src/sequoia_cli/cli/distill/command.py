"""`sequoia distill`: a draft for a target that has none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from sequoia_cli.cli import options
from sequoia_cli.distill import FEATURE, INDEPENDENT, KINDS
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.cli.distill.inputs import Inputs


def distill_command(
    context: typer.Context,
    target: options.Target = options.DEFAULT_TARGET,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="The draft's folder; else drafts/<target>-draft."),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--kind", help="feature (reads the target's hidden states) or independent (a model)."),
    ] = FEATURE,
    layers: Annotated[
        int | None, typer.Option("--layers", help="Layers of the draft; else 1, or 3 if independent.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="PATH", help="A config.json for an independent draft."),
    ] = None,
    draft_vocab: Annotated[
        str,
        typer.Option(
            "--draft-vocab",
            metavar="N|all|auto",
            help="Keep the N most frequent ids in the draft's head; auto measures 4k, 8k, 16k and all.",
        ),
    ] = "auto",
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="DRAFT",
            help="Train this draft further; --epochs 0 only cuts its head, to ids counted over all --tokens.",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", help="Number of drafts; each learns what those before it get wrong.")
    ] = 1,
    tokens: Annotated[
        int,
        typer.Option("--tokens", help="Tokens of text to train on; of a larger --corpus, the first ones."),
    ] = 500_000,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset", metavar="SOURCE", help="Prompts, as in acceptance; else the target writes them."
        ),
    ] = None,
    column: Annotated[str | None, typer.Option("--column", help="Key that holds the prompt.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Use the first N prompts.")] = None,
    skip_bad: options.SkipBad = False,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature", "-T", help="Temperature of the answers; may be repeated; else 0, 0.6, 0.9."
        ),
    ] = None,
    new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Most tokens of an answer.")] = 128,
    length: Annotated[int, typer.Option("--length", help="Most tokens of a text.")] = 384,
    rows: Annotated[int, typer.Option("--rows", help="Texts written side by side.")] = 128,
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", metavar="DIR", help="Keep the texts here, or train on those already here."),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the texts.")] = 6,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens of a training step.")] = 2048,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")] = 2e-3,
    passes: Annotated[
        int, typer.Option("--passes", help="Levels a feature draft is trained for on its own predictions.")
    ] = 3,
    raw: options.Raw = False,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    forward: options.Forward = options.DEFAULT_FORWARD,
    threads: options.Threads = None,
    trust_remote_code: options.TrustRemoteCode = False,
    force: options.Force = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> None:
    """Train a draft for a target, on texts that the target writes itself.

    Needs no dataset: a chat model writes both sides of chats, a base model writes
    from its start token. An interrupted run resumes where it stopped; one with
    other options is refused, or restarted with --force. At the end the draft's
    speed on this machine is predicted. --forward sets how the target writes and
    how that is measured; training always uses the plain forward.

        sequoia distill --target smollm2 -o drafts/mine

        sequoia generate --draft drafts/mine --prompt "Why is the sky blue?"
    """
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.cli.distill.inputs import Inputs, read_config
    from sequoia_cli.cli.distill.stages import distill

    say = Commentary(quiet=quiet, progress=not no_progress)
    if kind not in KINDS:
        raise BadInput(f"--kind is '{kind}'; expected {' or '.join(KINDS)}")
    independent = kind == INDEPENDENT
    if config is not None and not independent:
        raise BadInput("--config is for independent drafts; add --kind independent")
    if config is not None and layers is not None:
        raise BadInput("--config says how many layers there are; leave --layers out")
    if start is not None and (config is not None or layers is not None):
        raise BadInput("--start trains an existing draft; leave --layers and --config out")
    if start is not None and count > 1:
        raise BadInput("--start trains one draft; leave --count out")
    layers = layers if layers is not None else 3 if independent else 1
    options.at_least(
        {
            "--layers": (layers, 1),
            "--count": (count, 1),
            "--tokens": (tokens, 1),
            "--limit": (limit, 1),
            "--max-new-tokens": (new_tokens, 2),
            "--length": (length, 16),
            "--rows": (rows, 1),
            "--epochs": (epochs, 0 if start else 1),
            "--batch-tokens": (batch_tokens, 1),
            "--passes": (passes, 1),
        }
    )
    if not 0 < learning_rate < 1:
        raise BadInput(f"--learning-rate is {learning_rate}; expected a number above 0 and below 1")
    for value in temperature or ():
        if not 0 <= value < math.inf:
            raise BadInput(f"--temperature is {value}; expected a number from 0 (greedy) up")
    inputs = Inputs(
        target=target,
        output=output,
        kind=kind,
        layers=layers,
        config=read_config(config, trust_remote_code),
        vocabulary=draft_vocab,
        start=start,
        count=count,
        tokens=tokens,
        dataset=dataset,
        column=column,
        limit=limit,
        skip_bad=skip_bad,
        temperatures=tuple(temperature or (0.0, 0.6, 0.9)),
        new_tokens=new_tokens,
        length=length,
        rows=rows,
        corpus=corpus,
        epochs=epochs,
        batch_tokens=batch_tokens,
        learning_rate=learning_rate,
        passes=passes,
        raw=raw,
        seed=seed,
        device=device,
        dtype=dtype,
        forward=forward,
        threads=threads,
        trust_remote_code=trust_remote_code,
        force=force,
    )
    for reason, flags in _without_effect(context, inputs).items():
        say.note(f"{reason}; without effect: {', '.join(flags)}")
    distill(context, inputs, json, say)


def _without_effect(context: typer.Context, inputs: Inputs) -> dict[str, list[str]]:
    """Given options that have no effect, by reason."""
    idle = {
        "without --dataset there are no prompts": [] if inputs.dataset else ["column", "limit", "skip_bad"],
        "--start keeps the kind of its draft": ["kind"] if inputs.start else [],
        "an independent draft predicts from its own states": (
            ["passes"] if inputs.kind == INDEPENDENT and not inputs.start else []
        ),
        "--epochs 0 trains nothing": [] if inputs.epochs else ["batch_tokens", "learning_rate", "passes"],
    }
    found = {reason: options.given(context, " ".join(names)) for reason, names in idle.items()}
    return {reason: flags for reason, flags in found.items() if flags}
