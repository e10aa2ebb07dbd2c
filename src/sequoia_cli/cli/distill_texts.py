"""The texts that `sequoia distill` trains on: what the target is to write, and which of it is held out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import TextColumn

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill_inputs import Inputs
from sequoia_cli.cli.prompts import encoded
from sequoia_cli.core.seeds import mixed
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.distill.corpus import Corpus, Text, Texts
    from sequoia_cli.distill.scripts import Script
    from sequoia_cli.engine.model import LanguageModel
    from sequoia_cli.measure.prompts import PromptSet
    from sequoia_cli.measure.session import Session

#: Different prompts, at least: some are held out, and the rest are learned from.
_LEAST_PROMPTS = 4
#: The share of prompts that are held out.
_HELD_OUT_SHARE = 0.05
#: Texts held out, at most: all of them are run each time that a training is looked at.
_MOST_HELD_OUT = 64


def written(
    session: Session,
    inputs: Inputs,
    prompts: PromptSet | None,
    scripts: Callable[[int], Iterator[Script]],
    work: Path,
    writer: Callable[[], LanguageModel],
    say: Commentary,
) -> Texts:
    """The texts to learn from, in `work` if they have no place; written as far as they are not there.

    `scripts` are those of `scripts_for`; `writer` gives the target as it is to run.
    """
    from sequoia_cli.distill.corpus import Corpus, alone_in

    chats = _writes_chats(session, inputs)
    own = "the target's own" if chats else "the target's own, behind openings"
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
        if corpus.tokens >= inputs.tokens:  # which many commands may read at a time
            first = corpus.first(inputs.tokens)
            left_out = f"; learning from the first {first.tokens:,}" if first.tokens < corpus.tokens else ""
            say.note(f"{corpus.folder} has {corpus.tokens:,} tokens already{left_out}")
            return first
    with alone_in(folder):
        corpus = Corpus(folder, conditions)  # as it is now that nobody else writes there
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
    """Write texts until there are as many tokens as asked for."""
    from sequoia_cli.distill.writing import write_corpus

    if corpus.tokens:
        say.note(f"going on from {corpus.tokens:,} tokens in {corpus.folder}")
    target = writer()
    began, before = time.perf_counter(), corpus.tokens
    with say.progress(TextColumn("{task.fields[rate]}", markup=False)) as bar:
        task = bar.add_task("writing texts", total=inputs.tokens, completed=corpus.tokens, rate="")

        def on_tokens(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[task].speed
            bar.update(task, rate=f"{speed:,.0f} tokens/s" if speed else "")

        def on_shard() -> None:
            if say.shows_progress:  # which a log does not
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
            "that is the one greedy answer to every prompt; for more, give a --temperature above 0 or more "
            "prompts"
        )


def scripts_for(
    session: Session, inputs: Inputs, prompts: PromptSet | None, say: Commentary
) -> Callable[[int], Iterator[Script]]:
    """What the target is to write after a number of texts that it has written.

    Says which prompts are left out. Raises `BadInput` where the target cannot begin, or too few prompts are
    left.
    """
    from sequoia_cli.distill import scripts

    tokenizer, ends, temperatures, seed = (
        session.tokenizer,
        session.eos_ids,
        inputs.temperatures,
        inputs.seed,
    )
    part = _length(session, inputs) // 4  # a short text is not to be all question or opening
    lengths = scripts.Lengths(
        user=min(scripts.Lengths.user, part),
        opening=min(scripts.Lengths.opening, part),
        answer=inputs.new_tokens,
    )
    chosen = _that_fit(session, inputs, prompts, say) if prompts is not None else []

    def following(done: int) -> Iterator[Script]:
        if prompts is not None:
            return scripts.answers(chosen, ends, temperatures, lengths, seed, done)
        if _writes_chats(session, inputs):
            return scripts.chats(tokenizer, ends, temperatures, lengths, mixed(seed, done))
        return scripts.documents(tokenizer, ends, temperatures, lengths, mixed(seed, done))

    next(following(0))
    return following


def _that_fit(session: Session, inputs: Inputs, prompts: PromptSet, say: Commentary) -> list[tuple[int, ...]]:
    """The ids of each different prompt that leaves room for an answer."""
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
    if len(different) < _LEAST_PROMPTS:
        raise BadInput(
            f"{len(different)} different prompts are too few: at least {_LEAST_PROMPTS} are needed, since "
            "those that a draft is judged by are not trained on",
            hint="give more prompts, or leave --dataset out",
        )
    return different


def _length(session: Session, inputs: Inputs) -> int:
    """Most tokens of a text."""
    return min(inputs.length, session.target.context_limit)


def _writes_chats(session: Session, inputs: Inputs) -> bool:
    """Whether the chat template is used."""
    return bool(session.tokenizer.chat_template) and not inputs.raw


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Texts held out, and texts to learn from: no two of both sides answer the same prompt.

    About one prompt of twenty is held out, at least 2, and at most 64 of their texts are looked at; a prompt
    is all that stands before the first answer. Which they are depends on the prompts alone, not on how many
    there are: a draft trained further on more texts must not be judged by some that it has learned from.
    Raises `BadInput` for fewer than 4 prompts with answers.
    """
    prompts: dict[tuple[int, ...], list[Text]] = {}
    for text in texts:
        if bool(text.answer.any()):
            first = int(text.answer.long().argmax())
            prompts.setdefault(tuple(text.tokens[:first].tolist()), []).append(text)
    if len(prompts) < _LEAST_PROMPTS:
        raise BadInput(
            f"texts with answers to {len(prompts)} different prompts are too few to learn from; "
            f"{_LEAST_PROMPTS} are needed",
            hint="give more --tokens, or a longer --length",
        )
    lots = {prompt: _lot(prompt) for prompt in prompts}
    count = max(2, sum(lot < _HELD_OUT_SHARE for lot in lots.values()))
    held = dict.fromkeys(sorted(prompts, key=lots.__getitem__)[:count])  # in order
    # One text of each prompt, then the second ones: what is looked at first is to be of many prompts.
    rounds = zip_longest(*(prompts[prompt] for prompt in held))
    return (
        [text for each in rounds for text in each if text is not None][:_MOST_HELD_OUT],
        [text for prompt, group in prompts.items() if prompt not in held for text in group],
    )


def _lot(prompt: Sequence[int]) -> float:
    """A number in [0, 1) that a prompt draws for good."""
    return mixed(*prompt) / (1 << 64)
