"""Options that several commands share, so that one flag means one thing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.engine.warp import Sampling

DEFAULT_TARGET = "smollm2"
DEFAULT_DRAFT = "smollm2-draft"
DEFAULT_FORWARD = "compiled"
DEFAULT_VERIFIER = "sequoia"

Target = Annotated[
    str, typer.Option("--target", "-t", metavar="MODEL", help="Target: an alias, a folder or a hub id.")
]
Draft = Annotated[
    str, typer.Option("--draft", "-d", metavar="MODEL", help="Draft: an alias, a folder or a hub id.")
]
Drafts = Annotated[
    list[str] | None,
    typer.Option(
        "--draft",
        "-d",
        metavar="MODEL",
        show_default=DEFAULT_DRAFT,
        help="Draft, as the target; several propose side by side.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
Forward = Annotated[
    str,
    typer.Option("--forward", help="compiled, fast (not compiled), or plain: as transformers runs models."),
]
Quantize = Annotated[
    str, typer.Option("--quantize", help="none, or int8: weights and inputs of the target in 8 bits.")
]
QuantizeDraft = Annotated[
    str | None, typer.Option("--quantize-draft", help="The same for the draft; else as --quantize.")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads; else as many as this process may use cores.", min=1),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with a model. Off unless asked for.")
]
Temperature = Annotated[float, typer.Option("--temperature", "-T", help="0 is greedy.")]
TopK = Annotated[int, typer.Option("--top-k", help="Sample from the k most probable tokens; 0 is off.")]
TopP = Annotated[float, typer.Option("--top-p", help="Sample from the most probable mass p; 1 is off.")]
DraftTemperature = Annotated[
    float | None,
    typer.Option("--draft-temperature", help="Shapes the proposals, never the distribution of the text."),
]
Verifier = Annotated[
    str,
    typer.Option(
        "--verifier",
        metavar="RULE",
        help="How proposals are drawn and accepted, never the distribution of the text: sequoia, specinfer, "
        "spectr, naive or traversal. At temperature 0 all are the same.",
    ),
]
Skip = Annotated[
    int | None,
    typer.Option("--skip", metavar="N", help="Leave out the first N prompts.", show_default=False),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out prompts that cannot be used, and name them.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Do not put prompts through the chat template.")]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=(1 << 64) - 1,
        help="Seed of each prompt's text; a prompt given again has another text.",
    ),
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="PATH|-", help="Where the file goes; - is stdout.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No commentary on stderr.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bars.")]


def at_least(values: Mapping[str, tuple[int | None, int]]) -> None:
    """Raise `BadInput` for the first flag whose value lies below its least; None was not given."""
    for flag, (value, least) in values.items():
        if value is not None and value < least:
            raise BadInput(f"{flag} is {value}; at least {least} is needed")


def given(context: typer.Context, names: str) -> list[str]:
    """The flags that were given, of the options with these `names` (separated by spaces)."""
    wanted = names.split()
    return [
        max(option.opts, key=len)
        for option in context.command.params
        if (name := option.name or "") in wanted
        and (source := context.get_parameter_source(name)) is not None
        and source.name != "DEFAULT"
    ]


def refuse_idle(context: typer.Context, reason: str, names: str) -> None:
    """Raise `BadInput` where options with these `names` were given, which `reason` leaves without effect."""
    if flags := given(context, names):
        raise BadInput(f"{reason}; without effect: {', '.join(flags)}", hint="leave them out")


def note_idle(context: typer.Context, reason: str, names: str, say: Commentary) -> None:
    """The same as a note: for options that change no file, and that a script may always give."""
    if flags := given(context, names):
        say.note(f"{reason}; without effect: {', '.join(flags)}")


def samplings(
    temperature: float,
    top_k: int,
    top_p: float,
    draft_temperature: float | None,
    seed: int,
    say: Commentary,
    verifier: str = DEFAULT_VERIFIER,
) -> tuple[Sampling, Sampling]:
    """The target's and the draft's sampling. Raises `BadInput`; says which options have no effect."""
    from sequoia_cli.engine.decode import default_draft_sampling
    from sequoia_cli.engine.warp import Sampling

    sampling = Sampling(temperature, top_k, top_p)
    shape = 1.0 if draft_temperature is None else draft_temperature
    # 0 would propose the same tokens always, which is what a greedy target wants and no other.
    if not (0 < shape < math.inf or (shape == 0 and sampling.greedy)):
        raise BadInput(f"--draft-temperature is {shape}; expected a number above 0")
    if sampling.greedy:
        asked = {
            "--top-k": top_k,
            "--top-p": top_p < 1,
            "--draft-temperature": draft_temperature is not None,
            "--verifier": verifier != DEFAULT_VERIFIER,
            "--seed": seed,
        }
        if idle := [flag for flag, value in asked.items() if value]:
            say.note(f"temperature 0 takes the most probable token; without effect: {', '.join(idle)}")
    if sampling.greedy or draft_temperature is None:
        return sampling, default_draft_sampling(sampling)
    return sampling, Sampling(draft_temperature)
