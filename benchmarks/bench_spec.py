"""Plain decoding and the tree by turns on Spec-Bench, or another set of prompts with categories.

Every k-th prompt (`--every`) is run in one process with the engine that `generate` runs; which way comes
first alternates. Of several turns the first is asked. Reported are, by category and for all: tokens per step
of all texts together, and medians over prompts of tokens per step and of speedup, with the intervals of
`bench` (at least 95%; none for fewer than 6 prompts). Prompts without room for an answer are left out by
name.

Table on stderr; -o names the JSON file. What is measured is kept beside it as it comes: an interrupted run is
resumed by the same command.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from sequoia_cli.bench.summary import median_interval
from sequoia_cli.core.artifact import read_document
from sequoia_cli.core.journal import Journal
from sequoia_cli.core.paths import shipped
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.sampling import Sampling
from sequoia_cli.core.writing import write_atomically
from sequoia_cli.engine.decode import default_draft_sampling
from sequoia_cli.engine.verification.verifiers import verifier_named
from sequoia_cli.errors import SequoiaError
from sequoia_cli.measure.encoded_prompts import with_seeds
from sequoia_cli.measure.prompts import Prompt, load_prompts
from sequoia_cli.measure.run import Run
from sequoia_cli.measure.session import Session, open_session

SCHEMA = "sequoia-bench-spec/1"
ALL = "all"

Entry = Mapping[str, Any]


def chosen(session: Session, options: argparse.Namespace) -> tuple[list[Prompt], list[str]]:
    """Every k-th prompt that leaves room for its answer, and the names of the others."""
    fitting, beyond = [], []
    for prompt in load_prompts(options.dataset).prompts[:: options.every]:
        try:
            room = session.target.context_limit - len(session.encode(prompt, raw=False))
        except SequoiaError:
            room = 0
        (fitting if room >= options.max_new_tokens else beyond).append(prompt)
    return fitting, [prompt.id for prompt in beyond]


def new_run(session: Session, prompts: Sequence[Prompt], plan: TreePlan, options: argparse.Namespace) -> Run:
    """Both ways of decoding these prompts."""
    sampling = Sampling(options.temperature)
    return Run(
        session,
        with_seeds([(prompt, session.encode(prompt, raw=False)) for prompt in prompts], options.seed),
        plan,
        sampling,
        default_draft_sampling(sampling),
        verifier_named("sequoia"),
        options.seed,
        options.max_new_tokens,
        stop=(),
        compare=True,
    )


def measured(run: Run) -> dict[str, Any]:
    """The next prompt of a run, decoded both ways."""
    prompt = run.prompts[len(run.texts)]
    run.decode_next(lambda piece: None)
    text, plain = run.texts[-1], run.plain[-1]
    return {
        "prompt": prompt.id,
        "category": prompt.category,
        "tokens": text.speculation.tokens,
        "steps": text.speculation.steps,
        "seconds": text.speculation.decode_seconds,
        "plain_tokens": plain.speculation.tokens,
        "plain_seconds": plain.speculation.decode_seconds,
        "same_text": text.token_ids == plain.token_ids,
    }


def by_category(entries: Sequence[Entry]) -> dict[str, dict[str, Any]]:
    """What the entries say of each category, in the order of the first, and then of all."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry["category"] is not None:
            groups.setdefault(entry["category"], []).append(entry)
    return {name: _summary(group) for name, group in groups.items()} | {ALL: _summary(entries)}


def _summary(entries: Sequence[Entry]) -> dict[str, Any]:
    per_step = [entry["tokens"] / entry["steps"] for entry in entries]
    speedups = [
        (entry["tokens"] / entry["seconds"]) / (entry["plain_tokens"] / entry["plain_seconds"])
        for entry in entries
    ]
    return {
        "prompts": len(entries),
        "tokens_per_step": sum(entry["tokens"] for entry in entries)
        / sum(entry["steps"] for entry in entries),
        "median_tokens_per_step": median(per_step),
        "tokens_per_step_interval": median_interval(per_step),
        "median_speedup": median(speedups),
        "speedup_interval": median_interval(speedups),
        "differing_texts": [entry["prompt"] for entry in entries if not entry["same_text"]],
    }


def show(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """The table."""

    def interval(found: Sequence[float] | None) -> str:
        return f"{found[0]:.2f} to {found[1]:.2f}" if found else ""

    row = "{:16} {:>7} {:>11} {:>7} {:>13} {:>8} {:>13}"
    heads = ("category", "prompts", "tokens/step", "median", "interval", "speedup", "interval")
    print(row.format(*heads), file=sys.stderr)
    for name, found in summaries.items():
        cells = (
            *(name, found["prompts"], f"{found['tokens_per_step']:.2f}"),
            *(f"{found['median_tokens_per_step']:.2f}", interval(found["tokens_per_step_interval"])),
            *(f"{found['median_speedup']:.2f}", interval(found["speedup_interval"])),
        )
        print(row.format(*cells), file=sys.stderr)


def main() -> None:
    """Measure prompt by prompt, and report."""
    options = parsed()
    plan = TreePlan.from_document(read_document(options.tree or str(shipped("trees", "smollm2_cpu.json"))))
    session = open_session(
        options.target,
        [options.draft],
        device=options.device,
        dtype=options.dtype,
        trust_remote_code=False,
        forward=options.forward,
        announce=lambda line: print(line, file=sys.stderr),
    )
    prompts, left_out = chosen(session, options)
    if left_out:
        print(f"left out, as they pass the end of the context: {', '.join(left_out)}", file=sys.stderr)
    if not prompts:
        raise SequoiaError(f"no prompt of {options.dataset} leaves room for an answer")
    conditions = {
        "schema": SCHEMA,
        "conditions": dict(session.conditions),
        "environment": session.environment,
        "parents": list(plan.tree.parents),
        "options": {name: str(value) for name, value in vars(options).items()},
        "left_out": left_out,
    }
    with Journal(options.output.with_suffix(".partial"), conditions) as journal:
        measure(session, prompts, plan, options, journal)
    summaries = by_category(journal.entries)
    show(summaries)
    document = {
        **conditions,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "categories": summaries,
        "samples": journal.entries,
    }
    write_atomically(options.output, json.dumps(document, indent=1) + "\n")
    options.output.with_suffix(".partial").unlink()


def measure(
    session: Session,
    prompts: Sequence[Prompt],
    plan: TreePlan,
    options: argparse.Namespace,
    journal: Journal,
) -> None:
    """Measure the prompts that the journal does not have yet, after a warm-up with the first of them."""
    left = prompts[len(journal.entries) :]
    if not left:
        return
    new_run(session, left[:1], plan, options).decode_next(lambda piece: None)
    run = new_run(session, left, plan, options)
    for _ in left:
        entry = measured(run)
        journal.add(entry)
        ratio = entry["tokens"] / entry["steps"]
        done = f"{len(journal.entries)} of {len(prompts)}"
        print(f"{done}: {entry['prompt']} {ratio:.2f} tokens/step", file=sys.stderr, flush=True)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--dataset", required=True, help="Spec-Bench's question.jsonl, or what acceptance takes"
    )
    parser.add_argument("--every", type=int, default=10, help="take every k-th prompt")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tree", help="a compiled tree; else the shipped one of the default pair")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default="smollm2-draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--forward", default="compiled")
    parser.add_argument("-o", "--output", type=Path, default=Path("bench_spec.json"))
    options = parser.parse_args()
    if options.every < 1 or options.max_new_tokens < 2:
        parser.error("--every is at least 1, and --max-new-tokens at least 2")
    return options


if __name__ == "__main__":
    try:
        main()
    except SequoiaError as error:
        sys.exit(f"bench_spec.py: {error.message}")
    except KeyboardInterrupt:
        print("interrupted; the same command resumes what was measured", file=sys.stderr)
        sys.exit(130)
