"""The options of `sequoia distill`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sequoia_cli.errors import BadInput

#: Vocabulary sizes of the draft that `--draft-vocab auto` measures; None is all.
CANDIDATES = (4096, 8192, 16384, None)
#: The vocabulary size that `auto` trains with: further ids cost time and are very rare.
TRAINED = 8192


@dataclass(frozen=True)
class Inputs:
    """The options of the command."""

    target: str
    output: str | None
    kind: str
    layers: int
    config: Any
    vocabulary: str
    start: str | None
    count: int
    tokens: int
    dataset: str | None
    column: str | None
    limit: int | None
    skip_bad: bool
    temperatures: tuple[float, ...]
    new_tokens: int
    length: int
    rows: int
    corpus: str | None
    epochs: int
    batch_tokens: int
    learning_rate: float
    passes: int
    raw: bool
    seed: int
    device: str
    dtype: str
    forward: str
    threads: int | None
    trust_remote_code: bool
    force: bool

    def trained_vocabulary(self, vocabulary: int) -> int | None:
        """The number of ids to train with, None for all. Raises `BadInput` for anything else."""
        if self.vocabulary == "all":
            return None
        if self.vocabulary == "auto":
            return TRAINED if vocabulary > TRAINED else None
        try:
            size = int(self.vocabulary)
        except ValueError:
            size = 0
        if not 2 <= size <= vocabulary:
            raise BadInput(
                f"--draft-vocab is '{self.vocabulary}'; expected 2 to {vocabulary} (the ids that "
                "target and draft share), all or auto"
            )
        return size

    def candidates(self, vocabulary: int) -> tuple[int | None, ...]:
        """Vocabulary sizes to choose from after training; None is all."""
        if self.vocabulary != "auto":
            return (self.trained_vocabulary(vocabulary),)
        return tuple(size for size in CANDIDATES if size is None or size < vocabulary)


def read_config(path: str | None, trust_remote_code: bool) -> Any:
    """The transformers configuration in `path`, None without a path. Raises `BadInput`."""
    if path is None:
        return None
    from transformers import AutoConfig

    from sequoia_cli.engine.loading.foreign import refusing

    with refusing(f"--config {path} cannot be used"):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trust_remote_code)
