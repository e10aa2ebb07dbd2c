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
from sequoia_cli.cli.distill.inputs import Inputs
from sequoia_cli.cli.distill.report import provenance, show_draft
from sequoia_cli.cli.distill.texts import scripts_for, write_texts
from sequoia_cli.cli.distill.training import TrainingJob, TrainingTexts, remaining, train
from sequoia_cli.cli.prompts import read_rows
from sequoia_cli.core.artifact import render
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.distill.output_folder import OutputFolder
from sequoia_cli.errors import BadInput, OutOfMemory, SequoiaError, out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

    from sequoia_cli.distill.corpus import Text, Texts
    from sequoia_cli.distill.feature_student import FeatureStudent
    from sequoia_cli.distill.frequent_ids import FrequentIds
    from sequoia_cli.distill.independent_student import IndependentStudent
    from sequoia_cli.distill.objective import Heads
    from sequoia_cli.distill.prediction import Prediction
    from sequoia_cli.distill.students import TrainedDraft
    from sequoia_cli.engine.head import OutputHead
    from sequoia_cli.engine.model import LanguageModel
    from sequoia_cli.measure.session import Session


def distill(context: typer.Context, inputs: Inputs, as_json: bool, say: Commentary) -> None:
    """Run all stages, resuming an interrupted run."""
    from sequoia_cli.distill.held_out import split
    from sequoia_cli.engine.head import output_head
    from sequoia_cli.engine.loading.sources import plain_name
    from sequoia_cli.measure.session import check_forward, open_session

    check_forward(inputs.forward)
    folder = OutputFolder(
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
    own = _draft_head(session, inputs, head)
    scripts = scripts_for(session, inputs, prompts, say)
    size = inputs.trained_vocabulary(_shared_ids(session, own))
    jobs = [TrainingJob(inputs, number, size, folder.work) for number in range(inputs.count)]
    for job in jobs:
        job.require_same()
    folder.begin()
    with _resume_note(folder.work, inputs.corpus, say):
        corpus = write_texts(
            session, inputs, prompts, scripts, folder.work, lambda: _writer(session, inputs, say), say
        )
        held_out, texts = split(corpus.texts())
        run = _Run(session, inputs, head, own, corpus, texts, held_out, say)
        finished, documents, remaining_texts = {}, [], TrainingTexts(texts, held_out)
        for job in jobs:
            document, remaining_texts = run.draft(context, job, remaining_texts)
            finished[job.name_in_output] = job.folder
            documents.append(document)
    folder.publish(finished)
    for name in finished:
        say.note(f"wrote {folder.path / name if name else folder.path}")
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"drafts": documents})


def _writer(session: Session, inputs: Inputs, say: Commentary) -> LanguageModel:
    """The target, prepared for speed to write texts. Training needs the original."""
    from sequoia_cli.distill.students import sharing_weights
    from sequoia_cli.measure.session import prepare

    target = sharing_weights(session.target)
    prepare(target, (), inputs.forward, say.note)
    target.recorder = None  # recorded forwards are of one text; here many are written in a batch
    return target


def _draft_head(session: Session, inputs: Inputs, head: OutputHead) -> OutputHead:
    """The draft's output head for all its ids; `head` is the target's.

    Raises `BadInput` for a draft that cannot be made, before anything is written.
    """
    from sequoia_cli.distill.students import Design, own_head, require_design

    if session.drafts:
        return own_head(session.drafts[0], session.target, head)
    require_design(session.target, head, Design(inputs.kind, inputs.layer_count, 1, inputs.draft_config))
    return head


def _shared_ids(session: Session, own: OutputHead) -> int:
    """The number of ids that the target shares with a draft of this head; either may be padded."""
    return min(session.target.vocabulary, len(own.weight))


@contextmanager
def _resume_note(work: Path, corpus: str | None, say: Commentary) -> Iterator[None]:
    """On an interruption, or a failure that is not `BadInput`, note that the same command resumes."""
    try:
        yield
    except BaseException as error:
        message = out_of_memory(error)
        failed = isinstance(error, SequoiaError) and not isinstance(error, BadInput)
        if isinstance(error, KeyboardInterrupt) or failed or message:
            places = f"{work} and {corpus}" if corpus else f"{work}"
            say.note(f"unfinished work is kept in {places}; the same command resumes")
        if message:
            raise OutOfMemory(f"{message} (in sequoia distill)") from None
        raise


@dataclass(frozen=True)
class _Run:
    """What all drafts of one command share."""

    session: Session
    inputs: Inputs
    head: OutputHead  # of the target
    own: OutputHead  # of the drafts, usually the target's
    corpus: Texts
    texts: Sequence[Text]
    held_out: Sequence[Text]
    say: Commentary

    def draft(
        self, context: typer.Context, job: TrainingJob, texts: TrainingTexts
    ) -> tuple[dict[str, Any], TrainingTexts]:
        """Train a draft, measure it and write its folder.

        Returns its distillation.json and the texts for the next draft.
        """
        from sequoia_cli.distill.students import TrainedDraft

        student, heads = self._student(job.number), self._heads(job.size)
        training = train(job, student, heads, texts, self.corpus.digest, self.say)
        if job.number + 1 < self.inputs.count:
            texts = remaining(job, student, heads, texts, self.say)
        trained = TrainedDraft(student, self.own, self.session.target)
        sizes = self.inputs.candidates(_shared_ids(self.session, self.own))
        choices = {len(chosen.ids): chosen for chosen in map(self._ids, sizes)}
        found = self._predict(trained, choices)
        best = max(found, key=lambda prediction: prediction.speedup)
        self._write(job.folder, trained, choices[best.ids])
        document = provenance(context, self.session, self.corpus, job.number, training, found, best)
        write_atomically(job.folder / "distillation.json", render(document, "json"))
        show_draft(found, best, self.say)
        return document, texts

    def _student(self, number: int) -> FeatureStudent | IndependentStudent:
        """Draft `number` before training."""
        from sequoia_cli.distill.students import Design, new_student, resumed_student

        inputs, session = self.inputs, self.session
        if session.drafts:
            return resumed_student(session.drafts[0], session.target, inputs.passes)
        design = Design(inputs.kind, inputs.layer_count, inputs.passes, inputs.draft_config)
        return new_student(session.target, self.head, design, self.texts, inputs.seed + number)

    def _heads(self, size: int | None) -> Heads:
        """The output heads for training a draft with `size` ids."""
        from sequoia_cli.distill.objective import Heads

        ids = self._ids(size).ids
        target = self._only(self.head, ids)
        own = target if self.own is self.head else self._only(self.own, ids)
        return Heads(ids, own, target, self.head)

    def _ids(self, size: int | None) -> FrequentIds:
        from sequoia_cli.distill.frequent_ids import most_frequent

        found = most_frequent(self.texts, size, _shared_ids(self.session, self.own))
        return found._replace(ids=found.ids.to(self.head.weight.device))

    @staticmethod
    def _only(head: OutputHead, ids: Tensor) -> OutputHead:
        """The head for these ascending ids: not a copy if they are all its ids."""
        return head.only(ids if len(ids) < len(head.weight) else None)

    def _predict(self, trained: TrainedDraft, choices: Mapping[int, FrequentIds]) -> list[Prediction]:
        """Predict the draft's speed with each choice of ids, with the forward of --forward."""
        import torch

        from sequoia_cli.distill.prediction import pieces, predict, prompts_of
        from sequoia_cli.distill.students import sharing_weights
        from sequoia_cli.measure.session import prepare

        session, say = self.session, self.say
        whole = _shared_ids(session, self.own)
        drafts = {
            size: trained.draft(None if size == whole else found.ids) for size, found in choices.items()
        }
        prompts = prompts_of(self.held_out)
        target = sharing_weights(session.target)
        with torch.no_grad():  # the drafts share weights with the trained students
            forward = prepare(target, tuple(drafts.values()), self.inputs.forward, say.note)
        with say.progress() as bar:
            task = bar.add_task("measuring the draft", total=pieces(len(drafts), len(prompts)))
            return predict(
                target,
                drafts,
                prompts,
                session.eos_ids,
                {**session.conditions, "forward": forward},
                lambda: bar.advance(task),
            )

    def _write(self, place: Path, trained: TrainedDraft, chosen: FrequentIds) -> None:
        """Write the draft's folder, with a head for the chosen ids."""
        from sequoia_cli.engine.loading.sources import plain_name
        from sequoia_cli.engine.loading.vocabulary import write_vocabulary

        shutil.rmtree(place, ignore_errors=True)
        trained.save(place, plain_name(self.inputs.target), self.session.tokenizer)
        if len(chosen.ids) < _shared_ids(self.session, self.own):
            counted = {"coverage": round(chosen.coverage, 6), "counted_on": self.corpus.digest}
            write_vocabulary(place, chosen.ids.tolist(), counted)
