"""Options shared by several commands, so that a flag means the same everywhere."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary
    from sequoia_cli.engine.warp import Sampling
    from sequoia_cli.measure.session import Session

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
        help="Draft; repeat it to use several together.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")]
Forward = Annotated[
    str,
    typer.Option("--forward", help="compiled, fast (not compiled), or plain (as in transformers)."),
]
Quantize = Annotated[
    str,
    typer.Option("--quantize", help="none, int8 or int4: the target's weights in so many bits, inputs in 8."),
]
QuantizeDraft = Annotated[
    str | None, typer.Option("--quantize-draft", help="The same for the draft; else as --quantize.")
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="CPU threads; else the number of cores this process may use.", min=1),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with a model.")
]
Temperature = Annotated[float, typer.Option("--temperature", "-T", help="0 is greedy.")]
TopK = Annotated[int, typer.Option("--top-k", help="Sample from the k most probable tokens; 0 is off.")]
TopP = Annotated[float, typer.Option("--top-p", help="Sample from the most probable mass p; 1 is off.")]
DraftTemperature = Annotated[
    float | None,
    typer.Option(
        "--draft-temperature",
        help="Temperature of the proposals; never affects the distribution of the text.",
    ),
]
Verifier = Annotated[
    str,
    typer.Option(
        "--verifier",
        metavar="RULE",
        help="How proposals are drawn and accepted: sequoia, specinfer, spectr, naive or traversal. Never "
        "affects the distribution of the text; at temperature 0 all are the same.",
    ),
]
Tree = Annotated[
    str | None,
    typer.Option("--tree", metavar="PATH|-", help="Compiled tree; else the one compiled last here."),
]
PromptFile = Annotated[
    str | None,
    typer.Option("--prompts", metavar="SOURCE", help="Prompts from a file, as acceptance takes them."),
]
Column = Annotated[str | None, typer.Option("--column", help="Key that holds the prompt.")]
Skip = Annotated[
    int | None,
    typer.Option("--skip", metavar="N", help="Skip the first N prompts.", show_default=False),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip invalid prompts and name them.")]
Raw = Annotated[bool, typer.Option("--raw", help="Do not apply the chat template.")]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        min=0,
        max=(1 << 64) - 1,
        help="Seed of the texts; a repeated prompt gets another text.",
    ),
]
Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="PATH|-", help="Output file; - is stdout.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No commentary on stderr.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bars.")]


@dataclass(frozen=True)
class Models:
    """Options of the target and of how models run."""

    target: Target = DEFAULT_TARGET
    device: Device = "auto"
    dtype: Dtype = "auto"
    forward: Forward = DEFAULT_FORWARD
    quantize: Quantize = "none"
    quantize_draft: QuantizeDraft = None
    threads: Threads = None
    trust_remote_code: TrustRemoteCode = False

    def open(self, drafts: Sequence[str], say: Commentary, **changes: Any) -> Session:
        """Open the models with these drafts; `changes` replace options. Raises as `open_session`."""
        from sequoia_cli.measure.session import open_session

        options = {field.name: getattr(self, field.name) for field in fields(self)} | changes
        return open_session(
            options.pop("target"), drafts, progress=say.shows_progress, announce=say.note, **options
        )


@dataclass(frozen=True)
class Prompts:
    """Options of the prompts that a command continues."""

    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", metavar="TEXT", help="May be given more than once; else stdin."),
    ] = None
    prompts: PromptFile = None
    builtin: Annotated[
        bool,
        typer.Option("--builtin", help="Use the built-in prompts; --skip 32 leaves out those to compile on."),
    ] = False
    column: Column = None
    limit: Annotated[int | None, typer.Option("--limit", help="Use the first N prompts.")] = None
    skip: Skip = None
    skip_bad: SkipBad = False
    raw: Raw = False


@dataclass(frozen=True)
class Draws:
    """Options of how tokens are drawn at a temperature, and proposals verified."""

    top_k: TopK = 0
    top_p: TopP = 1.0
    draft_temperature: DraftTemperature = None
    verifier: Verifier = DEFAULT_VERIFIER
    seed: Seed = 0

    def samplings(self, temperature: float, say: Commentary) -> tuple[Sampling, Sampling]:
        """The target's and the draft's sampling. Notes options without effect. Raises `BadInput`."""
        return samplings(
            temperature, self.top_k, self.top_p, self.draft_temperature, self.seed, say, self.verifier
        )


@dataclass(frozen=True)
class Written:
    """Options of the file that a command writes."""

    output: Output = None
    force: Force = False


@dataclass(frozen=True)
class Display:
    """Options of what a command prints."""

    json: Json = False
    quiet: Quiet = False
    no_progress: NoProgress = False

    def commentary(self) -> Commentary:
        """The commentary on stderr."""
        from sequoia_cli.cli.console import Commentary

        return Commentary(quiet=self.quiet, progress=not self.no_progress)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """A command in which each parameter that is a dataclass is replaced by its fields, for typer."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    options: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            options.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        options += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(groups[name])
        ]

    @functools.wraps(command)
    def flat(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    flat.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    flat.__annotations__ = {option.name: option.annotation for option in options}
    return flat


def at_least(values: Mapping[str, tuple[int | None, int]]) -> None:
    """Raise `BadInput` for the first flag whose value is below its minimum; None means not given."""
    for flag, (value, least) in values.items():
        if value is not None and value < least:
            raise BadInput(f"{flag} is {value}; at least {least} is needed")


def given(context: typer.Context, names: str) -> list[str]:
    """The given flags among the options with these `names` (separated by spaces)."""
    wanted = names.split()
    return [
        max(option.opts, key=len)
        for option in context.command.params
        if (name := option.name or "") in wanted
        and (source := context.get_parameter_source(name)) is not None
        and source.name != "DEFAULT"
    ]


def refuse_idle(context: typer.Context, reason: str, names: str) -> None:
    """Raise `BadInput` if options with these `names` were given, which have no effect for this `reason`."""
    if flags := given(context, names):
        raise BadInput(f"{reason}; without effect: {', '.join(flags)}", hint="leave them out")


def note_idle(context: typer.Context, reason: str, names: str, say: Commentary) -> None:
    """The same as a note, for commands that write no file, so that scripts may always give an option."""
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
    """The target's and the draft's sampling. Notes options without effect. Raises `BadInput`."""
    from sequoia_cli.engine.decode import default_draft_sampling
    from sequoia_cli.engine.warp import Sampling

    sampling = Sampling(temperature, top_k, top_p)
    shape = 1.0 if draft_temperature is None else draft_temperature
    # At 0 the proposals would always be the same tokens, which suits only a greedy target.
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
