"""The second stage of `sequoia distill`: training each draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import TextColumn

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill.inputs import Inputs
from sequoia_cli.cli.distill.report import show_held_out
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.distill.corpus import Text
    from sequoia_cli.distill.objective import Heads, Student
    from sequoia_cli.distill.training import Progress, Training


class TrainingTexts(NamedTuple):
    """Texts to train on and texts held out; `answer` excludes tokens that an earlier draft gets right."""

    learned: Sequence[Text]
    held_out: Sequence[Text]


@dataclass(frozen=True)
class TrainingJob:
    """The training of draft `number` (from 0) with a head of `size` ids (None: all); files go into `work`."""

    inputs: Inputs
    number: int
    size: int | None
    work: Path

    @property
    def name(self) -> str:
        """The name of the job on the terminal."""
        return "training" if self.inputs.count == 1 else f"training draft {self.number + 1}"

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the unfinished training."""
        return self.work / f"training-{self.number + 1}.safetensors"

    @property
    def folder(self) -> Path:
        """The finished draft, before it is moved into the output folder."""
        return self.work / f"draft-{self.number + 1}"

    @property
    def name_in_output(self) -> str:
        """Its subfolder of the output folder; empty if it is the only draft."""
        return str(self.number + 1) if self.inputs.count > 1 else ""

    @property
    def conditions(self) -> dict[str, Any]:
        """Settings that must match for a training to be resumed, except the texts, which are written later.

        The learning rate may differ: a training that diverged is resumed with a smaller one.
        """
        names = ("kind", "passes", "start", "count", "tokens", "epochs", "batch_tokens", "seed")
        config = self.inputs.draft_config
        return {
            **{name: getattr(self.inputs, name) for name in names},
            "layers": self.inputs.layer_count,
            "config": config.to_dict() if config is not None else None,
            "draft_vocab": self.size if self.size is not None else "all",
            "number": self.number,
        }

    def require_same(self) -> None:
        """Raise `BadInput` for an unfinished training with other options, unless --force restarts it."""
        from sequoia_cli.distill.checkpoint import require_same

        if not self.inputs.force:
            require_same(self.checkpoint, self.conditions)


def train(
    job: TrainingJob, student: Student, heads: Heads, texts: TrainingTexts, digest: str, say: Commentary
) -> Training:
    """Train the student to the end, resuming from its checkpoint; `digest` is the corpus's.

    Raises `BadInput` if there is nothing to train on, or the checkpoint has other conditions.
    """
    from sequoia_cli.distill.checkpoint import differences
    from sequoia_cli.distill.training import Recipe, Training

    inputs = job.inputs
    if not texts.learned or not texts.held_out:
        raise BadInput(
            f"draft {job.number + 1} has nothing to learn: the drafts before it predict every token",
            hint="give a smaller --count, or more --tokens",
        )
    conditions = {**job.conditions, "corpus": digest}
    if inputs.force and (difference := differences(job.checkpoint, conditions)):
        say.note(f"{job.name} restarts: {difference}")
        job.checkpoint.unlink()
    recipe = Recipe(inputs.epochs, inputs.batch_tokens, inputs.learning_rate, seed=inputs.seed)
    training = Training(student, heads, texts.learned, texts.held_out, recipe, job.checkpoint, conditions)
    if training.step:
        say.note(f"resuming from step {training.step} of {training.steps}")
    _run(training, job, say)
    if training.best is not None:
        show_held_out(training.best, job.number, say)
    return training


def _run(training: Training, job: TrainingJob, say: Commentary) -> None:
    """Train with a progress bar, or without a terminal with a line per evaluation."""
    rates = "p_1" if job.number == 0 else "p_1 of the rest"
    with say.progress(TextColumn("{task.fields[state]}", markup=False)) as bar:
        task = bar.add_task(job.name, total=training.steps, completed=training.step, state="")

        def on_step(progress: Progress) -> None:
            best = f" · {rates} {progress.best.p[0][0]:.3f}" if progress.best else ""
            state = f"{progress.tokens_per_second:,.0f} tokens/s · loss {progress.loss:.3f}{best}"
            bar.update(task, completed=progress.step, state=state)
            if progress.evaluated and not say.shows_progress:
                left = timedelta(seconds=round(progress.seconds_left))
                say.note(f"{job.name}: step {progress.step} of {progress.steps} · {state} · {left} left")

        training.run(on_step)


def remaining(
    job: TrainingJob, student: Student, heads: Heads, texts: TrainingTexts, say: Commentary
) -> TrainingTexts:
    """The texts for the next draft: only the tokens that this draft gets wrong too are `answer` tokens."""
    from sequoia_cli.distill.objective import only_wrong

    with say.progress() as bar:
        task = bar.add_task(f"finding what draft {job.number + 1} gets wrong", total=sum(map(len, texts)))

        def wrong_in(part: Sequence[Text]) -> list[Text]:
            found = only_wrong(
                student, part, heads, job.inputs.batch_tokens, lambda count: bar.advance(task, count)
            )
            return [text for text in found if bool(text.answer.any())]

        return TrainingTexts(wrong_in(texts.learned), wrong_in(texts.held_out))
