"""The process of one engine: JSON lines in, JSON lines out.

The first line is {"engine": name, "work": ...}; each further one, {"prompt": index, "seed": n}, requests a
text.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from sequoia_cli.bench.engines import Engine, Unavailable, make_engine
from sequoia_cli.bench.workload import Workload
from sequoia_cli.core.ending import cut
from sequoia_cli.errors import SequoiaError, out_of_memory


def main() -> None:
    """Serve until stdin ends."""
    # Libraries may print to stdout: redirect that to stderr, and write replies to the original stdout.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, replies)


def serve(requests: TextIO, replies: TextIO) -> None:
    """Answer each line of `requests` with one of `replies`."""

    def reply(message: dict[str, Any]) -> None:
        replies.write(json.dumps(message, allow_nan=False) + "\n")
        replies.flush()

    setup = json.loads(requests.readline())
    work = Workload.from_dict(setup["work"])
    began = time.perf_counter()
    try:
        engine = make_engine(setup["engine"], work)
    except Unavailable as reason:
        reply({"unavailable": str(reason)})
        return
    except Exception as error:
        reply({"failed": _message(error)})
        return
    reply(
        {
            "load_seconds": time.perf_counter() - began,
            "packages": {package: version(package) for package in engine.packages},
        }
    )
    for line in requests:
        try:
            reply(run(engine, work, **json.loads(line)) | {"peak_bytes": peak_bytes()})
        except Exception as error:
            reply({"failed": _message(error)})
            return


def run(
    engine: Engine, work: Workload, prompt: int, seed: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Generate one text: its tokens and their arrivals, cut at an end of text or the budget."""
    tokens: list[int] = []
    arrivals: list[tuple[float, int]] = []
    began = clock()

    def on_tokens(new: Sequence[int]) -> None:
        seconds = clock() - began
        kept = cut([*tokens, *new], work.eos_ids, work.max_new_tokens)[len(tokens) :]
        if kept:
            tokens.extend(kept)
            arrivals.append((seconds, len(kept)))

    engine.generate(work.prompts[prompt], seed, on_tokens)
    return {"token_ids": tokens, "arrivals": arrivals}


def peak_bytes() -> int:
    """The peak memory of this process, the accelerator's included."""
    resident = _peak_resident()
    torch = sys.modules.get("torch")  # imported only by engines that use it
    return resident + (torch.cuda.max_memory_allocated() if torch and torch.cuda.is_available() else 0)


def _peak_resident() -> int:
    try:
        # Not getrusage, whose figure includes the parent's memory at the fork.
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most


def _message(error: Exception) -> str:
    if isinstance(error, SequoiaError):
        return error.message
    return out_of_memory(error) or f"{type(error).__name__}: {error}".splitlines()[0][:300]


if __name__ == "__main__":
    main()
