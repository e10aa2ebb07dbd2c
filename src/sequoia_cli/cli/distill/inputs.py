"""The options of `sequoia distill`, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import typer

from sequoia_cli.cli import options
from sequoia_cli.distill import FEATURE, INDEPENDENT, KINDS
from sequoia_cli.errors import BadInput

#: Vocabulary sizes of the draft that `--draft-vocab auto` measures; None is all.
CANDIDATES = (4096, 8192, 16384, None)
#: The vocabulary size that `auto` trains with: further ids cost time and are very rare.
TRAINED = 8192


@dataclass(frozen=True)
class Inputs:
    """The options of the command. `check` has passed before a stage reads them."""

    target: options.Target = options.DEFAULT_TARGET
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="DIR", help="The draft's folder; else drafts/<target>-draft."),
    ] = None
    kind: Annotated[
        str,
        typer.Option("--kind", help="feature (reads the target's hidden states) or independent (a model)."),
    ] = FEATURE
    layers: Annotated[
        int | None, typer.Option("--layers", help="Layers of the draft; else 1, or 3 if independent.")
    ] = None
    config: Annotated[
        str | None,
        typer.Option("--config", metavar="PATH", help="A config.json for an independent draft."),
    ] = None
    draft_vocab: Annotated[
        str,
        typer.Option(
            "--draft-vocab",
            metavar="N|all|auto",
            help="Keep the N most frequent ids in the draft's head; auto measures 4k, 8k, 16k and all.",
        ),
    ] = "auto"
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="DRAFT",
            help="Train this draft further; --epochs 0 only cuts its head, to ids counted over all --tokens.",
        ),
    ] = None
    count: Annotated[
        int, typer.Option("--count", help="Number of drafts; each learns what those before it get wrong.")
    ] = 1
    tokens: Annotated[
        int,
        typer.Option("--tokens", help="Tokens of text to train on; of a larger --corpus, the first ones."),
    ] = 500_000
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset", metavar="SOURCE", help="Prompts, as in acceptance; else the target writes them."
        ),
    ] = None
    column: options.Column = None
    limit: Annotated[int | None, typer.Option("--limit", help="Use the first N prompts.")] = None
    skip_bad: options.SkipBad = False
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            "--temperature", "-T", help="Temperature of the answers; may be repeated; else 0, 0.6, 0.9."
        ),
    ] = None
    new_tokens: Annotated[int, typer.Option("--max-new-tokens", help="Most tokens of an answer.")] = 128
    length: Annotated[int, typer.Option("--length", help="Most tokens of a text.")] = 384
    rows: Annotated[int, typer.Option("--rows", help="Texts written side by side.")] = 128
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", metavar="DIR", help="Keep the texts here, or train on those already here."),
    ] = None
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the texts.")] = 6
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens of a training step.")] = 2048
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")] = 2e-3
    passes: Annotated[
        int, typer.Option("--passes", help="Levels a feature draft is trained for on its own predictions.")
    ] = 3
    raw: options.Raw = False
    seed: options.Seed = 0
    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    forward: options.Forward = options.DEFAULT_FORWARD
    threads: options.Threads = None
    trust_remote_code: options.TrustRemoteCode = False
    force: options.Force = False

    def check(self) -> None:
        """Raise `BadInput` for an option, or a combination, that is not allowed."""
        if self.kind not in KINDS:
            raise BadInput(f"--kind is '{self.kind}'; expected {' or '.join(KINDS)}")
        if self.config is not None and self.kind != INDEPENDENT:
            raise BadInput("--config is for independent drafts; add --kind independent")
        if self.config is not None and self.layers is not None:
            raise BadInput("--config says how many layers there are; leave --layers out")
        if self.start is not None and (self.config is not None or self.layers is not None):
            raise BadInput("--start trains an existing draft; leave --layers and --config out")
        if self.start is not None and self.count > 1:
            raise BadInput("--start trains one draft; leave --count out")
        options.at_least(
            {
                "--layers": (self.layers, 1),
                "--count": (self.count, 1),
                "--tokens": (self.tokens, 1),
                "--limit": (self.limit, 1),
                "--max-new-tokens": (self.new_tokens, 2),
                "--length": (self.length, 16),
                "--rows": (self.rows, 1),
                "--epochs": (self.epochs, 0 if self.start else 1),
                "--batch-tokens": (self.batch_tokens, 1),
                "--passes": (self.passes, 1),
            }
        )
        if not 0 < self.learning_rate < 1:
            raise BadInput(f"--learning-rate is {self.learning_rate}; expected a number above 0 and below 1")
        for value in self.temperature or ():
            if not 0 <= value < math.inf:
                raise BadInput(f"--temperature is {value}; expected a number from 0 (greedy) up")
        _ = self.draft_config  # reading it checks it

    @property
    def layer_count(self) -> int:
        """--layers, or its default."""
        return self.layers if self.layers is not None else 3 if self.kind == INDEPENDENT else 1

    @property
    def temperatures(self) -> tuple[float, ...]:
        """--temperature, or its default."""
        return tuple(self.temperature or (0.0, 0.6, 0.9))

    @cached_property
    def draft_config(self) -> Any:
        """The transformers configuration in --config, None without one. Raises `BadInput`."""
        if self.config is None:
            return None
        from transformers import AutoConfig

        from sequoia_cli.engine.loading.foreign import refusing

        with refusing(f"--config {self.config} cannot be used"):
            return AutoConfig.from_pretrained(
                self.config, local_files_only=True, trust_remote_code=self.trust_remote_code
            )

    def trained_vocabulary(self, vocabulary: int) -> int | None:
        """The number of ids to train with, None for all. Raises `BadInput` for anything else."""
        if self.draft_vocab == "all":
            return None
        if self.draft_vocab == "auto":
            return TRAINED if vocabulary > TRAINED else None
        try:
            size = int(self.draft_vocab)
        except ValueError:
            size = 0
        if not 2 <= size <= vocabulary:
            raise BadInput(
                f"--draft-vocab is '{self.draft_vocab}'; expected 2 to {vocabulary} (the ids that "
                "target and draft share), all or auto"
            )
        return size

    def candidates(self, vocabulary: int) -> tuple[int | None, ...]:
        """Vocabulary sizes to choose from after training; None is all."""
        if self.draft_vocab != "auto":
            return (self.trained_vocabulary(vocabulary),)
        return tuple(size for size in CANDIDATES if size is None or size < vocabulary)
