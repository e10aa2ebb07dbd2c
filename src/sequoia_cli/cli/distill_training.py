"""The training stage of `sequoia distill`: what each draft learns from, and how it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.progress import TextColumn

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill_inputs import Inputs
from sequoia_cli.cli.distill_report import show_held_out
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.distill.corpus import Text
    from sequoia_cli.distill.objective import Heads, Student
    from sequoia_cli.distill.training import Progress, Training


class Left(NamedTuple):
    """Texts to learn from and texts held out; as answers counts only what the drafts before get wrong."""

    texts: Sequence[Text]
    held_out: Sequence[Text]


@dataclass(frozen=True)
class Job:
    """Draft `number` (from 0) of a command, trained with a head of `size` ids (None: all), kept in `work`."""

    inputs: Inputs
    number: int
    size: int | None
    work: Path

    @property
    def name(self) -> str:
        """What a person is told that is done."""
        return "training" if self.inputs.count == 1 else f"training draft {self.number + 1}"

    @property
    def checkpoint(self) -> Path:
        """Where the training is kept as far as it came."""
        return self.work / f"training-{self.number + 1}.safetensors"

    @property
    def folder(self) -> Path:
        """The finished draft, before it is put in its place."""
        return self.work / f"draft-{self.number + 1}"

    @property
    def below(self) -> str:
        """Its place below the folder of all drafts; empty where it is the only one."""
        return str(self.number + 1) if self.inputs.count > 1 else ""

    @property
    def conditions(self) -> dict[str, Any]:
        """Settings that must match for a training to be resumed, as far as known before there are texts.

        The learning rate is not among them: one that has diverged is resumed with a smaller one.
        """
        names = ("kind", "layers", "passes", "start", "count", "tokens", "epochs", "batch_tokens", "seed")
        config = self.inputs.config
        return {
            **{name: getattr(self.inputs, name) for name in names},
            "config": config.to_dict() if config is not None else None,
            "draft_vocab": self.size if self.size is not None else "all",
            "number": self.number,
        }

    def require_same(self) -> None:
        """Raise `BadInput` for an unfinished training of other options, unless it is to restart."""
        from sequoia_cli.distill.checkpoint import require_same

        if not self.inputs.force:
            require_same(self.checkpoint, self.conditions)


def train(job: Job, student: Student, heads: Heads, left: Left, digest: str, say: Commentary) -> Training:
    """Train the student to the end, on texts of this digest; go on with what was kept of such a training.

    Raises `BadInput` where nothing is left to learn, or what was kept is of other conditions.
    """
    from sequoia_cli.distill.checkpoint import differences
    from sequoia_cli.distill.training import Recipe, Training

    inputs = job.inputs
    if not left.texts or not left.held_out:
        raise BadInput(
            f"draft {job.number + 1} has nothing to learn: those before it are right about all texts",
            hint="give a smaller --count, or more --tokens",
        )
    conditions = {**job.conditions, "corpus": digest}
    if inputs.force and (difference := differences(job.checkpoint, conditions)):
        say.note(f"{job.name} begins anew: {difference}")
        job.checkpoint.unlink()
    recipe = Recipe(inputs.epochs, inputs.batch_tokens, inputs.learning_rate, seed=inputs.seed)
    training = Training(student, heads, left.texts, left.held_out, recipe, job.checkpoint, conditions)
    if training.step:
        say.note(f"going on from step {training.step} of {training.steps}")
    _run(training, job, say)
    if training.best is not None:
        show_held_out(training.best, job.number, say)
    return training


def _run(training: Training, job: Job, say: Commentary) -> None:
    """Train with a bar; where there is no terminal, with a line per look at held-out texts."""
    rates = "p_1" if job.number == 0 else "p_1 of what is left"
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


def still_wrong(job: Job, student: Student, heads: Heads, left: Left, say: Commentary) -> Left:
    """What is left for the next draft: of the texts, the tokens that this trained one gets wrong too."""
    from sequoia_cli.distill.objective import missed

    with say.progress() as bar:
        task = bar.add_task(f"finding what draft {job.number + 1} gets wrong", total=sum(map(len, left)))

        def wrong_in(texts: Sequence[Text]) -> list[Text]:
            found = missed(
                student, texts, heads, job.inputs.batch_tokens, lambda count: bar.advance(task, count)
            )
            return [text for text in found if bool(text.answer.any())]

        return Left(wrong_in(left.texts), wrong_in(left.held_out))
