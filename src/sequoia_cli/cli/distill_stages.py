"""The stages of `sequoia distill`: write texts, train on them, see what came of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import TextColumn

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill_inputs import DraftFolder, Inputs
from sequoia_cli.cli.distill_outlook import Outlook, outlooks, pieces, prompts_of
from sequoia_cli.cli.distill_report import provenance, show_draft
from sequoia_cli.cli.distill_texts import scripts_for, split, written
from sequoia_cli.core.artifact import render, write_atomically
from sequoia_cli.errors import BadInput, SequoiaError, out_of_memory
from sequoia_cli.measure.prompts import load_prompts

if TYPE_CHECKING:
    from torch import Tensor

    from sequoia_cli.distill.corpus import Text, Texts
    from sequoia_cli.distill.objective import Heads
    from sequoia_cli.distill.students import Kept
    from sequoia_cli.distill.training import Progress, Training
    from sequoia_cli.distill.vocabulary import Vocabulary
    from sequoia_cli.engine.head import OutputHead
    from sequoia_cli.measure.session import Session


def distill(context: typer.Context, inputs: Inputs, as_json: bool, say: Commentary) -> None:
    """Run all stages; what is finished of an interrupted run is not done again."""
    from sequoia_cli.engine.head import output_head
    from sequoia_cli.measure.session import open_session, plain_name

    folder = DraftFolder(
        Path(inputs.output or f"drafts/{plain_name(inputs.target)}-draft"),
        force=inputs.force,
        corpus=inputs.corpus,
    )
    prompts = (
        load_prompts(inputs.dataset, limit=inputs.limit, column=inputs.column) if inputs.dataset else None
    )
    session = open_session(
        inputs.target,
        [inputs.start] if inputs.start else [],
        device=inputs.device,
        dtype=inputs.dtype,
        trust_remote_code=inputs.trust_remote_code,
        progress=say.shows_progress,
        announce=say.note,
    )
    head = output_head(session.target, f"target '{inputs.target}'")
    own = _require_fit(session, inputs, head)
    scripts = scripts_for(session, inputs, prompts, say)
    size = inputs.trained_vocabulary(_common(session, own))
    folder.begin()
    with _kept(folder.work, say):
        corpus = written(session, inputs, prompts, scripts, folder.work, say)
        held_out, texts = split(corpus.texts())
        run = _Run(session, inputs, head, own, corpus, tuple(texts), tuple(held_out), folder, say)
        finished, documents = {}, []
        for number in range(inputs.count):
            name = str(number + 1) if inputs.count > 1 else ""
            place, document = run.draft(context, number, size)
            finished[name] = place
            documents.append(document)
    folder.publish(finished)
    for name in finished:
        say.note(f"wrote {folder.path / name if name else folder.path}")
    if as_json:
        typer.echo(render(documents[0] if len(documents) == 1 else {"drafts": documents}, "json"), nl=False)


def _require_fit(session: Session, inputs: Inputs, head: OutputHead) -> OutputHead:
    """The output head that the draft has for all its ids; `head` is the target's.

    Raises `BadInput` for a draft that cannot be made, before anything is written.
    """
    from sequoia_cli.distill.students import Design, own_head, require_design

    own = head
    if session.drafts:
        own = own_head(session.drafts[0], session.target, head)
    else:
        require_design(session.target, head, Design(inputs.kind, inputs.layers, 1, inputs.config))
    return own


def _common(session: Session, own: OutputHead) -> int:
    """Ids that the target shares with a draft of this head: either may be padded."""
    return min(session.target.vocabulary, len(own.weight))


@contextmanager
def _kept(work: Path, say: Commentary) -> Iterator[None]:
    """An interruption or a failure says that the same command goes on."""
    try:
        yield
    except BaseException as error:
        say.note(f"what was done is kept in {work}; the same command goes on from there")
        if message := out_of_memory(error):
            raise SequoiaError(
                message,
                hint="writing texts needs less with a smaller --rows or --length, training with a smaller "
                "--batch-tokens",
            ) from None
        raise


@dataclass
class _Run:
    """What all drafts of one command have in common."""

    session: Session
    inputs: Inputs
    head: OutputHead  # of the target
    own: OutputHead  # of the drafts, which mostly is the same
    corpus: Texts
    texts: tuple[Text, ...]
    held_out: tuple[Text, ...]
    folder: DraftFolder
    say: Commentary

    def __post_init__(self) -> None:
        #: Texts and held-out texts of which only what the drafts so far get wrong counts as answers.
        self._left = self.texts, self.held_out

    def draft(self, context: typer.Context, number: int, size: int | None) -> tuple[Path, dict[str, Any]]:
        """Train draft `number`, measure it and write its folder; returns that and what was found."""
        from sequoia_cli.distill.objective import Heads, missed
        from sequoia_cli.distill.students import Design, Kept, new_student, resumed_student
        from sequoia_cli.engine.loading.vocabulary import write_vocabulary
        from sequoia_cli.measure.session import plain_name

        inputs, session = self.inputs, self.session
        if session.drafts:
            student = resumed_student(session.drafts[0], session.target, inputs.passes)
        else:
            design = Design(inputs.kind, inputs.layers, inputs.passes, inputs.config)
            student = new_student(session.target, self.head, design, self.texts, inputs.seed + number)
        ids = self._ids(size).ids
        target = self._only(self.head, ids)
        own = target if self.own is self.head else self._only(self.own, ids)
        heads = Heads(ids, own, target, self.head)
        training = self._train(student, heads, number)
        if number + 1 < inputs.count:
            texts, held_out = (
                tuple(missed(student, text, heads) for text in texts if bool(text.answer.any()))
                for texts in self._left
            )
            self._left = texts, held_out
        kept = Kept(student, self.own, session.target)
        common = _common(session, self.own)
        sizes = inputs.candidates(common)
        choices = {len(found.ids): found for found in map(self._ids, sizes)}
        found = self._look(kept, choices)
        best = max(found, key=lambda outlook: outlook.speedup)
        place = self.folder.work / f"draft-{number + 1}"
        shutil.rmtree(place, ignore_errors=True)
        kept.save(place, plain_name(inputs.target), session.tokenizer)
        chosen = choices[best.ids]
        if best.ids < common:
            counted = {"coverage": round(chosen.coverage, 6), "counted_on": self.corpus.digest}
            write_vocabulary(place, chosen.ids.tolist(), counted)
        document = provenance(context, session, self.corpus, training, found, best)
        write_atomically(place / "distillation.json", render(document, "json"))
        show_draft(found, best, self.say)
        return place, document

    def _ids(self, size: int | None) -> Vocabulary:
        from sequoia_cli.distill.vocabulary import most_frequent

        found = most_frequent(self.texts, size, _common(self.session, self.own))
        return found._replace(ids=found.ids.to(self.head.weight.device))

    @staticmethod
    def _only(head: OutputHead, ids: Tensor) -> OutputHead:
        """The head for these rising ids: itself, not a copy, where they are all that it has."""
        return head.only(ids if len(ids) < len(head.weight) else None)

    def _train(self, student: Any, heads: Heads, number: int) -> Training:
        from sequoia_cli.distill.training import Recipe, Training

        inputs, say = self.inputs, self.say
        recipe = Recipe(inputs.epochs, inputs.batch_tokens, inputs.learning_rate, seed=inputs.seed)
        texts, held_out = ([text for text in texts if bool(text.answer.any())] for texts in self._left)
        if not texts or not held_out:
            raise BadInput(
                f"draft {number + 1} has nothing to learn: those before it are right about all texts",
                hint="give a smaller --count, or more --tokens",
            )
        training = Training(
            student,
            heads,
            texts,
            held_out,
            recipe,
            self.folder.work / f"training-{number + 1}.safetensors",
            _conditions(inputs, self.corpus, number, heads),
        )
        if training.step:
            say.note(f"going on from step {training.step} of {training.steps}")
        with say.progress(TextColumn("{task.fields[state]}")) as bar:
            name = "training" if inputs.count == 1 else f"training draft {number + 1}"
            task = bar.add_task(name, total=training.steps, completed=training.step, state="")

            def on_step(progress: Progress) -> None:
                best = f" · p_1 {progress.best.p[0][0]:.3f}" if progress.best else ""
                state = f"{progress.tokens_per_second:,.0f} tokens/s · loss {progress.loss:.3f}{best}"
                bar.update(task, completed=progress.step, state=state)
                if progress.evaluated and not say.shows_progress:  # what a log is to show
                    left = timedelta(seconds=round(progress.seconds_left))
                    say.note(f"{name}: step {progress.step} of {progress.steps} · {state} · {left} left")

            training.run(on_step)
        if training.best is not None:
            rows = "; ".join(
                f"level {depth + 1} " + " ".join(f"{rate:.3f}" for rate in row[:4])
                for depth, row in enumerate(training.best.p)
            )
            say.note(f"held-out texts, the target's choice by rank: {rows} (step {training.best.step})")
        return training

    def _look(self, kept: Kept, choices: Mapping[int, Vocabulary]) -> list[Outlook]:
        session, say = self.session, self.say
        whole = _common(session, self.own)
        drafts = {size: kept.draft(None if size == whole else found.ids) for size, found in choices.items()}
        prompts = prompts_of(self.held_out)
        with say.progress() as bar:
            task = bar.add_task("measuring the draft", total=pieces(len(drafts), len(prompts)))
            return outlooks(
                session.target,
                drafts,
                prompts,
                session.eos_ids,
                session.conditions,
                lambda: bar.advance(task),
            )


def _conditions(inputs: Inputs, corpus: Texts, number: int, heads: Heads) -> dict[str, Any]:
    """What a training that was interrupted must agree on to be gone on with; not the learning rate."""
    names = ("kind", "layers", "passes", "start", "count", "epochs", "batch_tokens", "seed")
    return {
        **{name: getattr(inputs, name) for name in names},
        "config": inputs.config.to_dict() if inputs.config is not None else None,
        "corpus": corpus.digest,
        "ids": len(heads.ids),
        "number": number,
    }
