"""The texts that `sequoia distill` trains on: what the target is to write, and which of it is held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import TextColumn

from sequoia_cli.cli.console import Commentary
from sequoia_cli.cli.distill_inputs import Inputs
from sequoia_cli.errors import BadInput

if TYPE_CHECKING:
    from sequoia_cli.distill.corpus import Corpus, Text
    from sequoia_cli.distill.scripts import Script
    from sequoia_cli.measure.prompts import PromptSet
    from sequoia_cli.measure.session import Session


def written(
    session: Session, inputs: Inputs, prompts: PromptSet | None, work: Path, say: Commentary
) -> Corpus:
    """The texts to learn from, in `work` if they have no place; written as far as they are not there."""
    from sequoia_cli.distill.corpus import Corpus
    from sequoia_cli.distill.writing import write_corpus

    conditions = {
        **{key: session.conditions[key] for key in ("target", "dtype")},
        "prompts": prompts.digest if prompts else "the target's own",
        "temperatures": list(inputs.temperatures),
        "max_new_tokens": inputs.new_tokens,
        "length": inputs.length,
        "rows": inputs.rows,
        "seed": inputs.seed,
        "chat_template": bool(session.tokenizer.chat_template) and not inputs.raw,
    }
    corpus = Corpus(Path(inputs.corpus) if inputs.corpus else work / "corpus", conditions)
    if corpus.tokens >= inputs.tokens:
        say.note(f"{corpus.folder} has {corpus.tokens:,} tokens already")
        return corpus
    if corpus.tokens:
        say.note(f"going on from {corpus.tokens:,} tokens in {corpus.folder}")
    script = scripts_for(session, inputs, prompts, corpus.shards)
    with say.progress(TextColumn("{task.fields[rate]}")) as bar:
        task = bar.add_task("writing texts", total=inputs.tokens, completed=corpus.tokens, rate="")

        def on_tokens(count: int) -> None:
            bar.advance(task, count)
            speed = bar.tasks[task].speed
            bar.update(task, rate=f"{speed:,.0f} tokens/s" if speed else "")

        length = min(inputs.length, session.target.context_limit)
        write_corpus(
            session.target,
            script,
            corpus,
            inputs.tokens,
            rows=inputs.rows,
            length=length,
            seed=inputs.seed,
            on_tokens=on_tokens,
        )
    say.note(f"the target wrote {corpus.tokens:,} tokens")
    return corpus


def scripts_for(session: Session, inputs: Inputs, prompts: PromptSet | None, done: int) -> Iterator[Script]:
    """What the target is to write; `done` shards of it are written, and the next are to be others."""
    from sequoia_cli.distill import scripts

    tokenizer, ends, seed = session.tokenizer, session.eos_ids, inputs.seed + done
    # A short text is not to be all its user's.
    lengths = scripts.Lengths(user=min(scripts.Lengths.user, inputs.length // 4), answer=inputs.new_tokens)
    if prompts is not None:
        encoded = [session.encode(prompt, raw=inputs.raw) for prompt in prompts.prompts]
        return scripts.answers(encoded, ends, inputs.temperatures, lengths, seed)
    if tokenizer.chat_template and not inputs.raw:
        return scripts.chats(tokenizer, ends, inputs.temperatures, lengths, seed)
    return scripts.documents(tokenizer, ends, inputs.temperatures, seed)


def split(texts: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Texts held out (one of twenty, at least 2, at most 64), and texts to learn from."""
    usable = [text for text in texts if bool(text.answer.any())]
    if len(usable) < 4:
        raise BadInput(
            f"{len(usable)} texts with answers are too few to learn from",
            hint="give more --tokens, or a longer --length",
        )
    count = max(2, min(64, len(usable) // 20))
    # From all over: those that were finished first are the short ones.
    held = set(range(0, len(usable), len(usable) // count)[:count])
    return (
        [text for index, text in enumerate(usable) if index in held],
        [text for index, text in enumerate(usable) if index not in held],
    )
