"""The engines take turns: each round gives all of them every prompt, in an order that changes by round."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sequoia_cli.bench.work import Sample, Work
from sequoia_cli.core.paths import package_data


@dataclass
class Outcome:
    """The result of an engine: its samples, or why it has none (or no more)."""

    engine: str
    samples: list[Sample] = field(default_factory=list)
    load_seconds: float | None = None
    peak_bytes: int | None = None
    packages: dict[str, str] = field(default_factory=dict)
    unavailable: str | None = None
    failed: str | None = None

    @property
    def runs(self) -> bool:
        """Whether it can be asked for texts."""
        return self.load_seconds is not None and self.failed is None


class Worker:
    """An engine's process, run by `python` (None: this one). Its stderr is kept for the case that it dies."""

    def __init__(self, engine: str, work: Work, python: str | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sequoia-bench-")
        place = Path(self._scratch.name)
        # Another interpreter is to find this package, but none of those that are installed beside it.
        (place / "sequoia_cli").symlink_to(package_data())
        paths = filter(None, (str(place), os.environ.get("PYTHONPATH")))
        self._errors = place / "stderr"
        with self._errors.open("wb") as errors:
            # A session of its own: an interrupt is for this process, which then ends the others.
            self._process = subprocess.Popen(
                [python or sys.executable, "-m", "sequoia_cli.bench.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )
        self.first = self.ask({"engine": engine, "work": work.to_dict()})

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Its reply; {"failed": why} where it has none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message, allow_nan=False) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"failed": self._last_words()}

    def close(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and what it has started itself
        self._process.communicate()
        self._scratch.cleanup()

    def _last_words(self) -> str:
        code = self._process.wait()
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        end = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"it ended {end}" + (f": {lines[-1][:300]}" if lines else "")


def compare(
    engines: Sequence[str],
    work: Work,
    rounds: int,
    on_progress: Callable[[str], None] = lambda what: None,
    pythons: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Run all engines on all prompts, `rounds` times, by turns; `work.warm_up` once before that, uncounted.

    Every prompt has a seed of its own in each round, the same for all engines.

    Each engine's process stays, idle while others run, so that none loads or compiles within its times. An
    interruption ends all of them; what was measured until then is in the outcomes it carries. `pythons` has
    the interpreters of engines that need another one than this.
    """
    outcomes = [Outcome(engine) for engine in engines]
    workers: dict[str, Worker] = {}
    try:
        for outcome in outcomes:
            on_progress(f"loading {outcome.engine}")
            workers[outcome.engine] = worker = Worker(
                outcome.engine, work, (pythons or {}).get(outcome.engine)
            )
            _note(outcome, worker.first)
            for prompt in work.warm_up:
                if outcome.runs:
                    on_progress(outcome.engine)
                    _note(outcome, worker.ask({"prompt": prompt, "seed": work.text_seed(-1, prompt)}))
        for number in range(rounds):
            for prompt in range(len(work.prompts)):
                for outcome in _turned([each for each in outcomes if each.runs], number + prompt):
                    on_progress(outcome.engine)
                    reply = workers[outcome.engine].ask(
                        {"prompt": prompt, "seed": work.text_seed(number, prompt)}
                    )
                    _note(outcome, reply)
                    if "token_ids" in reply:
                        outcome.samples.append(_sample(outcome.engine, number, prompt, reply))
    except KeyboardInterrupt as interruption:
        raise Interrupted(outcomes) from interruption
    finally:
        for worker in workers.values():
            worker.close()
    return outcomes


class Interrupted(KeyboardInterrupt):
    """An interruption with the `outcomes` until then."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


def _note(outcome: Outcome, reply: dict[str, Any]) -> None:
    for key in ("load_seconds", "peak_bytes", "packages", "unavailable", "failed"):
        if key in reply:
            setattr(outcome, key, reply[key])


def _sample(engine: str, number: int, prompt: int, reply: dict[str, Any]) -> Sample:
    arrivals = tuple((seconds, count) for seconds, count in reply["arrivals"])
    return Sample(engine, number, prompt, tuple(reply["token_ids"]), arrivals)


def _turned(outcomes: Sequence[Outcome], by: int) -> list[Outcome]:
    by = by % len(outcomes) if outcomes else 0
    return [*outcomes[by:], *outcomes[:by]]
