"""The stages of `sequoia distill`: write texts, train on them, measure the draft."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sequoia_cli.cli.console import Commentary, print_json
from sequoia_cli.cli.distill_inputs import DraftFolder, Inputs
from sequoia_cli.cli.distill_outlook import Outlook, outlooks, pieces, prompts_of
from sequoia_cli.cli.distill_report import provenance, show_draft
from sequoia_cli.cli.distill_texts import scripts_for, split, written
from sequoia_cli.cli.distill_training import Job, Left, still_wrong, train
from sequoia_cli.cli.prompts import read_rows
from sequoia_cli.core.artifact import render
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.errors import BadInput, OutOfMemory, SequoiaError, out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

    from sequoia_cli.distill.corpus import Text, Texts
    from sequoia_cli.distill.feature_student import FeatureStudent
    from sequoia_cli.distill.independent_student import IndependentStudent
    from sequoia_cli.distill.objective import Heads
    from sequoia_cli.distill.students import Kept
    from sequoia_cli.distill.vocabulary import Vocabulary
    from sequoia_cli.engine.head import OutputHead
    from sequoia_cli.engine.model import LanguageModel
    from sequoia_cli.measure.session import Session


def distill(context: typer.Context, inputs: Inputs, as_json: bool, say: Commentary) -> None:
    """Run all stages; what is finished of an interrupted run is not done again."""
    from sequoia_cli.engine.head import output_head
    from sequoia_cli.engine.loading.sources import plain_name
    from sequoia_cli.measure.session import check_forward, open_session

    check_forward(inputs.forward)
    folder = DraftFolder(
        Path(inputs.output or f"drafts/{plain_name(inputs.target)}-draft"),
        force=inputs.force,
        corpus=inputs.corpus,
    )
    context.call_on_close(folder.release)
    prompts = None
    if inputs.dataset:
        prompts = read_rows(
            inputs.dataset, say, limit=inputs.limit, column=inputs.column, skip_bad=inputs.skip_bad
        )
    session = open_session(
        inputs.target,
        [inputs.start] if inputs.start else [],
        device=inputs.device,
        dtype=inputs.dtype,
        trust_remote_code=inputs.trust_remote_code,
        threads=inputs.threads,
        progress=say.shows_progress,
        announce=say.note,
    )
    head = output_head(session.target, f"target '{inputs.target}'")
    own = _require_fit(session, inputs, head)
    scripts = scripts_for(session, inputs, prompts, say)
    size = inputs.trained_vocabulary(_common(session, own))
    jobs = [Job(inputs, number, size, folder.work) for number in range(inputs.count)]
    for job in jobs:
        job.require_same()
    folder.begin()
    with _kept(folder.work, inputs.corpus, say):
        corpus = written(
            session, inputs, prompts, scripts, folder.work, lambda: _writer(session, inputs, say), say
        )
        held_out, texts = split(corpus.texts())
        run = _Run(session, inputs, head, own, corpus, texts, held_out, say)
        finished, documents, left = {}, [], Left(texts, held_out)
        for job in jobs:
            document, left = run.draft(context, job, left)
            finished[job.below] = job.folder
            documents.append(document)
    folder.publish(finished)
    for name in finished:
        say.note(f"wrote {folder.path / name if name else folder.path}")
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"drafts": documents})


def _writer(session: Session, inputs: Inputs, say: Commentary) -> LanguageModel:
    """The target as `generate` runs it; training needs it as it is."""
    from sequoia_cli.distill.students import twin
    from sequoia_cli.measure.session import prepare

    target = twin(session.target)
    prepare(target, (), inputs.forward, say.note)
    target.recorder = None  # a recorded forward is of one text, and here many are written side by side
    return target


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
def _kept(work: Path, corpus: str | None, say: Commentary) -> Iterator[None]:
    """An interruption, or a failure that is not the input's, says that the same command resumes."""
    try:
        yield
    except BaseException as error:
        message = out_of_memory(error)
        failed = isinstance(error, SequoiaError) and not isinstance(error, BadInput)
        if isinstance(error, KeyboardInterrupt) or failed or message:
            places = f"{work} and {corpus}" if corpus else f"{work}"
            say.note(f"what was done is kept in {places}; the same command goes on from there")
        if message:
            raise OutOfMemory(f"{message} (in sequoia distill)") from None
        raise


@dataclass(frozen=True)
class _Run:
    """What all drafts of one command have in common."""

    session: Session
    inputs: Inputs
    head: OutputHead  # of the target
    own: OutputHead  # of the drafts, which mostly is the same
    corpus: Texts
    texts: Sequence[Text]
    held_out: Sequence[Text]
    say: Commentary

    def draft(self, context: typer.Context, job: Job, left: Left) -> tuple[dict[str, Any], Left]:
        """Train a draft on what is left, measure it and write its folder.

        Returns what was found, and what it leaves for the next one.
        """
        from sequoia_cli.distill.students import Kept

        student, heads = self._student(job.number), self._heads(job.size)
        training = train(job, student, heads, left, self.corpus.digest, self.say)
        if job.number + 1 < self.inputs.count:
            left = still_wrong(job, student, heads, left, self.say)
        kept = Kept(student, self.own, self.session.target)
        sizes = self.inputs.candidates(_common(self.session, self.own))
        choices = {len(found.ids): found for found in map(self._ids, sizes)}
        found = self._look(kept, choices)
        best = max(found, key=lambda outlook: outlook.speedup)
        self._write(job.folder, kept, choices[best.ids])
        document = provenance(context, self.session, self.corpus, job.number, training, found, best)
        write_atomically(job.folder / "distillation.json", render(document, "json"))
        show_draft(found, best, self.say)
        return document, left

    def _student(self, number: int) -> FeatureStudent | IndependentStudent:
        """Draft `number` before training."""
        from sequoia_cli.distill.students import Design, new_student, resumed_student

        inputs, session = self.inputs, self.session
        if session.drafts:
            return resumed_student(session.drafts[0], session.target, inputs.passes)
        design = Design(inputs.kind, inputs.layers, inputs.passes, inputs.config)
        return new_student(session.target, self.head, design, self.texts, inputs.seed + number)

    def _heads(self, size: int | None) -> Heads:
        """What a draft of `size` ids is trained with."""
        from sequoia_cli.distill.objective import Heads

        ids = self._ids(size).ids
        target = self._only(self.head, ids)
        own = target if self.own is self.head else self._only(self.own, ids)
        return Heads(ids, own, target, self.head)

    def _ids(self, size: int | None) -> Vocabulary:
        from sequoia_cli.distill.vocabulary import most_frequent

        found = most_frequent(self.texts, size, _common(self.session, self.own))
        return found._replace(ids=found.ids.to(self.head.weight.device))

    @staticmethod
    def _only(head: OutputHead, ids: Tensor) -> OutputHead:
        """The head for these rising ids: itself, not a copy, where they are all that it has."""
        return head.only(ids if len(ids) < len(head.weight) else None)

    def _look(self, kept: Kept, choices: Mapping[int, Vocabulary]) -> list[Outlook]:
        """The outlook of the draft with each choice of ids, with the forward that `generate` uses."""
        import torch

        from sequoia_cli.distill.students import twin
        from sequoia_cli.measure.session import prepare

        session, say = self.session, self.say
        whole = _common(session, self.own)
        drafts = {size: kept.draft(None if size == whole else found.ids) for size, found in choices.items()}
        prompts = prompts_of(self.held_out)
        target = twin(session.target)
        with torch.no_grad():  # the drafts' weights are those of a training
            forward = prepare(target, tuple(drafts.values()), self.inputs.forward, say.note)
        with say.progress() as bar:
            task = bar.add_task("measuring the draft", total=pieces(len(drafts), len(prompts)))
            return outlooks(
                target,
                drafts,
                prompts,
                session.eos_ids,
                {**session.conditions, "forward": forward},
                lambda: bar.advance(task),
            )

    def _write(self, place: Path, kept: Kept, chosen: Vocabulary) -> None:
        """The draft's folder, with a head for the ids that were chosen."""
        from sequoia_cli.engine.loading.sources import plain_name
        from sequoia_cli.engine.loading.vocabulary import write_vocabulary

        shutil.rmtree(place, ignore_errors=True)
        kept.save(place, plain_name(self.inputs.target), self.session.tokenizer)
        if len(chosen.ids) < _common(self.session, self.own):
            counted = {"coverage": round(chosen.coverage, 6), "counted_on": self.corpus.digest}
            write_vocabulary(place, chosen.ids.tolist(), counted)
