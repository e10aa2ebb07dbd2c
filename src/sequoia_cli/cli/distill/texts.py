"""The first stage of `sequoia distill`: the target writes the texts to train on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import TextColumn

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill.inputs import Inputs
from sequoia_cli.cli.prompts import encoded
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.distill.corpus import Corpus, Texts
    from sequoia_cli.distill.scripts import Script
    from sequoia_cli.engine.model import LanguageModel
    from sequoia_cli.measure.prompts import PromptSet
    from sequoia_cli.measure.session import Session


def write_texts(
    session: Session,
    inputs: Inputs,
    prompts: PromptSet | None,
    scripts: Callable[[int], Iterator[Script]],
    work: Path,
    writer: Callable[[], LanguageModel],
    say: Commentary,
) -> Texts:
    """Write texts until the corpus has enough, and return those to train on.

    They are kept in `work` unless --corpus names a folder. `scripts` come from `scripts_for`; `writer` makes
    the target, prepared for speed, and is called only if texts have to be written.
    """
    from sequoia_cli.distill.corpus import Corpus, write_lock

    chats = _uses_chat_template(session, inputs)
    own = "the target's own" if chats else "the target's own, behind openings"  # as in existing corpora
    conditions = {
        **{key: session.conditions[key] for key in ("target", "dtype")},
        "target_weights": session.target_weights,
        "prompts": prompts.digest if prompts else own,
        "temperatures": list(inputs.temperatures),
        "max_new_tokens": inputs.new_tokens,
        "length": inputs.length,
        "seed": inputs.seed,
        "chat_template": chats,
    }
    folder = Path(inputs.corpus) if inputs.corpus else work / "corpus"
    if Corpus.holds_texts(folder):
        corpus = Corpus(folder, conditions)
        if corpus.tokens >= inputs.tokens:  # only read: needs no lock
            first = corpus.first(inputs.tokens)
            left_out = f"; learning from the first {first.tokens:,}" if first.tokens < corpus.tokens else ""
            say.note(f"{corpus.folder} has {corpus.tokens:,} tokens already{left_out}")
            return first
    with write_lock(folder):
        corpus = Corpus(folder, conditions)  # read again under the lock: another command may have added texts
        if corpus.tokens < inputs.tokens:
            _write(session, inputs, corpus, scripts, writer, say)
    return corpus.first(inputs.tokens)


def _write(
    session: Session,
    inputs: Inputs,
    corpus: Corpus,
    scripts: Callable[[int], Iterator[Script]],
    writer: Callable[[], LanguageModel],
    say: Commentary,
) -> None:
    """Write texts until the corpus has --tokens tokens."""
    from sequoia_cli.distill.writing import write_corpus

    if corpus.tokens:
        say.note(f"resuming from {corpus.tokens:,} tokens in {corpus.folder}")
    target = writer()
    began, before = time.perf_counter(), corpus.tokens
    with say.progress(TextColumn("{task.fields[rate]}", markup=False)) as bar:
        task = bar.add_task("writing texts", total=inputs.tokens, completed=corpus.tokens, rate="")

        def on_tokens(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[task].speed
            bar.update(task, rate=f"{speed:,.0f} tokens/s" if speed else "")

        def on_shard() -> None:
            if say.shows_progress:  # the bar shows it; a log gets a line per shard
                return
            speed = (corpus.tokens - before) / (time.perf_counter() - began)
            left = timedelta(seconds=round(max(0, inputs.tokens - corpus.tokens) / speed))
            share = f"{corpus.tokens:,} of {inputs.tokens:,} tokens"
            say.note(f"writing texts: {share} · {speed:,.0f} tokens/s · {left} left")

        write_corpus(
            target,
            scripts,
            corpus,
            inputs.tokens,
            rows=inputs.rows,
            length=_length(session, inputs),
            seed=inputs.seed,
            on_tokens=on_tokens,
            on_shard=on_shard,
        )
    say.note(f"the target wrote {corpus.tokens:,} tokens")
    if corpus.tokens < inputs.tokens:
        say.note(
            "every prompt has its one greedy answer; for more tokens, give a --temperature above 0 or more "
            "prompts"
        )


def scripts_for(
    session: Session, inputs: Inputs, prompts: PromptSet | None, say: Commentary
) -> Callable[[int], Iterator[Script]]:
    """The scripts for the target: a function from the number of texts already written to those that follow.

    Notes which prompts are left out. Raises `BadInput` if the target cannot write from nothing, or if too few
    prompts are left.
    """
    from sequoia_cli.distill.scripts import scripts_from

    scripts = scripts_from(
        session.tokenizer,
        session.eos_ids,
        inputs.temperatures,
        length=_length(session, inputs),
        answer=inputs.new_tokens,
        seed=inputs.seed,
        prompts=_fitting(session, inputs, prompts, say) if prompts is not None else None,
        chat_template=_uses_chat_template(session, inputs),
    )
    next(scripts(0))  # raises for a target that cannot write from nothing
    return scripts


def _fitting(session: Session, inputs: Inputs, prompts: PromptSet, say: Commentary) -> list[tuple[int, ...]]:
    """The ids of each different prompt that leaves room for an answer."""
    from sequoia_cli.distill.held_out import LEAST_PROMPTS

    length = _length(session, inputs)
    usable = encoded(session, prompts.prompts, say, raw=inputs.raw, skip_bad=inputs.skip_bad)
    fitting = [tuple(ids) for _, ids in usable if len(ids) < length]
    if not fitting:
        raise BadInput(
            f"no prompt of {prompts.name} leaves room for an answer in a text of {length} tokens: "
            f"the shortest has {min(len(ids) for _, ids in usable)}",
            hint="give a longer --length",
        )
    if len(fitting) < len(usable):
        say.note(
            f"{len(usable) - len(fitting)} of {len(usable)} prompts leave no room for an answer in "
            f"{length} tokens and are left out; a longer --length takes them"
        )
    different = list(dict.fromkeys(fitting))
    if len(different) < LEAST_PROMPTS:
        raise BadInput(
            f"{len(different)} different prompts are too few: at least {LEAST_PROMPTS} are needed, because "
            "some are held out from training",
            hint="give more prompts, or leave --dataset out",
        )
    return different


def _length(session: Session, inputs: Inputs) -> int:
    """The most tokens of a text."""
    return min(inputs.length, session.target.context_limit)


def _uses_chat_template(session: Session, inputs: Inputs) -> bool:
    """Whether prompts go through the chat template."""
    return bool(session.tokenizer.chat_template) and not inputs.raw
