"""What `sequoia generate` did, as a run to add texts to, as JSON, and as tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from sequoia_cli.cli.session import Session
from sequoia_cli.core.plan import TreePlan
from sequoia_cli.core.tree import ROOT_ONLY
from sequoia_cli.engine.decode import Decoder
from sequoia_cli.engine.text import encode_prompt
from sequoia_cli.engine.warp import Sampling
from sequoia_cli.errors import BadInput
from sequoia_cli.measure.generation import Generation, generate
from sequoia_cli.measure.prompts import Prompt
from sequoia_cli.measure.statistics import STAGES, Speculation

if TYPE_CHECKING:
    from sequoia_cli.cli.console import Commentary

SCHEMA = "sequoia-generation/1"


@dataclass
class Run:
    """All texts of one command, in the order of their prompts; `plain` has the plain ones to compare with."""

    session: Session
    plan: TreePlan | None
    sampling: Sampling
    draft_sampling: Sampling
    seed: int
    max_new_tokens: int
    stop: tuple[str, ...]
    raw: bool
    compare: bool
    prompts: list[Prompt] = field(default_factory=list)
    texts: list[Generation] = field(default_factory=list)
    plain: list[Generation] = field(default_factory=list)

    def __post_init__(self) -> None:
        session, tree = self.session, self.plan.tree if self.plan else ROOT_ONLY
        self._decoder = Decoder(session.target, session.draft, tree, self.sampling, self.draft_sampling)
        self._plain_decoder = Decoder(session.target, sampling=self.sampling)

    def decode(self, prompt: Prompt, on_text: Callable[[str], None]) -> None:
        """Decode one prompt, and plainly too where that is asked for: by turns first or second."""
        try:
            ids = encode_prompt(self.session.tokenizer, prompt.content, raw=self.raw)
        except BadInput as error:
            raise BadInput(f"prompt {prompt.id}: {error.message}", error.hint) from None
        text = Generation(len(ids))
        self.prompts.append(prompt)
        self.texts.append(text)
        first = len(self.texts) % 2
        if self.compare and first:
            self.plain.append(self._generate(self._plain_decoder, ids))
        self._generate(self._decoder, ids, on_text, text)
        if self.compare and not first:
            self.plain.append(self._generate(self._plain_decoder, ids))

    def _generate(
        self,
        decoder: Decoder,
        ids: list[int],
        on_text: Callable[[str], None] = lambda piece: None,
        result: Generation | None = None,
    ) -> Generation:
        return generate(
            decoder,
            self.session.tokenizer,
            ids,
            self.max_new_tokens,
            eos_ids=self.session.eos_ids,
            stop=self.stop,
            seed=self.seed,
            on_text=on_text,
            result=result,
        )

    @property
    def total(self) -> Speculation:
        """Totals of the texts with the tree."""
        return Speculation.total(text.speculation for text in self.texts)

    @property
    def plain_total(self) -> Speculation:
        """Totals of the plain texts."""
        return Speculation.total(text.speculation for text in self.plain)

    @property
    def speedup(self) -> float | None:
        """Seconds per token of plain decoding over those with the tree, prefill excluded; None if unknown."""
        ours, plain = self.total.tokens_per_second, self.plain_total.tokens_per_second
        return ours / plain if ours and plain else None

    def first_differences(self) -> dict[str, int]:
        """Where greedy texts differ from the plain ones: prompt id -> place of the first differing token."""
        if not self.sampling.greedy:
            return {}
        found = {}
        for prompt, text, plain in zip(self.prompts, self.texts, self.plain, strict=False):
            if text.token_ids != plain.token_ids:
                pairs = zip(text.token_ids, plain.token_ids, strict=False)
                place = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                found[prompt.id] = min(len(text.token_ids), len(plain.token_ids)) if place is None else place
        return found

    def wrong_texts(self) -> list[str]:
        """Prompts whose greedy text differs where rounding is no excuse."""
        return list(self.first_differences()) if self.session.conditions["dtype"] == "float32" else []

    def warn(self, say: Commentary) -> None:
        """Say where the tree was made for something else than this run."""
        if self.plan is None:
            return
        here = {**self.session.conditions, "temperature": self.sampling.temperature}
        differing: dict[str, tuple[Any, Any]] = {}
        for part in ("profile", "acceptance"):
            stated = self.plan.inputs.get(part)
            conditions = stated.get("conditions") if isinstance(stated, dict) else None
            for key in ("target", "draft", "device", "dtype", "temperature"):
                there = conditions.get(key) if isinstance(conditions, dict) else None
                if there is not None and here.get(key) is not None and there != here[key]:
                    differing[key] = (there, here[key])
        if differing:
            what = "; ".join(f"{key} {there}, here {now}" for key, (there, now) in differing.items())
            say.warn(f"the tree was compiled for another setting, so its prediction may not hold: {what}")


def document(run: Run, warnings: list[str]) -> str:
    """The one JSON document of the command: the text's keys at the top, or `results` for several prompts."""
    context = [text for text in run.texts if text.context_reached]
    warnings = [*warnings, *(["the text ended where the model's context does"] if context else [])]
    total = run.total
    shared: dict[str, Any] = {
        "seed": run.seed,
        "predicted": _predicted(run.plan),
        "environment": run.session.environment,
        "warnings": warnings,
    }
    if run.compare:
        shared["plain"] = {
            "tokens_per_second": run.plain_total.tokens_per_second,
            "seconds_by_stage": run.plain_total.seconds,
        }
        shared["speedup"] = run.speedup
        shared["first_differences"] = run.first_differences()
    results = [_result(prompt, text) for prompt, text in zip(run.prompts, run.texts, strict=True)]
    if len(results) == 1:
        body = {"schema": SCHEMA, **results[0], **shared}
    else:
        body = {
            "schema": SCHEMA,
            "results": results,
            "tokens_per_second": total.tokens_per_second,
            "speculation": total.to_dict(),
            **shared,
        }
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def _result(prompt: Prompt, text: Generation) -> dict[str, Any]:
    return {
        "id": prompt.id,
        "prompt_tokens": text.prompt_tokens,
        "token_ids": text.token_ids,
        "text": text.text,
        "finish_reason": text.finish,
        "seconds": text.seconds,
        "first_token_seconds": text.first_token_seconds,
        "prefill_seconds": text.speculation.prefill_seconds,
        "tokens_per_second": text.speculation.tokens_per_second,
        "speculation": text.speculation.to_dict(),
    }


def _predicted(plan: TreePlan | None) -> dict[str, Any] | None:
    if plan is None or plan.predicted is None:
        return None
    predicted = plan.predicted
    return {
        "tokens_per_step": predicted.tokens_per_step,
        "seconds_per_step": predicted.seconds_per_step,
        "speedup": predicted.speedup,
    }


def summary(run: Run) -> Iterator[Table | str]:
    """Predicted and measured next to each other, and where the time went."""
    total = run.total
    if not total.steps:
        return
    foretold = _predicted(run.plan) or {}
    table = Table(title=_title(run, total), title_justify="left")
    for heading in ("", "predicted", "measured"):
        table.add_column(heading, justify="right" if heading else "left")
    per_step = total.decode_seconds / total.steps
    rows: list[tuple[str, float | None, float | None, str]] = [
        ("tokens per step", foretold.get("tokens_per_step"), total.mean_acceptance_length, ".2f"),
        ("milliseconds per step", _ms(foretold.get("seconds_per_step")), _ms(per_step), ".1f"),
        ("speedup over plain decoding", foretold.get("speedup"), run.speedup, ".2f"),
        ("tokens/s", None, total.tokens_per_second, ".1f"),
        ("tokens/s, plain decoding", None, run.plain_total.tokens_per_second, ".1f"),
    ]
    for name, said, found, style in rows:
        if said is not None or found is not None:
            table.add_row(name, *("" if value is None else format(value, style) for value in (said, found)))
    yield table
    stages = ", ".join(f"{stage} {total.seconds[stage] / total.decode_seconds:.0%}" for stage in STAGES)
    yield f"time by stage: {stages}; prefill {total.prefill_seconds:.2f} s beside it"
    if run.compare and len(run.texts) == len(run.plain) > 1:
        yield _comparison(run)
    for text in run.texts:
        if text.context_reached:
            yield "the text ended where the model's context does"
            break


def _title(run: Run, total: Speculation) -> str:
    tree = run.plan.tree if run.plan else ROOT_ONLY
    shape = f"tree of {tree.size} nodes in {tree.depth} layers" if tree.size > 1 else "plain decoding"
    return f"{total.tokens} tokens in {total.steps} steps, {shape}"


def _comparison(run: Run) -> str:
    """Spread of the speedup over prompts, and whether greedy texts agree."""
    ratios = [
        (text.speculation.tokens_per_second or 0) / plain.speculation.tokens_per_second
        for text, plain in zip(run.texts, run.plain, strict=True)
        if plain.speculation.tokens_per_second
    ]
    line = ""
    if len(ratios) > 1:
        low, middle, high = statistics.quantiles(ratios, n=4)
        line = f"speedup by prompt: median {middle:.2f}, middle half {low:.2f} to {high:.2f}"
    if run.sampling.greedy:
        same = len(run.texts) - len(run.first_differences())
        line += f"; {same} of {len(run.texts)} texts equal plain decoding's id for id"
        if same < len(run.texts) and run.session.conditions["dtype"] != "float32":
            line += f" ({run.session.conditions['dtype']} rounds near-ties either way; float32 has none)"
    return line.lstrip("; ")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
