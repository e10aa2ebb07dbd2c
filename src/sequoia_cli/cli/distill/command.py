"""`sequoia distill`: a draft for a target that has none."""

from __future__ import annotations

import typer

from sequoia_cli.cli import options
from sequoia_cli.cli.distill.inputs import Inputs
from sequoia_cli.distill import INDEPENDENT


@options.with_groups
def distill_command(context: typer.Context, inputs: Inputs, display: options.Display) -> None:
    """Train a draft for a target, on texts that the target writes itself.

    Needs no dataset: a chat model writes both sides of chats, a base model writes
    from its start token. An interrupted run resumes where it stopped; one with
    other options is refused, or restarted with --force. At the end the draft's
    speed on this machine is predicted. --forward sets how the target writes and
    how that is measured; training always uses the plain forward.

        sequoia distill --target smollm2 -o drafts/mine

        sequoia generate --draft drafts/mine --prompt "Why is the sky blue?"
    """
    from sequoia_cli.cli.distill.stages import distill

    say = display.commentary()
    inputs.check()
    for reason, flags in _without_effect(context, inputs).items():
        say.note(f"{reason}; without effect: {', '.join(flags)}")
    distill(context, inputs, display.json, say)


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
