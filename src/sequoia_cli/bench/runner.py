"""Running engines in turns: in each round every engine gets every prompt, in an order that rotates."""

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

from sequoia_cli.bench.workload import Sample, Workload
from sequoia_cli.core.paths import package_data


@dataclass
class Outcome:
    """The result of an engine: its samples, or the reason why it has none or stopped."""

    engine: str
    samples: list[Sample] = field(default_factory=list)
    load_seconds: float | None = None
    peak_bytes: int | None = None
    packages: dict[str, str] = field(default_factory=dict)
    unavailable: str | None = None
    failed: str | None = None

    @property
    def runs(self) -> bool:
        """Whether the engine can generate."""
        return self.load_seconds is not None and self.failed is None


class Worker:
    """An engine's process, run by the interpreter `python` (None: this one); stderr is kept for errors."""

    def __init__(self, engine: str, work: Workload, python: str | None = None) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="sequoia-bench-")
        folder = Path(self._scratch.name)
        # Another interpreter must find this package, but not those installed next to it.
        (folder / "sequoia_cli").symlink_to(package_data())
        paths = filter(None, (str(folder), os.environ.get("PYTHONPATH")))
        self._errors = folder / "stderr"
        with self._errors.open("wb") as errors:
            # In its own session: an interrupt reaches only this process, which then ends the workers.
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
        """Send a message and return the reply, {"failed": reason} if there is none."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message, allow_nan=False) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"failed": self._exit_reason()}

    def close(self) -> None:
        """End the process."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and its own children
        self._process.communicate()
        self._scratch.cleanup()

    def _exit_reason(self) -> str:
        code = self._process.wait()
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        end = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        return f"it ended {end}" + (f": {lines[-1][:300]}" if lines else "")


def compare(
    engines: Sequence[str],
    work: Workload,
    rounds: int,
    on_progress: Callable[[str], None] = lambda what: None,
    pythons: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Run all engines in turns on all prompts, `rounds` times, after an untimed warm-up on `work.warm_up`.

    Each prompt has its own seed in each round, the same for all engines. `pythons` are the interpreters of
    engines that need another one than this.

    An engine's process stays alive, idle while others run, so that loading and compiling are not timed.
    Raises `Interrupted`, with the outcomes so far, on an interrupt.
    """
    outcomes = [Outcome(engine) for engine in engines]
    workers: dict[str, Worker] = {}
    try:
        for outcome in outcomes:
            on_progress(f"loading {outcome.engine}")
            workers[outcome.engine] = worker = Worker(
                outcome.engine, work, (pythons or {}).get(outcome.engine)
            )
            _update(outcome, worker.first)
            for prompt in work.warm_up:
                if outcome.runs:
                    on_progress(outcome.engine)
                    _update(outcome, worker.ask({"prompt": prompt, "seed": work.text_seed(-1, prompt)}))
        for number in range(rounds):
            for prompt in range(len(work.prompts)):
                for outcome in _rotated([each for each in outcomes if each.runs], number + prompt):
                    on_progress(outcome.engine)
                    reply = workers[outcome.engine].ask(
                        {"prompt": prompt, "seed": work.text_seed(number, prompt)}
                    )
                    _update(outcome, reply)
                    if "token_ids" in reply:
                        outcome.samples.append(_sample(outcome.engine, number, prompt, reply))
    except KeyboardInterrupt as interruption:
        raise Interrupted(outcomes) from interruption
    finally:
        for worker in workers.values():
            worker.close()
    return outcomes


class Interrupted(KeyboardInterrupt):
    """An interrupt, with the `outcomes` so far."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


def _update(outcome: Outcome, reply: dict[str, Any]) -> None:
    for key in ("load_seconds", "peak_bytes", "packages", "unavailable", "failed"):
        if key in reply:
            setattr(outcome, key, reply[key])


def _sample(engine: str, number: int, prompt: int, reply: dict[str, Any]) -> Sample:
    arrivals = tuple((seconds, count) for seconds, count in reply["arrivals"])
    return Sample(engine, number, prompt, tuple(reply["token_ids"]), arrivals)


def _rotated(outcomes: Sequence[Outcome], by: int) -> list[Outcome]:
    by = by % len(outcomes) if outcomes else 0
    return [*outcomes[by:], *outcomes[:by]]
